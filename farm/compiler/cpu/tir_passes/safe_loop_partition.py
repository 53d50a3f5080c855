"""Keep TVM's LoopPartition to conditions on which it is sound.

LoopPartition cuts a loop where a condition in it changes, at a bound that it deduces from the
condition (TVM: src/s_tir/transform/loop_partition.cc, src/arith/bound_deducer.cc). The end of the
part before the cut it clamps to the loop's begin only, the begin of the part after it to the loop's
end only. With constant bounds that is enough: it takes only conditions whose intervals meet the
loop's, and intervals of a line that meet in pairs have a point in common. A bound that contains the
variable of a loop outside, or a value from memory, may lie beyond the other end: the parts then
overlap, or leave the loop and with it the tensors.

A bound is constant where the condition is over the loop that is cut, loops within it and constants:
those within are relaxed to their extents. Every other condition on that loop is hidden from
LoopPartition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer

from farm.compiler.ir.annotated_loops import copy_loop
from farm.compiler.ir.annotations import LOOP_PARTITION, STAYS_LOOP

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_ARITHMETIC = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Min,
    tirx.Max,
)


@tirx.transform.prim_func_pass(opt_level=0, name="farm.SafeLoopPartition")
class HideUnsafeConditions:
    """Hide from LoopPartition the conditions that it may not cut at.

    Runs before TVM's passes for loop nests.
    """

    def transform_function(
        self, function: tirx.PrimFunc, _: tvm.IRModule, __: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Apply `hide_unsafe_conditions`."""
        return hide_unsafe_conditions(function)


def hide_unsafe_conditions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with unsafe conditions inside `ignore_loop_partition`.

    A condition is unsafe if no hinted loop may be cut at it.
    """
    whole = _Nest.of(function.body)
    if not any(LOOP_PARTITION in loop.annotations for loop in whole.loops):
        return function
    analyzer = _analyzer(whole.loops)

    def change(loop: tirx.For) -> tirx.For:
        return (
            _of_own_type(_with_safe_conditions(loop, analyzer))
            if LOOP_PARTITION in loop.annotations
            else loop
        )

    return function.with_body(
        tvm_ffi.structural_map(function.body, [(tirx.For, change)], order="post")
    )


@dataclass(frozen=True)
class _Nest:
    """Loops, block bindings, variables of `let` and initialising blocks of a statement."""

    loops: list[tirx.For] = field(default_factory=list)
    bindings: dict[tirx.Var, Any] = field(default_factory=dict)
    lets: set[tirx.Var] = field(default_factory=set)
    initialising: list[SBlock] = field(default_factory=list)

    @classmethod
    def of(cls, statement: tirx.Stmt) -> _Nest:
        nest = cls()
        nodes = (tirx.For, SBlockRealize, SBlock, tirx.Let, tirx.Bind)
        tvm_ffi.structural_walk(statement, [(nodes, nest._visit)])
        return nest

    def _visit(self, node: Any) -> None:
        if isinstance(node, tirx.For):
            self.loops.append(node)
        elif isinstance(node, SBlockRealize):
            variables = [axis.var for axis in node.block.iter_vars]
            self.bindings.update(zip(variables, node.iter_values, strict=True))
        elif isinstance(node, SBlock):
            if node.init is not None:
                self.initialising.append(node)
        else:
            self.lets.add(node.var)


def _analyzer(loops: Iterable[tirx.For]) -> Analyzer:
    """Return an analyzer that knows the range of each loop's variable."""
    ranges: dict[tirx.Var, set[tuple[int, int]]] = {}
    for loop in loops:
        if isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm):
            ranges.setdefault(loop.loop_var, set()).add((int(loop.min), int(loop.extent)))
    analyzer = Analyzer()
    for variable, places in ranges.items():
        if len(places) == 1:
            ((begin, extent),) = places
            analyzer.bind(variable, tvm.ir.Range.from_min_extent(begin, extent))
    return analyzer


def _with_safe_conditions(loop: tirx.For, analyzer: Analyzer) -> tirx.For:
    nest = _Nest.of(loop)
    if nest.initialising:  # before it cuts, TVM turns that into conditions on variables of any loop
        kept = {name: value for name, value in loop.annotations.items() if name != LOOP_PARTITION}
        return copy_loop(loop, [loop.body], kept)

    def safe(condition: Any) -> Any:
        if "int" not in str(condition.a.ty.dtype) or _is_safe(condition, loop, nest):
            return condition
        simple = analyzer.simplify(
            _in_loops(condition, nest)
        )  # variables of outer loops may cancel
        return simple if _is_safe(simple, loop, nest) else tirx.ignore_loop_partition(condition)

    return tvm_ffi.structural_map(loop, [(kind, safe) for kind in _COMPARISONS], order="post")


def _of_own_type(loop: tirx.For) -> tirx.For:
    """Return the loop, annotated where its variable is no int32.

    Of a part with one iteration LoopPartition makes a statement, with an int32 zero for the
    variable, whatever the type of that is; not where the loop has an annotation.
    """
    if str(loop.loop_var.ty.dtype) == "int32":
        return loop
    annotations = {**loop.annotations, STAYS_LOOP: tirx.const(1, "int32")}
    return copy_loop(loop, [loop.body], annotations)


def _in_loops(value: Any, nest: _Nest) -> Any:
    """Return the value in terms of variables of loops instead of those of blocks."""

    def bound(variable: tirx.Var) -> Any:
        return _in_loops(nest.bindings[variable], nest) if variable in nest.bindings else variable

    return tvm_ffi.structural_map(value, [(tirx.Var, bound)], order="post")


def _is_safe(condition: Any, loop: tirx.For, nest: _Nest) -> bool:
    """Return whether the bound that LoopPartition deduces is constant, or there is none."""
    operands = list(_operands(_in_loops(condition, nest)))
    if not any(one.same_as(loop.loop_var) or one in nest.lets for one in operands):
        return True
    inside = {inner.loop_var for inner in nest.loops if _is_constant(inner)}
    return all(one in inside for one in operands)


def _operands(value: Any) -> Iterator[Any]:
    """Yield the variables of a condition, and every part that is no arithmetic."""
    if isinstance(value, (*_ARITHMETIC, *_COMPARISONS)):
        yield from _operands(value.a)
        yield from _operands(value.b)
    elif isinstance(value, tirx.Cast):
        yield from _operands(value.value)
    elif not isinstance(value, tirx.IntImm):
        yield value


def _is_constant(loop: tirx.For) -> bool:
    return isinstance(loop.min, tirx.IntImm) and isinstance(loop.extent, tirx.IntImm)
