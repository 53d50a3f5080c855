"""Compute quantized models in integers.

Int32 sums and one rescaling between dequantize and quantize.

    dequantize -> conv2d, matmul, mean, average pool, add, multiply, concat, clamp -> quantize

All quantizers' models have this one form (QDQ) here. Convolutions and products with constant
weights become int8 ones with int32 sums, zero points and biases become a constant that is added to
the sums, and clamps become the bounds of the result. If a result is not quantized again, the sums
become float32. All other operators in between stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.constant_folding import ConstantFolder
from farm.compiler.graph.quantization import quantized_arithmetic
from farm.compiler.graph.quantization.qdq_to_float import (
    DEQUANTIZE,
    QUANTIZE,
    BiasDequantizer,
    QdqRewriterBase,
    RemainingQdqLowerer,
    has_qdq,
)
from farm.compiler.graph.quantization.quantized_arithmetic import (
    BYTES,
    MOST_PRODUCTS,
    QuantizationParameters,
    QuantizedTensor,
    ScaledAccumulators,
)
from farm.compiler.ir.relax_rewriter import Rule, op_name, rewriter_pass

Array = np.ndarray[Any, Any]
_MOVES = (  # they take a tensor of any type, and give elements of it
    *(
        "relax.reshape",
        "relax.permute_dims",
        "relax.flatten",
        "relax.squeeze",
        "relax.expand_dims",
        "relax.strided_slice",
    ),
    *("relax.nn.max_pool2d", "relax.broadcast_to"),
)

_KERNELS = {
    "NCHW": ("OIHW",),
    "NHWC": ("HWIO", "HWOI"),
}  # layouts of weights, by the data's; the first is what they become


@tvm.transform.module_pass(opt_level=0, name="farm.Integers")
class Int8Rewriter:
    """Rewrites quantized operators in integers, remaining quantize and dequantize as arithmetic."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module after this pass."""
        if not has_qdq(module):
            return module
        transform = relax.transform
        stages = [
            one
            for name, rewriter in (
                ("Biases", BiasDequantizer),
                ("Sums", _Folder),
                ("Rest", RemainingQdqLowerer),
            )
            for one in (
                rewriter_pass(f"farm.{name}", rewriter),
                ConstantFolder(),
                transform.DeadCodeElimination(),
            )
        ]
        return tvm.transform.Sequential(stages)(module)


