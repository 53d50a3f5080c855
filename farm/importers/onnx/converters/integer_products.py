"""Convert products of bytes and the quantization of their inputs: models quantized dynamically.

A product with a constant weight becomes one of bytes times signed bytes with sums of int32, for
which CPUs have kernels. Zero points are subtracted from the sums:

    sum (a - za) (b - zb) = sum a b - za sum b - zb (sum a - K za)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.pools import with_explicit_pads

Array = np.ndarray[Any, Any]
_MOST_PRODUCTS = (1 << 31) // (255 * 128)  # of bytes, whose sum always fits into an int32


@dataclass(frozen=True, slots=True)
class _SignedWeight:
    """A weight as int8, and the zero point of all or of each output, as int32."""

    values: Array
    zeros: Array


def _signed_weight(weight: relax.Expr, zero: relax.Expr | None) -> _SignedWeight | None:
    """Return a constant weight with constant zero points; None for any other."""
    if not isinstance(weight, GenericConst) or not (zero is None or isinstance(zero, GenericConst)):
        return None
    values = weight.value.numpy()
    zeros = np.zeros(1, np.int32)
    if zero is not None:
        zeros = zero.value.numpy().astype(np.int32).reshape(-1)
    if values.dtype == np.uint8:
        values, zeros = (values.astype(np.int16) - 128).astype(np.int8), zeros - 128
    return _SignedWeight(values, zeros)


class _OfIntegers(OnnxOpConverter):  # type: ignore[misc]
    """Base of operators that sum products of bytes, minus their zero points, in int32."""

    @staticmethod
    def wide(
        builder: relax.BlockBuilder,
        value: relax.Expr,
        zero: relax.Expr | None,
        shape: Sequence[int],
    ) -> relax.Expr:
        """Return a tensor minus its zero point, as int32. `shape` broadcasts the zero point."""
        value = builder.emit(relax.op.astype(value, "int32"))
        if zero is None:
            return value
        numbers = builder.emit(relax.op.astype(zero, "int32"))
        return builder.emit(
            relax.op.subtract(value, builder.emit(relax.op.reshape(numbers, shape)))
        )


class ConvInteger(_OfIntegers):
    """ConvInteger, which TVM lacks.

    The image is padded by its zero point, i.e. by 0 after the zero point has been subtracted.
    """

    @classmethod
    def _impl_v10(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        data, weight, *zeros = inputs
        x_zero, w_zero = ([*zeros, None, None])[:2]
        rank = int(data.ty.ndim)
        kernel = [int(extent) for extent in weight.ty.shape][2:]
        attributes = with_explicit_pads(data, kernel, attributes)
        if rank == len("NCW"):
            image = builder.emit(relax.op.expand_dims(data, 2))
            made = cls._impl_v10(
                builder, [image, _of_height_one(builder, weight), *zeros], _in_2d(attributes), None
            )
            return relax.op.squeeze(builder.emit(made), [2])
        if rank == len("NCHW"):
            of_bytes = cls._of_bytes(builder, data, weight, x_zero, w_zero, attributes)
            if of_bytes is not None:
                return of_bytes
        elif rank != len("NCDHW"):
            raise ValueError(f"ConvInteger over {rank - 2} axes")
        ours = cls.wide(builder, data, x_zero, [1] * rank)
        each = w_zero is not None and int(w_zero.ty.ndim) == 1 and int(w_zero.ty.shape[0]) > 1
        theirs = cls.wide(builder, weight, w_zero, [-1 if each else 1, *[1] * (rank - 1)])
        convolve = relax.op.nn.conv2d if rank == len("NCHW") else relax.op.nn.conv3d
        return convolve(
            ours,
            theirs,
            strides=attributes.get("strides", 1),
            padding=attributes.get("pads", 0),
            dilation=attributes.get("dilations", 1),
            groups=attributes.get("group", 1),
            out_dtype="int32",
        )

    @staticmethod
    def _of_bytes(
        builder: relax.BlockBuilder,
        data: relax.Expr,
        weight: relax.Expr,
        data_zero: relax.Expr | None,
        weight_zero: relax.Expr | None,
        attributes: dict[str, Any],
    ) -> relax.Expr | None:
        """Return a convolution by a constant weight with constant zero points; None for any other.

        What pads the image is its zero point, which is known when the model runs.
        """

        def emit(value: relax.Expr) -> relax.Expr:
            return builder.emit(value)

        found = _signed_weight(weight, weight_zero)
        extents: list[Any] = [getattr(extent, "value", None) for extent in data.ty.shape]
        if (
            found is None
            or np.prod(found.values.shape[1:]) >= _MOST_PRODUCTS
            or (data_zero is not None and not _is_one_number(data_zero))
            or None in extents[2:]
        ):
            return None
        op, padding = relax.op, [int(one) for one in attributes.get("pads", [0] * 4)]
        zero = None
        if data_zero is not None:
            zero = emit(op.reshape(emit(op.astype(data_zero, "int32")), [1, 1, 1, 1]))
            if any(padding):
                top, left, bottom, right = padding
                around = ((0, 0), (0, 0), (top, bottom), (left, right))
                inside = np.pad(np.ones([1, 1, *extents[2:]], np.bool_), around)
                data = emit(op.nn.pad(data, [one for pair in around for one in pair]))
                fill = emit(op.reshape(data_zero, [1, 1, 1, 1]))
                data = emit(op.where(relax.const(inside, "bool"), data, fill))
                padding = [0] * 4
        sums = emit(
            op.nn.conv2d(
                data,
                relax.const(found.values, "int8"),
                strides=attributes.get("strides", 1),
                padding=padding,
                dilation=attributes.get("dilations", 1),
                groups=attributes.get("group", 1),
                out_dtype="int32",
            )
        )
        if zero is not None:
            channels = found.values.sum((1, 2, 3), dtype=np.int32).reshape(1, -1, 1, 1)
            sums = emit(op.subtract(sums, emit(op.multiply(zero, relax.const(channels, "int32")))))
        if found.zeros.any():
            windows = _window_sums(builder, data, found.values.shape, padding, attributes)
            if zero is not None:
                taps = relax.const(np.array([found.values[0].size], np.int32), "int32")
                windows = emit(op.subtract(windows, emit(op.multiply(zero, taps))))
            of_each = relax.const(found.zeros.reshape(1, -1, 1, 1), "int32")
            sums = emit(op.subtract(sums, emit(op.multiply(windows, of_each))))
        return sums


class MatMulInteger(OnnxOpConverter):  # type: ignore[misc]
    """MatMulInteger with a constant weight of [K, N]; TVM's converter widens both to int32."""

    @classmethod
    def _impl_v10(
        cls,
        builder: relax.BlockBuilder,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        params: Any,
    ) -> relax.Expr:
        data, weight, *zeros = inputs
        data_zero, weight_zero = [*zeros, None, None][:2]
        found = _signed_weight(weight, weight_zero)
        if (
            found is None
            or found.values.ndim != 2
            or len(found.values) >= _MOST_PRODUCTS
            or data.ty.ndim < 2
            or (data_zero is not None and not _is_one_number(data_zero))
        ):
            general = onnx_frontend.MatMulInteger._impl_v10
            return general(builder, inputs, attributes, params)
        return cls._product(builder, data, data_zero, found)

    @staticmethod
    def _product(
        builder: relax.BlockBuilder,
        data: relax.Expr,
        data_zero: relax.Expr | None,
        weight: _SignedWeight,
    ) -> relax.Expr:
        """Return a product with a weight of [K, N], of which all or each column has a zero."""

        def emit(value: relax.Expr) -> relax.Expr:
            return builder.emit(value)

        op, const = relax.op, relax.const
        sums = emit(op.matmul(data, const(weight.values, "int8"), out_dtype="int32"))
        zero = None
        if data_zero is not None:
            zero = emit(op.reshape(emit(op.astype(data_zero, "int32")), [1]))
            columns = weight.values.sum(0, dtype=np.int32)
            sums = emit(op.subtract(sums, emit(op.multiply(zero, const(columns, "int32")))))
        if weight.zeros.any():
            rows = emit(op.sum(emit(op.astype(data, "int32")), -1, keepdims=True))
            if zero is not None:
                depth = const(np.array([len(weight.values)], np.int32), "int32")
                rows = emit(op.subtract(rows, emit(op.multiply(zero, depth))))
            part = emit(op.multiply(rows, const(weight.zeros, "int32")))
            sums = emit(op.subtract(sums, part))
        return sums


