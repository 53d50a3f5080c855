"""Converters of ONNX operators that TVM 0.27 has none for, or has for some inputs only, as https://onnx.ai/onnx/operators defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

Inputs = Sequence[Any]
Attributes = dict[str, Any]


class Celu(OnnxOpConverter):  # type: ignore[misc]
    @classmethod
    def _impl_v12(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        zero, one, alpha = (relax.const(value, dtype) for value in (0, 1, attributes.get("alpha", 1.0)))
        falls = relax.op.multiply(alpha, relax.op.subtract(relax.op.exp(relax.op.divide(data, alpha)), one))
        return builder.emit(relax.op.add(relax.op.maximum(data, zero), relax.op.minimum(falls, zero)))


class Pow(OnnxOpConverter):  # type: ignore[misc]
    """The result has the type of the base, whatever the exponent's."""

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        theirs = onnx_frontend.Pow.get_converter(opset)

        def convert(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any) -> relax.Expr:
            base, exponent = (str(one.ty.dtype) for one in inputs[:2])
            if base == exponent:
                return theirs(builder, inputs, attributes, params)
            if "float" not in base and "float" in exponent:
                raise NotImplementedError(f"Pow of {base} by {exponent}; cast the base to {exponent}")
            return theirs(builder, [inputs[0], builder.emit(relax.op.astype(inputs[1], base))], attributes, params)

        return convert


class LpNormalization(OnnxOpConverter):  # type: ignore[misc]
    """By the sum of magnitudes or of squares along an axis; zeros stay zeros."""

    @classmethod
    def _impl_v1(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        data, axis = inputs[0], attributes.get("axis", -1)
        if attributes.get("p", 2) == 1:
            norm = relax.op.sum(relax.op.abs(data), axis, True)
        else:
            norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(data, data), axis, True))
        norm, zero = builder.emit(norm), relax.const(0, str(data.ty.dtype))
        return builder.emit(relax.op.where(relax.op.equal(norm, zero), zero, relax.op.divide(data, norm)))


