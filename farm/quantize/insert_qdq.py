"""Insert quantize and dequantize (QDQ) in the form that the compiler computes in integers.

The inputs of these operators are quantized: convolutions and products with constant weights, sums
of two images, and averages over images. All else follows from that, or stays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.graph.quantization.quantized_arithmetic import MOST_PRODUCTS
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import value_at_batch_one
from farm.compiler.ir.relax_rewriter import op_name
from farm.quantize.ranges import quantize_weight_by_given_scales, weight_scales
from farm.types import QuantizeSettings

Array = np.ndarray[Any, Any]
_WEIGHT_AXIS = {"relax.nn.conv2d": 0, "relax.matmul": 1}  # axis of the output channels
_IMAGE = 4  # number of axes
_BEHIND = (
    "add",
    "maximum",
    "minimum",
    "relu",
    "reshape",
    "permute_dims",
    "max_pool2d",
    "flatten",
    "squeeze",
)


@dataclass(frozen=True)
class QuantizationPoint:
    """A tensor of a float model to be quantized, and its description."""

    variable: relax.Var
    name: str


def quantization_points(module: tvm.IRModule) -> list[QuantizationPoint]:
    """Return the tensors to quantize, in the order of their first use."""
    bindings = main_bindings(module)
    bound = {binding.var: binding.value for binding in bindings}
    found: dict[relax.Var, QuantizationPoint] = {}
    for binding in bindings:
        for place in quantized_arguments(binding.value):
            variable = binding.value.args[place]
            found.setdefault(
                variable, QuantizationPoint(variable, describe_tensor(variable, bound))
            )
    return list(found.values())


def quantized_arguments(call: object) -> list[int]:
    """Return the indices of a call's arguments that are to be quantized."""
    name = op_name(call)
    if not isinstance(call, Call) or not name:
        return []
    if name in _WEIGHT_AXIS:
        return (
            [0]
            if isinstance(call.args[0], relax.Var)
            and _is_float(call.args[0])
            and _weight(call) is not None
            else []
        )
    image = int(getattr(call.args[0].ty, "ndim", 0)) == _IMAGE if call.args else False
    if not image or not _is_float(call):
        return []
    if name in ("relax.add", "relax.subtract"):
        both = all(isinstance(one, relax.Var) and str(one.ty) == str(call.ty) for one in call.args)
        return [0, 1] if both else []
    averages = name in ("relax.nn.adaptive_avg_pool2d", "relax.nn.avg_pool2d") or (
        name == "relax.mean" and _spatial(call)
    )
    return [0] if averages and isinstance(call.args[0], relax.Var) else []


def insert_qdq(
    module: tvm.IRModule, scales: Sequence[tuple[float, int]], settings: QuantizeSettings
) -> tvm.IRModule:
    """Return the module with its points quantized and its weights as int8.

    `scales` holds a scale and a zero point for each point.
    """
    inserter = _Inserter(
        module,
        dict(zip((point.variable for point in quantization_points(module)), scales, strict=True)),
        settings,
    )
    result = module.clone()
    result["main"] = inserter.visit_expr(module["main"])
    return result


def add_observed_outputs(module: tvm.IRModule, variables: Sequence[relax.Var]) -> tvm.IRModule:
    """Return the module with these variables of its `main` as additional outputs before its own."""
    main = module["main"]
    (block,) = main.body.blocks
    result = relax.Tuple([*variables, main.body.body])
    output = relax.Var("observed", relax.TupleType([one.ty for one in result.fields]))
    observed = relax.DataflowBlock([*block.bindings, relax.VarBinding(output, result)])
    body = relax.SeqExpr([observed], output)
    changed = module.clone()
    changed["main"] = relax.Function(main.params, body, output.ty, main.is_pure, main.attrs)
    return relax.transform.Normalize()(changed)


def dequantized_points(module: tvm.IRModule) -> list[relax.Var]:
    """Return the points of a quantized module in order: dequantized tensors that are no weights."""
    return [
        binding.var
        for binding in main_bindings(module)
        if op_name(binding.value) == "relax.dequantize"
        and constant_value(binding.value.args[0]) is None
    ]


