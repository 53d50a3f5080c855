"""Convert ONNX operators that TVM 0.27 converts incorrectly or has no lowering for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


class IsInf(OnnxOpConverter):  # type: ignore[misc]
    """IsInf with detect_positive and detect_negative, which TVM's converter ignores."""

    @classmethod
    def _impl_v10(
        cls, _builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        data, zero = inputs[0], relax.const(0, str(inputs[0].ty.dtype))
        positive, negative = (
            attributes.get(f"detect_{sign}", 1) for sign in ("positive", "negative")
        )
        infinite = relax.op.isinf(data)
        if positive and negative:
            return infinite
        side = relax.op.greater(data, zero) if positive else relax.op.less(data, zero)
        return (
            relax.op.logical_and(infinite, side)
            if positive or negative
            else relax.op.logical_and(infinite, relax.const(False, "bool"))
        )


class _Hyperbolic(OnnxOpConverter):  # type: ignore[misc]
    """cosh or sinh by exp: TVM has the operators, but no lowering for them."""

    sign = 1.0

    @classmethod
    def _impl_v9(
        cls, _builder: relax.BlockBuilder, inputs: Sequence[Any], _: dict[str, Any], __: Any
    ) -> relax.Expr:
        dtype = str(inputs[0].ty.dtype)
        grows, falls = relax.op.exp(inputs[0]), relax.op.exp(relax.op.negative(inputs[0]))
        half, sign = relax.const(0.5, dtype), relax.const(cls.sign, dtype)
        return relax.op.multiply(half, relax.op.add(grows, relax.op.multiply(sign, falls)))


class Cosh(_Hyperbolic):
    """cosh x = (e^x + e^-x) / 2."""


class Sinh(_Hyperbolic):
    """sinh x = (e^x - e^-x) / 2."""

    sign = -1.0


class _ConverterWithFallback(OnnxOpConverter):  # type: ignore[misc]
    """Base of converters of some forms of an operator; TVM's own converts the others."""

    fallback: type[OnnxOpConverter]

    @classmethod
    def convert_own_form(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any]
    ) -> relax.Expr | None:
        """Return the expression of a form that farm converts; None for all others."""
        raise NotImplementedError

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        """Return the converter for an opset."""
        fallback = cls.fallback.get_converter(opset)

        def convert(
            builder: relax.BlockBuilder,
            inputs: Sequence[Any],
            attributes: dict[str, Any],
            params: Any,
        ) -> relax.Expr:
            own = cls.convert_own_form(builder, inputs, attributes)
            return fallback(builder, inputs, attributes, params) if own is None else own

        return convert


class QuantizeLinear(_ConverterWithFallback):
    """QuantizeLinear by a computed scale without axes, which TVM cannot lower."""

    fallback = onnx_frontend.QuantizeLinear

    @classmethod
    def convert_own_form(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], _: dict[str, Any]
    ) -> relax.Expr | None:
        """Return the quantized tensor of a scale that is one computed number."""
        scale = inputs[1]
        if isinstance(scale, GenericConst) or len(scale.ty.shape) > 0:
            return None
        return cls._by_scalar(builder, inputs[0], scale, inputs[2])

    @classmethod
    def _by_scalar(
        cls,
        builder: relax.BlockBuilder,
        data: relax.Expr,
        scale: relax.Expr,
        zero: relax.Expr | None,
    ) -> relax.Expr:
        """Return round(data / scale) + zero, clipped to the range of the output type."""
        dtype = "uint8" if zero is None else str(zero.ty.dtype)
        steps = relax.op.round(relax.op.divide(data, scale))
        if zero is not None:
            steps = relax.op.add(steps, relax.op.astype(zero, str(data.ty.dtype)))
        limits = np.iinfo(dtype)
        steps = builder.emit(relax.op.clip(builder.emit(steps), int(limits.min), int(limits.max)))
        return relax.op.astype(steps, dtype)


