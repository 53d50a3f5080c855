"""Merge a convolution and the windows over its result into one kernel, where that is faster.

The result of the convolution, which often is the largest tensor of a layer, is then never in memory
as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar
from tvm.relax.expr_functor import mutator
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from farm.compiler.cpu.conv_dense_compute import CONVOLUTION, PADDING
from farm.compiler.cpu.conv_dense_schedule import (
    find_grouped_inputs_block,
    find_main_block,
    inline_into_epilogue,
    loads_of,
    producer_blocks,
)
from farm.compiler.cpu.depth_first.plan import depth_first_plan
from farm.compiler.cpu.depth_first.schedule import WINDOWS, schedule_depth_first
from farm.compiler.cpu.kernel_config import ConfigDecision, ConfigSelector
from farm.compiler.graph.layer_names import LayersByVariable
from farm.compiler.ir.annotations import BANDS, SKIP_PADDING_TAPS, TILE, TILE_ROWS, WORKLOAD
from farm.compiler.ir.blocks import block_name, block_names
from farm.compiler.ir.dynamic_extents import shapes_are_equal
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, count_readers, op_name
from farm.compiler.ir.unchecked_schedule import UncheckedSchedule
from farm.compiler.target.cpu_model import CpuModel

_CALL, _PREFIX = "relax.call_tir", "fused_"  # of the names of kernels


def merge_convolutions_with_windows(module: tvm.IRModule, selector: ConfigSelector) -> tvm.IRModule:
    """Return a module of fused kernels, in which pairs that gain by it are one kernel."""
    merger = _PairMerger(module, selector)
    main = merger.visit_expr(module["main"])
    if not merger.first_of_pair:
        return module
    layers = LayersByVariable(module["main"])
    for second, first in merger.first_of_pair.items():
        layers.join(first, second)
    result = merger.builder_.get()
    result["main"] = main
    result = relax.transform.DeadCodeElimination()(result)
    result["main"] = layers.attach(result["main"])
    return result


@mutator
class _PairMerger(Rewriter):
    """Calls one kernel in the place of two that gain by it.

    `first_of_pair` has the variables of both kernels' results, by that of the second.
    """

    def __init__(self, module: tvm.IRModule, selector: ConfigSelector) -> None:
        super().__init__(module)
        self._selector = selector
        self._kernels = dict(module.functions_items())  # not those that are merged here
        self._readers: Counter[relax.Var] = count_readers(module["main"])
        self._variable: relax.Var | None = None  # of the binding that is rewritten
        self._made: dict[tuple[GlobalVar, GlobalVar, int], GlobalVar | None] = {}
        self.first_of_pair: dict[relax.Var, relax.Var] = {}

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {_CALL: self._pair}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a binding, and note its variable: layers are known by variables."""
        self._variable = binding.var
        super().visit_var_binding_(binding)

    def _pair(self, call: Call) -> relax.Expr | None:
        if len(call.args) != 2 or self._variable is None:
            return None
        for place, operand in enumerate(call.args[1].fields):
            # Not through an alias, of which others may read the value
            first = self.lookup_binding(operand) if isinstance(operand, relax.Var) else None
            if not isinstance(first, Call) or self._readers[operand] != 1:
                continue
            if op_name(first) != _CALL or len(first.args) != 2:
                continue
            if not {first.args[0], call.args[0]} <= self._kernels.keys():
                continue
            if kernel := self._kernel(first, call, place):
                self.first_of_pair[self._variable] = operand
                return relax.call_tir(kernel, _operands(first, call, place), call.ty)
        return None

    def _kernel(self, first: Call, second: Call, place: int) -> GlobalVar | None:
        """Return the kernel for two calls; None if they gain nothing by it."""
        one, other = first.args[0], second.args[0]
        if (one, other, place) not in self._made:
            made = None
            kernels = depth_first_kernels(
                self._kernels[one], self._kernels[other], place, self._selector
            )
            if kernels is not None:
                fused = _fused(kernels, first, second, place)
                name = f"{one.name_hint}_{other.name_hint.removeprefix(_PREFIX)}"
                if _can_be_scheduled(fused, self._selector.cpu):
                    made = self.builder_.add_func(fused, name)
            self._made[one, other, place] = made
        return self._made[one, other, place]


def _operands(first: Call, second: Call, place: int) -> list[relax.Expr]:
    """Return the operands of two calls but for the first's result, an operand of the second."""
    others = list(second.args[1].fields)
    del others[place]
    return [*first.args[1].fields, *others]


def _fused(
    kernels: tuple[tirx.PrimFunc, tirx.PrimFunc], first: Call, second: Call, place: int
) -> tirx.PrimFunc:
    """Return one kernel for two, which takes the `_operands` of their calls."""
    builder = relax.BlockBuilder()
    one, other = (
        builder.add_func(kernel.without_attr("global_symbol"), name)
        for kernel, name in zip(kernels, ("first", "second"), strict=True)
    )
    operands, count = _operands(first, second, place), len(first.args[1].fields)
    parameters = _parameters(operands)
    with builder.function("both", parameters, attrs={"Primitive": True}):
        with builder.dataflow():
            between = builder.emit(relax.call_tir(one, parameters[:count], first.ty))
            others = parameters[count:]
            others.insert(place, between)
            output = builder.emit_output(relax.call_tir(other, others, second.ty))
        builder.emit_func_output(output)
    both = builder.get().get_global_var("both")
    parameters = _parameters(operands)
    with builder.function("main", parameters):  # TVM removes what nothing calls
        with builder.dataflow():
            output = builder.emit_output(relax.Call(both, parameters))
        builder.emit_func_output(output)
    module = builder.get()
    module[both] = relax.utils.copy_with_new_vars(module[both])
    return relax.transform.FuseTIR()(module)["both"].without_attr("global_symbol")