class DynamicQuantizeLinear(OnnxOpConverter):  # type: ignore[misc]
    """DynamicQuantizeLinear with ONNX Runtime's scale of zeros; TVM's divides by 0 there."""

    @classmethod
    def _impl_v11(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], _: dict[str, Any], __: Any
    ) -> relax.Expr:
        def emit(value: relax.Expr) -> relax.Expr:
            return builder.emit(value)

        def const(value: float) -> relax.Expr:
            return relax.const(value, "float32")

        op, data = relax.op, inputs[0]
        largest = emit(op.maximum(emit(op.max(data)), const(0)))
        least = emit(op.minimum(emit(op.min(data)), const(0)))
        extent = emit(op.subtract(largest, least))
        # ONNX Runtime's scale of zeros is 1
        some = emit(op.where(emit(op.equal(extent, const(0))), const(255), extent))
        scale = emit(op.divide(some, const(255)))
        zero = emit(op.clip(emit(op.negative(emit(op.divide(least, scale)))), 0, 255))
        zero = emit(op.astype(emit(op.round(zero)), "uint8"))
        quantized = emit(op.quantize(data, scale, zero, axis=0, out_dtype="uint8"))
        return relax.Tuple([quantized, scale, zero])


def _window_sums(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    weight: Sequence[int],
    padding: Sequence[int],
    attributes: dict[str, Any],
) -> relax.Expr:
    """Return the sum of the inputs in each window of a convolution, as int32 [N, CO, H, W].

    `weight` is the shape of the weight, [CO, CI / groups, KH, KW]. With one group all channels have
    the same sum, and the result is [N, 1, H, W].
    """

    def emit(value: relax.Expr) -> relax.Expr:
        return builder.emit(value)

    op, (outputs, within, *kernel) = relax.op, weight
    groups = int(attributes.get("group", 1))
    batch, _, *image = data.ty.shape
    wide = emit(op.astype(data, "int32"))
    parted = emit(op.reshape(wide, [batch, groups, within, *image])) if within > 1 else wide
    of_groups = emit(op.sum(parted, 2)) if within > 1 else wide
    sums = emit(
        op.nn.conv2d(
            of_groups,
            relax.const(np.ones([groups, 1, *kernel], np.int32), "int32"),
            strides=attributes.get("strides", 1),
            padding=list(padding),
            dilation=attributes.get("dilations", 1),
            groups=groups,
            out_dtype="int32",
        )
    )
    return emit(op.repeat(sums, outputs // groups, axis=1)) if groups > 1 else sums


def _of_height_one(builder: relax.BlockBuilder, weight: relax.Expr) -> relax.Expr:
    """Return a weight of [O, I, W] as [O, I, 1, W]; a constant stays one."""
    if isinstance(weight, GenericConst):
        values = weight.value.numpy()
        return relax.const(values[:, :, None], str(values.dtype))
    return builder.emit(relax.op.expand_dims(weight, 2))


def _in_2d(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a convolution of signals for images of height 1."""
    begin, end = attributes.get("pads", (0, 0))
    along: dict[str, Any] = {
        name: [1, *attributes[name]] for name in ("strides", "dilations") if name in attributes
    }
    return {**attributes, **along, "pads": [0, begin, 0, end]}


def _is_one_number(value: relax.Expr) -> bool:
    return all(int(extent) == 1 for extent in value.ty.shape)


CONVERTERS = {
    "ConvInteger": ConvInteger,
    "DynamicQuantizeLinear": DynamicQuantizeLinear,
    "MatMulInteger": MatMulInteger,
}