@mutator
class _Inserter(PyExprMutator):  # type: ignore[misc]
    def __init__(
        self,
        module: tvm.IRModule,
        scales: dict[relax.Var, tuple[float, int]],
        settings: QuantizeSettings,
    ) -> None:
        super().__init__(module)
        self._scales, self._settings = scales, settings
        self._made: dict[relax.Var, relax.Expr] = {}

    def visit_call_(self, call: Call) -> relax.Expr:
        places = quantized_arguments(call)
        weight = _weight(call) if places and call.op.name in _WEIGHT_AXIS else None
        given = list(call.args)
        call = self.visit_expr_post_order(call)
        if not places:
            return call
        arguments = [
            self._dequantized(given[place], one) if place in places else one
            for place, one in enumerate(call.args)
        ]
        if weight is not None:
            arguments[1] = self._weight(weight, _WEIGHT_AXIS[call.op.name])
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)

    def _dequantized(self, original: relax.Var, value: relax.Expr) -> relax.Expr:
        if original not in self._made:
            scale, zero = self._scales[original]
            numbers = (relax.const(scale, "float32"), relax.const(zero, "uint8"))
            whole = self.builder_.emit(
                relax.op.quantize(value, *numbers, axis=0, out_dtype="uint8")
            )
            self._made[original] = self.builder_.emit(relax.op.dequantize(whole, *numbers, axis=0))
        return self._made[original]

    def _weight(self, weight: Array, axis: int) -> relax.Expr:
        scales = weight_scales(weight, axis, self._settings)
        values = quantize_weight_by_given_scales(weight, scales, axis)
        zeros = relax.const(np.zeros(scales.shape, np.int8), "int8")
        return self.builder_.emit(
            relax.op.dequantize(
                relax.const(values, "int8"), relax.const(scales, "float32"), zeros, axis=axis
            )
        )


def _weight(call: Call) -> Array | None:
    """Return the constant float32 weight of a convolution or product that integers can compute.

    Returns None if there is none.
    """
    weight = constant_value(call.args[1])
    axis = _WEIGHT_AXIS[call.op.name]
    if (
        weight is None
        or weight.dtype != np.float32
        or weight.ndim != (_IMAGE if axis == 0 else 2)
        or not np.isfinite(weight).all()
    ):
        return None
    plain = axis == 1 or (call.attrs.data_layout, call.attrs.kernel_layout) == ("NCHW", "OIHW")
    return weight if plain and weight.size // weight.shape[axis] < MOST_PRODUCTS else None


def _spatial(call: Call) -> bool:
    axes = call.attrs.axis
    return axes is not None and sorted(int(axis) % _IMAGE for axis in axes) == [2, 3]


def _is_float(expression: relax.Expr) -> bool:
    return str(getattr(expression.ty, "dtype", "")) == "float32"


def main_bindings(module: tvm.IRModule) -> list[relax.VarBinding]:
    """Return the bindings of a module's `main`."""
    return [binding for block in module["main"].body.blocks for binding in block.bindings]


def describe_tensor(variable: relax.Var, bound: dict[relax.Var, relax.Expr]) -> str:
    """Return the description of a tensor, such as "conv2d 16x8x8"."""
    return f"{_words(variable, bound)} {_extents(variable)}"


def _words(variable: relax.Var, bound: dict[relax.Var, relax.Expr]) -> str:
    """Return the name of the operator that made a tensor, looking through biases and clamps."""
    value = bound.get(variable)
    if value is None:
        return f"input {variable.name}"
    name = (op_name(value) or "value").rpartition(".")[2]
    tensors = [one for one in getattr(value, "args", []) if isinstance(one, relax.Var)]
    return _words(tensors[0], bound) if name in _BEHIND and len(tensors) == 1 else name


def _extents(variable: relax.Var) -> str:
    """Return the extents of one sample; the batch may be open, or be set later."""
    return "x".join(str(value_at_batch_one(extent)) for extent in list(variable.ty.shape)[1:])