@mutator
class _Folder(QdqRewriterBase):
    """Replaces float32 arithmetic by integer arithmetic; the replaced operators are dead code."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._sums: dict[
            relax.Expr, ScaledAccumulators
        ] = {}  # by the sums as float32, before they are multiplied

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            "relax.nn.conv2d": self._convolution,
            "relax.matmul": self._product,
            "relax.mean": self._mean,
            "relax.nn.adaptive_avg_pool2d": self._global_pool,
            "relax.add": self._bias,
            QUANTIZE: self._quantize,
            **dict.fromkeys(_MOVES, self._move),
        }

    def _convolution(self, call: Call) -> relax.Expr | None:
        given, data, layout, kernel = (
            call.attrs,
            self.quantized(call.args[0]),
            call.attrs.data_layout,
            call.attrs.kernel_layout,
        )
        weight = (
            self._weight(call.args[1], kernel.index("O"))
            if kernel in _KERNELS.get(layout, ())
            else None
        )
        if (
            data is None
            or weight is None
            or given.out_layout not in ("", layout)
            or str(call.ty.dtype) != "float32"
        ):
            return None
        values, scale = weight
        value, padding, zero = (
            data.value,
            [int(extent) for extent in given.padding],
            data.scale.zero,
        )
        if zero and any(padding):
            around = {"H": padding[::2], "W": padding[1::2]}
            widths = [width for axis in layout for width in around.get(axis, (0, 0))]
            value, padding = (
                self.builder_.emit(relax.op.nn.pad(value, widths, "constant", zero)),
                [0] * 4,
            )
        usual = _KERNELS[layout][0]
        values = np.ascontiguousarray(values.transpose([kernel.index(axis) for axis in usual]))
        sums = relax.op.nn.conv2d(
            value,
            relax.const(values, "int8"),
            given.strides,
            padding,
            given.dilation,
            given.groups,
            layout,
            usual,
            out_dtype="int32",
        )
        offset = -zero * values.astype(np.int64).sum(
            tuple(place for place, axis in enumerate(usual) if axis != "O")
        )
        channels = [-1 if axis == "C" else 1 for axis in layout]
        return self._noted(
            sums, offset.reshape(channels), data.scale.scale * scale.reshape(channels)
        )

    def _product(self, call: Call) -> relax.Expr | None:
        data, weight = self.quantized(call.args[0]), self._weight(call.args[1], 1)
        if data is None or weight is None or weight[0].ndim != 2 or str(call.ty.dtype) != "float32":
            return None
        values, scale = weight
        sums = relax.op.matmul(data.value, relax.const(values, "int8"), out_dtype="int32")
        return self._noted(
            sums,
            -data.scale.zero * values.astype(np.int64).sum(0),
            data.scale.scale * scale.reshape(-1),
        )

    def _weight(self, expression: relax.Expr, axis: int) -> tuple[Array, Array] | None:
        """Return a constant weight as int8 and its scales: one, or one per index of the axis.

        None for any other expression, or if a zero point is not 0.
        """
        call = self.called(expression, DEQUANTIZE)
        values = self.value(call.args[0]) if call is not None else None
        numbers = self.numbers(call) if values is not None else None
        if (
            call is None
            or values is None
            or numbers is None
            or str(values.dtype) not in BYTES
            or values.ndim < 2
        ):
            return None
        scale, zero = numbers[0].astype(np.float64), numbers[1].astype(np.int64)
        if values.dtype == np.uint8:
            values, zero = (values.astype(np.int16) - 128).astype(np.int8), zero - 128
        own_axis = scale.size == 1 or int(call.attrs.axis) % values.ndim == axis
        few = values.size // values.shape[axis] < MOST_PRODUCTS
        return (values, scale) if own_axis and few and not zero.any() else None

    def _mean(self, call: Call) -> relax.Expr | None:
        axes = call.attrs.axis
        return (
            None
            if axes is None
            else self._averaged(call, [int(axis) for axis in axes], bool(call.attrs.keepdims))
        )

    def _global_pool(self, call: Call) -> relax.Expr | None:
        one = call.attrs.layout == "NCHW" and [
            int(extent) for extent in call.attrs.output_size or ()
        ] == [1, 1]
        return self._averaged(call, [2, 3], True) if one else None

    def _averaged(self, call: Call, axes: list[int], keep: bool) -> relax.Expr | None:
        data, shape = self.quantized(call.args[0]), getattr(call.args[0].ty, "shape", None)
        if (
            data is None
            or shape is None
            or not all(isinstance(shape[axis], tvm.tirx.IntImm) for axis in axes)
        ):
            return None
        count = int(np.prod([int(shape[axis]) for axis in axes]))
        if count >= MOST_PRODUCTS:
            return None
        wide = self.builder_.emit(relax.op.astype(data.value, "int32"))
        return self._noted(
            relax.op.sum(wide, axes, keep),
            np.asarray(-count * data.scale.zero),
            np.asarray(data.scale.scale / count, np.float64),
        )

    def _noted(self, sums: relax.Expr, offset: Array, factor: Array) -> relax.Expr:
        return self._real(
            ScaledAccumulators(
                self.builder_.emit(sums),
                np.asarray(offset, np.int32),
                np.asarray(factor, np.float64),
            )
        )

    def _real(self, sums: ScaledAccumulators) -> relax.Expr:
        result = quantized_arithmetic.dequantize_accumulators(self.builder_, sums)
        self._sums[result.args[0]] = sums
        return result

    def _sums_of(self, expression: relax.Expr) -> ScaledAccumulators | None:
        call = self.called(expression, "relax.multiply")
        return None if call is None else self._sums.get(call.args[0])

    def _bias(self, call: Call) -> relax.Expr | None:
        for one, other in (call.args, reversed(call.args)):
            sums, summand = self._sums_of(one), self.value(other)
            if (
                sums is None
                or summand is None
                or summand.dtype != np.float32
                or not np.isfinite(summand).all()
            ):
                continue
            by_channel = np.broadcast_shapes(summand.shape, sums.offset.shape) in (
                sums.offset.shape,
                summand.shape,
            )
            if (
                by_channel
                and summand.size in (1, sums.offset.size)
                and (total := sums.plus(summand.astype(np.float64))) is not None
            ):
                return self._real(total)
        return None

    def _move(self, call: Call) -> relax.Expr | None:
        weight, data = self._moved_weight(call), self.quantized(call.args[0])
        if weight is not None or data is None:
            return weight
        moved = self.builder_.emit(_with_data(call, data.value))
        return _dequantized(moved, data.scale)

    def _moved_weight(self, call: Call) -> relax.Expr | None:
        inner = self.called(call.args[0], DEQUANTIZE)
        if inner is None or (values := self.value(inner.args[0])) is None or values.ndim < 2:
            return None
        before = int(inner.attrs.axis) % values.ndim
        axis: int | None = None
        if call.op.name == "relax.permute_dims":
            axes = (
                [*range(values.ndim)][::-1]
                if call.attrs.axes is None
                else [int(axis) for axis in call.attrs.axes]
            )
            values, axis = values.transpose(axes), axes.index(before)
        elif call.op.name == "relax.reshape" and isinstance(call.ty.shape, relax.ShapeExpr):
            shape = [int(extent) for extent in call.ty.shape]
            values, axis = values.reshape(shape), _same_axis(values.shape, shape, before)
        if axis is None:
            return None
        return relax.op.dequantize(
            relax.const(np.ascontiguousarray(values), str(values.dtype)),
            inner.args[1],
            inner.args[2],
            axis,
        )

    def _quantize(self, call: Call) -> relax.Expr | None:
        to = self.scale(call, str(call.ty.dtype))
        return (
            None
            if to is None or str(call.args[0].ty.dtype) != "float32"
            else self._as(call.args[0], to)
        )

    def _as(self, expression: relax.Expr, to: QuantizationParameters) -> relax.Expr:
        """Return a float32 tensor as integers of a scale, computed from integers if possible."""
        inner, low, high = self._clamped(expression)
        arguments = (to, low, high)
        if (sums := self._sums_of(inner)) is not None:
            return quantized_arithmetic.requantize_accumulators(self.builder_, sums, *arguments)
        if (data := self.quantized(inner)) is not None:
            return self._requantized(data, *arguments)
        call = self.producer(inner)
        name = op_name(call)
        if call is not None and name in ("relax.add", "relax.subtract", "relax.multiply"):
            left, right = (self.quantized(argument) for argument in call.args)
            if left is not None and right is not None:
                if name == "relax.multiply":
                    return quantized_arithmetic.multiply_and_requantize(
                        self.builder_, left, right, *arguments
                    )
                return quantized_arithmetic.add_and_requantize(
                    self.builder_,
                    [(left, 1.0), (right, 1.0 if name == "relax.add" else -1.0)],
                    *arguments,
                )
        if (
            call is not None
            and name == "relax.nn.avg_pool2d"
            and (data := self.quantized(call.args[0])) is not None
        ):
            # Sums of whole numbers are exact in float32.
            pooled = self.builder_.emit(
                _with_data(call, quantized_arithmetic.subtract_zero_point(self.builder_, data))
            )
            return quantized_arithmetic.scale_and_requantize(
                self.builder_, pooled, data.scale.scale, *arguments
            )
        if (
            (low, high) == (-np.inf, np.inf)
            and call is not None
            and name in (*_MOVES, "relax.concat")
        ):
            return self._moved(call, to)
        return quantized_arithmetic.quantize_float32(self.builder_, expression, to)

    def _moved(self, call: Call, to: QuantizationParameters) -> relax.Expr:
        """Quantize first, then apply the view or move."""
        if call.op.name != "relax.concat":
            return _with_data(call, self.builder_.emit(self._as(call.args[0], to)))
        parts = [self.builder_.emit(self._as(part, to)) for part in self.bound(call.args[0]).fields]
        return relax.op.concat(parts, call.attrs.axis)

    def _requantized(
        self, data: QuantizedTensor, to: QuantizationParameters, low: float, high: float
    ) -> relax.Expr:
        if data.scale != to:
            return quantized_arithmetic.add_and_requantize(
                self.builder_, [(data, 1.0)], to, low, high
            )
        value, (first, last) = data.value, to.bounds(low, high)
        if first > to.limits[0]:
            value = self.builder_.emit(relax.op.maximum(relax.const(first, to.dtype), value))
        if last < to.limits[1]:
            value = self.builder_.emit(relax.op.minimum(relax.const(last, to.dtype), value))
        return value

    def _clamped(self, expression: relax.Expr) -> tuple[relax.Expr, float, float]:
        """Return the operand of a chain of clamps and their combined bounds."""
        low, high = -np.inf, np.inf
        while (found := self._clamp(expression)) is not None:
            expression, first, last = found
            low, high = min(max(first, low), high), max(min(last, high), low)
        return expression, low, high

    def _clamp(self, expression: relax.Expr) -> tuple[relax.Expr, float, float] | None:
        call = self.producer(expression)
        name = op_name(call)
        if call is not None and name == "relax.nn.relu":
            return call.args[0], 0.0, np.inf
        if call is None or name not in ("relax.maximum", "relax.minimum"):
            return None
        for one, other in (call.args, reversed(call.args)):
            bound = self.value(other)
            if (
                bound is not None
                and bound.size == 1
                and bound.ndim <= one.ty.ndim  # the shape of the result is that of `one`
                and not np.isnan(bound).any()
            ):
                number = float(bound.reshape(()))
                return (one, number, np.inf) if name == "relax.maximum" else (one, -np.inf, number)
        return None


def _same_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Return the index of an axis after a reshape; None if the reshape splits or merges it."""
    in_front = math.prod(before[:axis])
    places = [
        place
        for place, extent in enumerate(after)
        if extent == before[axis] and math.prod(after[:place]) == in_front
    ]
    return places[0] if places else None


def _with_data(call: Call, data: relax.Expr) -> Call:
    return relax.Call(call.op, [data, *call.args[1:]], call.attrs, call.ty_args)


def _dequantized(value: relax.Expr, scale: QuantizationParameters) -> relax.Expr:
    return relax.op.dequantize(
        value, relax.const(scale.scale, "float32"), relax.const(scale.zero, scale.dtype)
    )