def _parameters(operands: Sequence[relax.Expr]) -> list[relax.Var]:
    return [relax.Var(f"operand_{at}", operand.ty) for at, operand in enumerate(operands)]


def _can_be_scheduled(kernel: tirx.PrimFunc, cpu: CpuModel) -> bool:
    """Return whether the rule applies: if not, separate kernels have rules of their own."""
    try:
        schedule_depth_first(UncheckedSchedule(tvm.IRModule({"main": kernel})), cpu)
    except Exception:  # TVM raises several types
        return False
    return True


def depth_first_kernels(
    first: tirx.PrimFunc, second: tirx.PrimFunc, place: int, selector: ConfigSelector
) -> tuple[tirx.PrimFunc, tirx.PrimFunc] | None:
    """Return a convolution and windows over its result, annotated with the plan for one kernel.

    `place` is that of the first kernel's result among the parameters of the second. Each kernel is
    a main block with one epilogue. Returns None for other kernels, and if separate kernels are
    faster.
    """
    if CONVOLUTION not in block_names(first) or not {*WINDOWS} & {*block_names(second)}:
        return None
    convolution = _with_one_epilogue(first, (CONVOLUTION,), selector)
    windows = _with_one_epilogue(second, WINDOWS, selector)
    if (
        convolution is None
        or windows is None
        or not windows.only_main_block_reads(second.params[place])
    ):
        return None
    tile_rows = int(windows.annotations.get(TILE_ROWS, 1))
    plan = depth_first_plan(convolution.decision, windows.decision, tile_rows, selector.cpu)
    if plan is None:
        return None
    convolution.annotate({TILE: [plan.tile.pixels, plan.tile.vectors, plan.tile.lanes]})
    windows.annotate({BANDS: plan.bands})
    return convolution.sch.mod["main"], windows.sch.mod["main"]


@dataclass(frozen=True, slots=True)
class _MainAndEpilogue:
    """A kernel of a main block and an epilogue that takes each of its elements in place."""

    sch: Schedule
    main: SBlockRV
    last: SBlockRV
    decision: ConfigDecision

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The annotations of the main block."""
        found: Mapping[str, Any] = self.sch.get(self.main).annotations
        return found

    def only_main_block_reads(self, parameter: tirx.Var) -> bool:
        """Return whether the main block reads a parameter of the kernel, and the epilogue not."""
        first = find_grouped_inputs_block(self.sch, self.main) or self.main
        reads = [
            any(read.source.same_as(parameter) for read in self.sch.get(block).reads)
            for block in (first, self.last)
        ]
        return reads == [True, False]

    def annotate(self, changed: Mapping[str, Any]) -> None:
        """Annotate the main block; other values of these annotations are replaced."""
        for name, value in changed.items():
            if name in self.annotations:
                self.sch.unannotate(self.main, name)
            self.sch.annotate(self.main, name, value)


def _with_one_epilogue(
    function: tirx.PrimFunc, names: tuple[str, ...], selector: ConfigSelector
) -> _MainAndEpilogue | None:
    """Return a kernel with all that follows its main block inlined into one epilogue.

    The main block has one of the names. Windows test for padding instead of reading a padded copy.
    Returns None if more blocks are left, or if the main block skips taps that only see padding.
    """
    sch = UncheckedSchedule(tvm.IRModule({"main": function}))
    main = find_main_block(sch, names)
    annotations = sch.get(main).annotations
    decision = selector.decisions.get(str(annotations.get(WORKLOAD, "")))
    if decision is None or SKIP_PADDING_TAPS in annotations:
        return None
    try:
        for block in producer_blocks(sch, main) if names == WINDOWS else []:
            if block_name(sch, block) == PADDING:
                sch.compute_inline(block)
        last = inline_into_epilogue(sch, main, selector.cpu)
    except Exception:  # a primitive does not apply: TVM raises several types
        return None
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    grouped = find_grouped_inputs_block(sch, main) is not None
    if len(blocks) != 2 + grouped + len(producer_blocks(sch, main)) or not _is_in_place(
        sch, last, main
    ):
        return None
    return _MainAndEpilogue(sch, main, last, decision)


def _is_in_place(sch: Schedule, last: SBlockRV, main: SBlockRV) -> bool:
    """Return whether a block reads the results of the main block at its own indices only.

    The results may have more columns than the block, which fill the last tile of a row.
    """
    result, sums = (sch.get(block).writes[0].source for block in (last, main))
    axes = [axis.var for axis in sch.get(last).iter_vars]
    (count, height, _, channels), reads = sums.shape, loads_of(sch.get(last).body, sums)
    return (
        len(axes) == len(result.shape) == len(sums.shape)
        and shapes_are_equal([*result.shape[:2], result.shape[3]], [count, height, channels])
        and all(all(map(tirx.Var.same_as, axes, read)) for read in reads)
    )