class BatchNormalization(_ConverterWithFallback):
    """BatchNormalization with training_mode=1: it uses the batch's own mean and variance.

    torch exports weight standardization in this form. A model that reads the other outputs, the
    running statistics, has been refused before.
    """

    fallback = onnx_frontend.BatchNormalization

    @classmethod
    def convert_own_form(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any]
    ) -> relax.Expr | None:
        """Return the normalized tensor, and as many outputs as TVM's converter gives."""
        if not attributes.get("training_mode", 0):
            return None
        data, scale, bias = inputs[:3]
        normed = builder.emit(cls._of_batch(builder, data, attributes.get("epsilon", 1e-5)))
        full = [-1, *[1] * (int(data.ty.ndim) - 2)]
        scale, bias = (builder.emit(relax.op.reshape(one, full)) for one in (scale, bias))
        result = relax.op.add(builder.emit(relax.op.multiply(normed, scale)), bias)
        return relax.Tuple([builder.emit(result), *inputs[3:5]])

    @staticmethod
    def _of_batch(builder: relax.BlockBuilder, data: relax.Expr, epsilon: float) -> relax.Expr:
        """Return (x - mean) / sqrt(variance + epsilon) over all axes but the second."""
        axes = [axis for axis in range(int(data.ty.ndim)) if axis != 1]
        given = str(data.ty.dtype)
        if given == "float16":  # the sums would overflow
            data = builder.emit(relax.op.astype(data, "float32"))
        mean = builder.emit(relax.op.mean(data, axes, keepdims=True))
        variance = builder.emit(relax.op.variance(data, axes, keepdims=True))
        small = relax.const(epsilon, str(data.ty.dtype))
        root = builder.emit(relax.op.sqrt(builder.emit(relax.op.add(variance, small))))
        normed = relax.op.divide(builder.emit(relax.op.subtract(data, mean)), root)
        return relax.op.astype(builder.emit(normed), given) if given == "float16" else normed