class CumProd(OnnxOpConverter):  # type: ignore[misc]
    @classmethod
    def _impl_v26(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        data, axis = inputs[0], int(_constant(inputs[1], "CumProd", "axis"))
        reverse = attributes.get("reverse", 0)
        data = builder.emit(relax.op.flip(data, axis)) if reverse else data
        made = builder.emit(relax.op.cumprod(data, axis, exclusive=bool(attributes.get("exclusive", 0))))
        return builder.emit(relax.op.flip(made, axis)) if reverse else made


class ReverseSequence(OnnxOpConverter):  # type: ignore[misc]
    """Each sequence turned round within its length; what is after it stays."""

    @classmethod
    def _impl_v10(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        data, lengths = inputs[0], builder.emit(relax.op.astype(inputs[1], "int64"))
        time_axis, shape = attributes.get("time_axis", 0), [int(extent) for extent in inputs[0].ty.shape]
        places = [1] * len(shape)
        places[1 - time_axis] = shape[1 - time_axis]
        lengths = builder.emit(relax.op.reshape(lengths, places))
        steps = np.arange(shape[time_axis]).reshape([-1 if axis == time_axis else 1 for axis in range(len(shape))])
        step = relax.const(steps.astype(np.int64), "int64")
        turned = relax.op.subtract(relax.op.subtract(lengths, relax.const(1, "int64")), step)
        index = builder.emit(relax.op.where(relax.op.less(step, lengths), turned, step))
        return builder.emit(relax.op.gather_elements(data, builder.emit(relax.op.broadcast_to(index, shape)), time_axis))


class Dft(OnnxOpConverter):  # type: ignore[misc]
    """The discrete Fourier transform, as products with the matrices of its sines and cosines."""

    @classmethod
    def _impl_v17(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        return cls._transform(builder, inputs, attributes, attributes.get("axis", 1))

    @classmethod
    def _impl_v20(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        axis = -2 if len(inputs) < 3 or inputs[2] is None else int(_constant(inputs[2], "DFT", "axis"))
        return cls._transform(builder, inputs, attributes, axis)

    @classmethod
    def _transform(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, axis: int) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        inverse, one_sided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
        if inverse and one_sided:
            raise NotImplementedError("DFT with inverse=1 and onesided=1")
        shape = [int(extent) for extent in data.ty.shape]
        axis %= len(shape)
        count = int(_constant(inputs[1], "DFT", "dft_length")) if len(inputs) > 1 and inputs[1] is not None else shape[axis]
        present = min(count, shape[axis])  # what is cut off or filled up with zeros is left out of the sums
        parts = [
            builder.emit(relax.op.strided_slice(data, [axis, len(shape) - 1], [0, part], [present, part + 1])) for part in range(shape[-1])
        ]
        last = [*(other for other in range(len(shape) - 1) if other != axis), axis]
        parts = [builder.emit(relax.op.permute_dims(relax.op.squeeze(part, [-1]), last)) for part in parts]
        angles = 2 * np.pi * np.outer(np.arange(present), np.arange(count // 2 + 1 if one_sided else count)) / count
        scale = 1 / count if inverse else 1.0
        cosines, sines = (relax.const((scale * function(angles)).astype(dtype)) for function in (np.cos, np.sin))
        real, imaginary = (relax.op.matmul(parts[0], matrix) for matrix in (cosines, sines))
        if not inverse:
            imaginary = relax.op.negative(imaginary)
        if len(parts) > 1:
            with_sines, with_cosines = (relax.op.matmul(parts[1], matrix) for matrix in (sines, cosines))
            real = relax.op.subtract(real, with_sines) if inverse else relax.op.add(real, with_sines)
            imaginary = relax.op.add(imaginary, with_cosines)
        back = [last.index(other) for other in range(len(shape) - 1)]
        return builder.emit(relax.op.stack([builder.emit(relax.op.permute_dims(builder.emit(one), back)) for one in (real, imaginary)], -1))


class ConvTranspose(OnnxOpConverter):  # type: ignore[misc]
    """With output_shape, which says the padding in another way; the rest is TVM's."""

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        theirs = onnx_frontend.ConvTranspose.get_converter(opset)

        def convert(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any) -> relax.Expr:
            if "output_shape" in attributes:
                attributes = {**attributes, **cls._padding(inputs, attributes)}
                attributes = {name: value for name, value in attributes.items() if name not in ("output_shape", "auto_pad")}
            return theirs(builder, inputs, attributes, params)

        return convert

    @classmethod
    def _padding(cls, inputs: Inputs, attributes: Attributes) -> Attributes:
        lengths, kernel = ([int(extent) for extent in one.ty.shape][2:] for one in inputs[:2])
        rank = len(lengths)
        strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
        more, wanted = attributes.get("output_padding") or [0] * rank, list(attributes["output_shape"])[-rank:]
        mode = attributes.get("auto_pad", b"NOTSET")
        upper = (mode.decode() if isinstance(mode, bytes) else mode) == "SAME_UPPER"
        begin, end, more = [], [], list(more)
        for axis in range(rank):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            total = strides[axis] * (lengths[axis] - 1) + more[axis] + reach - wanted[axis]
            if total < 0:  # what is missing is added at the end
                more[axis], total = more[axis] - total, 0
            if more[axis] >= max(strides[axis], dilations[axis]):
                raise NotImplementedError(f"ConvTranspose with an output_shape of {wanted}, which is more than strides and kernel give")
            begin.append(total // 2 if upper else total - total // 2)
            end.append(total - begin[-1])
        return {"pads": [*begin, *end], "output_padding": more}


def _constant(value: Any, operator: str, name: str) -> Any:
    if not isinstance(value, GenericConst):
        raise NotImplementedError(f"{operator} whose {name} is not constant")
    return value.value.numpy()


CONVERTERS = {
    "Celu": Celu,
    "Pow": Pow,
    "LpNormalization": LpNormalization,
    "CumProd": CumProd,
    "ReverseSequence": ReverseSequence,
    "DFT": Dft,
    "ConvTranspose": ConvTranspose,
}
