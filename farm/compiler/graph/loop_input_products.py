"""Multiply all steps of an input by a weight at once.

A loop over a sequence that an exporter or an importer has unrolled, such as a GRU's, multiplies
each step of its input by the same weight. That product does not depend on the step before: one for
all steps reads the weight once, has rows to tile, and needs one kernel instead of one for each
step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name, shape_of

Array = np.ndarray[Any, Any]
_RESHAPES = ("relax.reshape", "relax.squeeze", "relax.expand_dims")
_FEWEST_STEPS = 4  # with fewer, the kernel that takes the steps apart costs what it saves


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A tensor of [..., steps, ..., features]."""

    tensor: relax.Var
    axis: int
    steps: int


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a sequence."""

    sequence: _Sequence
    index: int


@dataclass(frozen=True, eq=False, slots=True)
class _Product:
    """The product of all steps of a sequence with one weight of [features, results]."""

    sequence: _Sequence
    weight: GenericConst


@mutator
class LoopInputProductRewriter(Rewriter):
    """Replaces products of the steps of a sequence by steps of one product."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._variable: relax.Var | None = None
        self._replaced: dict[relax.Var, tuple[_Product, _Step]] = {}
        self._computed: dict[_Product, relax.Expr] = {}
        for _, function in module.functions_items():
            if isinstance(function, relax.Function):
                self._replaced |= _products_of_most_steps(function)

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.matmul": self._step_of_product}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note which variable a call is bound to: it tells which product is replaced."""
        self._variable = binding.var
        super().visit_var_binding_(binding)

    def _step_of_product(self, call: Call) -> relax.Expr | None:
        if self._variable is None or self._variable not in self._replaced:
            return None
        product, step = self._replaced[self._variable]
        if product not in self._computed:
            tensor = self.visit_expr(product.sequence.tensor)
            self._computed[product] = self.builder_.emit(relax.op.matmul(tensor, product.weight))
        index = relax.const(step.index, "int32")
        taken = relax.op.take(self._computed[product], index, product.sequence.axis, mode="fast")
        return relax.op.reshape(self.builder_.emit(taken), call.ty.shape)


def _products_of_most_steps(
    function: relax.Function,
) -> dict[relax.Var, tuple[_Product, _Step]]:
    """Return the products of steps by the variables that they are bound to.

    Those of sequences of which most steps are multiplied by the same weight.
    """
    bound: dict[relax.Var, Any] = {
        binding.var: binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    }
    found: dict[_Product, dict[relax.Var, _Step]] = defaultdict(dict)
    for variable, value in bound.items():
        if op_name(value) != "relax.matmul":
            continue
        weight, step = constant_value(value.args[1]), _step(value.args[0], bound)
        if weight is None or weight.ndim != 2 or step is None:
            continue
        known = (one for one in found if one.sequence == step.sequence)
        product = next((one for one in known if _is_equal(one.weight, weight)), None)
        found[product or _Product(step.sequence, value.args[1])][variable] = step
    return {
        variable: (product, step)
        for product, steps in found.items()
        if _are_most(product, steps.values())
        for variable, step in steps.items()
    }


def _are_most(product: _Product, steps: Iterable[_Step]) -> bool:
    """Return whether the product of all steps is at most twice of what is needed."""
    distinct = len({step.index for step in steps})
    return distinct >= max(_FEWEST_STEPS, product.sequence.steps / 2)


def _is_equal(constant: GenericConst, value: Array) -> bool:
    other = constant_value(constant)
    return other is not None and other.dtype == value.dtype and np.array_equal(other, value)


def _step(operand: relax.Expr, bound: Mapping[relax.Var, Any]) -> _Step | None:
    """Return the step that an operand of [..., features] is; None for any other."""
    value: Any = bound.get(operand)
    features = _features(operand)
    if features is None:
        return None
    while op_name(value) in _RESHAPES and _features(value.args[0]) == features:
        value = bound.get(value.args[0])
    if op_name(value) == "relax.take":
        return _taken(value)
    if op_name(value) == "relax.strided_slice":
        return _sliced(value)
    return _split(value, bound) if isinstance(value, relax.TupleGetItem) else None


def _taken(call: Call) -> _Step | None:
    index = constant_value(call.args[1])
    if index is None or index.size != 1 or call.attrs.axis is None:
        return None
    return _step_of(call.args[0], int(call.attrs.axis), int(index.item()))


def _sliced(call: Call) -> _Step | None:
    axes, begins, ends = (list(part) for part in call.args[1:4])
    if len(axes) != 1 or not all(isinstance(one, tirx.IntImm) for one in (*begins, *ends)):
        return None
    axis, begin = int(axes[0]), int(begins[0])
    return _step_of(call.args[0], axis, begin) if _extent(call, axis) == 1 else None


def _split(item: relax.TupleGetItem, bound: Mapping[relax.Var, Any]) -> _Step | None:
    split: Any = bound.get(item.tuple_value)
    if op_name(split) != "relax.split":
        return None
    axis = int(split.attrs.axis)
    alike = isinstance(split.attrs.indices_or_sections, int | tirx.IntImm)
    return (
        _step_of(split.args[0], axis, int(item.index))
        if alike and _extent(item, axis) == 1
        else None
    )


def _step_of(tensor: relax.Expr, axis: int, index: int) -> _Step | None:
    extents = shape_of(tensor)
    if not isinstance(tensor, relax.Var) or extents is None or not 0 <= axis < len(extents) - 1:
        return None
    steps = extents[axis]
    if is_dynamic(steps) or not 0 <= index < steps:
        return None
    return _Step(_Sequence(tensor, axis, int(steps)), index)


def _features(tensor: relax.Expr) -> int | None:
    """Return the last extent of a tensor; None if it is open or unknown."""
    return _extent(tensor, -1)


def _extent(tensor: relax.Expr, axis: int) -> int | None:
    extents = shape_of(tensor)
    if not extents or not -1 <= axis < len(extents) or is_dynamic(extents[axis]):
        return None
    return int(extents[axis])