class MeanVarianceNormalization(OnnxOpConverter):  # type: ignore[misc]
    """(x - mean) / (deviation + 1e-9), by the mean of squared differences.

    TVM subtracts squares of nearly the same size, which leaves few digits.
    """

    @classmethod
    def _impl_v9(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        data, axes = inputs[0], list(attributes.get("axes", (0, 2, 3)))
        mean = builder.emit(relax.op.mean(data, axes, keepdims=True))
        centred = builder.emit(relax.op.subtract(data, mean))
        squares = builder.emit(relax.op.multiply(centred, centred))
        variance = builder.emit(relax.op.mean(squares, axes, keepdims=True))
        small = relax.const(1e-9, str(data.ty.dtype))
        deviation = builder.emit(relax.op.add(builder.emit(relax.op.sqrt(variance)), small))
        return relax.op.divide(centred, deviation)


class RoiAlign(OnnxOpConverter):  # type: ignore[misc]
    """RoiAlign that shifts regions of interest by half a pixel after it scales them, not before.

    Mode "max" is refused before (unsupported).
    """

    @classmethod
    def _impl_v10(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        return cls._convert(builder, inputs, attributes, b"output_half_pixel")

    @classmethod
    def _impl_v16(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        return cls._convert(builder, inputs, attributes, b"half_pixel")

    @classmethod
    def _convert(
        cls,
        builder: relax.BlockBuilder,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        default: bytes,
    ) -> relax.Expr:
        data, rois, batch_indices = inputs
        dtype, scale = str(rois.ty.dtype), attributes.get("spatial_scale", 1.0)
        given = attributes.get("coordinate_transformation_mode", default)
        aligned = given in (b"half_pixel", "half_pixel")
        if aligned:
            rois = relax.op.subtract(rois, relax.const(0.5 / scale, dtype))
        column = builder.emit(relax.op.astype(relax.op.expand_dims(batch_indices, 1), dtype))
        return relax.op.vision.roi_align(
            data,
            builder.emit(relax.op.concat([column, builder.emit(rois)], axis=1)),
            pooled_size=(attributes.get("output_height", 1), attributes.get("output_width", 1)),
            spatial_scale=scale,
            sample_ratio=attributes.get("sampling_ratio", 0),
            aligned=aligned,
            layout="NCHW",
            mode="avg",
        )


class Slice(onnx_frontend.Slice):  # type: ignore[misc]
    """Slice, also with bounds as attributes, as before opset 10."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Any, attributes: dict[str, Any], params: Any
    ) -> relax.Expr:
        bounds = [
            None if attributes.get(name) is None else relax.const(list(attributes[name]), "int64")
            for name in ("starts", "ends", "axes")
        ]
        given = onnx_frontend.onnx_input([inputs[0], *bounds])
        return cls._impl_v13(builder, given, {}, params)

    @classmethod
    def _impl_v10(
        cls, builder: relax.BlockBuilder, inputs: Any, attributes: dict[str, Any], params: Any
    ) -> relax.Expr:
        return cls._impl_v13(builder, inputs, attributes, params)


class Pad(onnx_frontend.Pad):  # type: ignore[misc]
    """Pad as an operator, where TVM's converter makes a loop nest, which has no layout."""

    @classmethod
    def _impl_v2(
        cls, builder: relax.BlockBuilder, inputs: Any, attributes: dict[str, Any], params: Any
    ) -> relax.Expr:
        pads, value = attributes["pads"], attributes.get("value", 0.0)
        before, after = pads[: len(pads) // 2], pads[len(pads) // 2 :]
        mode = attributes.get("mode", b"constant").decode("utf-8")
        result = _padded(inputs[0], before, after, mode, value)
        if result is None:
            return super()._impl_v2(builder, inputs, attributes, params)
        return result

    @classmethod
    def _lower_pad(
        cls,
        builder: relax.BlockBuilder,
        inputs: Any,
        attributes: dict[str, Any],
        params: Any,
        allowed_modes: Collection[str],
    ) -> relax.Expr:
        before, after, value = cls._parse_pads_and_axes(inputs, params)
        mode = attributes.get("mode", b"constant").decode("utf-8")
        allowed = mode in allowed_modes
        result = _padded(inputs[0], before, after, mode, value) if allowed else None
        if result is None:
            return super()._lower_pad(builder, inputs, attributes, params, allowed_modes)
        return result


def _padded(
    data: relax.Expr, before: Sequence[int], after: Sequence[int], mode: str, value: float
) -> relax.Expr | None:
    """Return a padding; None for what TVM's operator does not take.

    It takes no negative widths. Its value is a float64, which cannot be every integer.
    """
    widths = [int(width) for pair in zip(before, after, strict=True) for width in pair]
    floats = str(data.ty.dtype).startswith("float")
    if min(widths, default=0) < 0 or mode not in _PAD_MODES or not floats:
        return None
    return relax.op.nn.pad(data, widths, _PAD_MODES[mode], float(value))


class Sum(onnx_frontend.Sum):  # type: ignore[misc]
    """Sum of any number of tensors, pair by pair, where TVM would stack copies."""

    @classmethod
    def _impl_v1(cls, builder: relax.BlockBuilder, inputs: Sequence[Any], *_: Any) -> relax.Expr:
        return cls._impl_dynamic(builder, inputs)


class Mean(onnx_frontend.Mean):  # type: ignore[misc]
    """Mean of any number of tensors, as `Sum`."""

    @classmethod
    def _impl_v1(cls, builder: relax.BlockBuilder, inputs: Sequence[Any], *_: Any) -> relax.Expr:
        return cls._impl_dynamic(builder, inputs)


class _Pairwise(OnnxOpConverter):  # type: ignore[misc]
    """The largest or smallest of several tensors, pair by pair, where TVM would stack copies.

    Of NaN and a number, TVM's operators return the second operand. Constants therefore come first,
    and those with NaN last, so that NaN stays NaN. Only of two tensors that are not constant is a
    NaN of the first lost.
    """

    @classmethod
    def _impl_v1(
        cls,
        builder: relax.BlockBuilder,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        params: Any,
    ) -> relax.Expr:
        if all(isinstance(one, GenericConst) for one in inputs):  # the result is a constant, too
            return super()._impl_v1(builder, inputs, attributes, params)
        return reduce(cls.binary_op, sorted(inputs, key=_nan_last))


def _nan_last(operand: Any) -> int:
    if not isinstance(operand, GenericConst):
        return 1
    return 2 if np.isnan(operand.value.numpy()).any() else 0


class Max(_Pairwise, onnx_frontend.Max):  # type: ignore[misc]
    """Max of any number of tensors, of any shapes that broadcast."""


class Min(_Pairwise, onnx_frontend.Min):  # type: ignore[misc]
    """Min of any number of tensors, of any shapes that broadcast."""


class TopK(onnx_frontend.TopK):  # type: ignore[misc]
    """TopK whose k is an input since opset 10; with sorted=0, any order is right."""

    @classmethod
    def _impl_v10(
        cls, builder: relax.BlockBuilder, inputs: Any, attributes: dict[str, Any], params: Any
    ) -> relax.Expr:
        return cls._impl_v11(builder, inputs, attributes, params)

    @classmethod
    def _impl_v11(
        cls, builder: relax.BlockBuilder, inputs: Any, attributes: dict[str, Any], params: Any
    ) -> relax.Expr:
        return super()._impl_v11(builder, inputs, {**attributes, "sorted": 1}, params)


CONVERTERS = {
    "TopK": TopK,
    "Max": Max,
    "Min": Min,
    "Sum": Sum,
    "Mean": Mean,
    "Pad": Pad,
    "MeanVarianceNormalization": MeanVarianceNormalization,
    "RoiAlign": RoiAlign,
    "Slice": Slice,
    "BatchNormalization": BatchNormalization,
    "QuantizeLinear": QuantizeLinear,
    "IsInf": IsInf,
    "Cosh": Cosh,
    "Sinh": Sinh,
}
