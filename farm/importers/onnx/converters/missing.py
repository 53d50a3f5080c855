"""Convert ONNX operators that TVM 0.27 does not convert, or only for some inputs.

The definitions: https://onnx.ai/onnx/operators, and, of the domain com.microsoft,
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.fourier import fourier_transform, inverse_transform_to_reals

Inputs = Sequence[Any]
Attributes = dict[str, Any]


class Celu(OnnxOpConverter):  # type: ignore[misc]
    """Celu: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""

    @classmethod
    def _impl_v12(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        zero, one, alpha = (
            relax.const(value, dtype) for value in (0, 1, attributes.get("alpha", 1.0))
        )
        falls = relax.op.multiply(
            alpha, relax.op.subtract(relax.op.exp(relax.op.divide(data, alpha)), one)
        )
        return builder.emit(
            relax.op.add(relax.op.maximum(data, zero), relax.op.minimum(falls, zero))
        )


class QuickGelu(OnnxOpConverter):  # type: ignore[misc]
    """QuickGelu of ONNX Runtime: x * sigmoid(alpha * x)."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, given = inputs[0], str(inputs[0].ty.dtype)
        alpha = np.array(attributes.get("alpha", 1.702), given)
        if given == "float16":  # ONNX Runtime computes in float32, alpha being a float16
            data = builder.emit(relax.op.astype(data, "float32"))
        gate = relax.op.sigmoid(relax.op.multiply(relax.const(alpha, str(data.ty.dtype)), data))
        made = relax.op.multiply(data, gate)
        return builder.emit(relax.op.astype(made, given) if given == "float16" else made)


class BitCast(OnnxOpConverter):  # type: ignore[misc]
    """BitCast: the same bits as another type of the same width; Relax has no operator for it."""

    @classmethod
    def _impl_v26(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        source = str(inputs[0].ty.dtype)
        wanted = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]).name
        if source == wanted:
            return inputs[0]
        if source == "bool":  # one bit in LLVM; its byte in memory is 0 or 1
            return builder.emit(relax.op.astype(inputs[0], wanted))
        return builder.emit(
            builder.call_te(_same_bits, inputs[0], wanted, primfunc_name_hint="bit_cast")
        )


def _same_bits(data: te.Tensor, dtype: str) -> te.Tensor:
    """Return the bits of each element of `data` as an element of `dtype`."""
    return te.compute(data.shape, lambda *at: tirx.reinterpret(dtype, data[at]), name="bit_cast")


class Pow(OnnxOpConverter):  # type: ignore[misc]
    """Pow with the type of the base, whatever the exponent's type is.

    Powers of integers are computed in float64 and cut off, as ONNX Runtime does.
    """

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        """Return the converter for an opset."""
        theirs = onnx_frontend.Pow.get_converter(opset)

        def convert(
            builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
        ) -> relax.Expr:
            base, exponent = (str(one.ty.dtype) for one in inputs[:2])
            computed = base if "float" in base else "float64"
            operands = [
                one if dtype == computed else builder.emit(relax.op.astype(one, computed))
                for one, dtype in zip(inputs, (base, exponent), strict=False)
            ]
            made = theirs(builder, operands, attributes, params)
            return made if computed == base else relax.op.astype(builder.emit(made), base)

        return convert


class FusedMatMul(OnnxOpConverter):  # type: ignore[misc]
    """FusedMatMul of ONNX Runtime: a product of transposed operands, times a number."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Expr:
        sides = []
        for side, value in zip("AB", inputs, strict=True):
            if attributes.get(f"transBatch{side}", 0):
                raise ValueError(f"FusedMatMul with transBatch{side}")
            rank = int(value.ty.ndim)
            if attributes.get(f"trans{side}", 0) and rank > 1:
                axes = [*range(rank - 2), rank - 1, rank - 2]
                value = builder.emit(relax.op.permute_dims(value, axes))
            sides.append(value)
        product = relax.op.matmul(*sides)
        factor = float(attributes.get("alpha", 1.0))
        if factor == 1:
            return product
        dtype = str(inputs[0].ty.dtype)
        return relax.op.multiply(builder.emit(product), relax.const(factor, dtype))


class LpNormalization(OnnxOpConverter):  # type: ignore[misc]
    """Division by the sum of magnitudes or the root of the sum of squares; zeros stay zeros."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, axis = inputs[0], attributes.get("axis", -1)
        if attributes.get("p", 2) == 1:
            norm = relax.op.sum(relax.op.abs(data), axis, True)
        else:
            norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(data, data), axis, True))
        norm, zero = builder.emit(norm), relax.const(0, str(data.ty.dtype))
        return builder.emit(
            relax.op.where(relax.op.equal(norm, zero), zero, relax.op.divide(data, norm))
        )


class CumProd(OnnxOpConverter):  # type: ignore[misc]
    """Cumulative product along a constant axis."""

    @classmethod
    def _impl_v26(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, axis = inputs[0], int(require_constant(inputs[1], "CumProd", "axis"))
        reverse = attributes.get("reverse", 0)
        data = builder.emit(relax.op.flip(data, axis)) if reverse else data
        made = builder.emit(
            relax.op.cumprod(data, axis, exclusive=bool(attributes.get("exclusive", 0)))
        )
        return builder.emit(relax.op.flip(made, axis)) if reverse else made


class ReverseSequence(OnnxOpConverter):  # type: ignore[misc]
    """Each sequence reversed within its length; elements after its end stay."""

    @classmethod
    def _impl_v10(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, lengths = inputs[0], builder.emit(relax.op.astype(inputs[1], "int64"))
        time_axis, shape = (
            attributes.get("time_axis", 0),
            [int(extent) for extent in inputs[0].ty.shape],
        )
        places = [1] * len(shape)
        places[1 - time_axis] = shape[1 - time_axis]
        lengths = builder.emit(relax.op.reshape(lengths, places))
        steps = np.arange(shape[time_axis]).reshape(
            [-1 if axis == time_axis else 1 for axis in range(len(shape))]
        )
        step = relax.const(steps.astype(np.int64), "int64")
        turned = relax.op.subtract(relax.op.subtract(lengths, relax.const(1, "int64")), step)
        index = builder.emit(relax.op.where(relax.op.less(step, lengths), turned, step))
        return builder.emit(
            relax.op.gather_elements(
                data, builder.emit(relax.op.broadcast_to(index, shape)), time_axis
            )
        )


class Dft(OnnxOpConverter):  # type: ignore[misc]
    """Discrete Fourier transform."""

    @classmethod
    def _impl_v17(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        return cls._transform(builder, inputs, attributes, attributes.get("axis", 1))

    @classmethod
    def _impl_v20(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        axis = (
            -2
            if len(inputs) < 3 or inputs[2] is None
            else int(require_constant(inputs[2], "DFT", "axis"))
        )
        return cls._transform(builder, inputs, attributes, axis)

    @classmethod
    def _transform(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, axis: int
    ) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        inverse, one_sided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
        shape = [int(extent) for extent in data.ty.shape]
        axis %= len(shape)
        to_real = inverse and one_sided
        whole = 2 * (shape[axis] - 1) if to_real else shape[axis]
        count = (
            int(require_constant(inputs[1], "DFT", "dft_length"))
            if len(inputs) > 1 and inputs[1] is not None
            else whole
        )
        half = count // 2 + 1
        # Input that is cut off or padded with zeros is left out of the sums.
        present = min(half if to_real else count, shape[axis])
        parts = [
            builder.emit(
                relax.op.strided_slice(data, [axis, len(shape) - 1], [0, part], [present, part + 1])
            )
            for part in range(shape[-1])
        ]
        last = [*(other for other in range(len(shape) - 1) if other != axis), axis]
        parts = [
            builder.emit(relax.op.permute_dims(relax.op.squeeze(part, [-1]), last))
            for part in parts
        ]
        if to_real:
            made = [inverse_transform_to_reals(builder, parts, count)]
        else:
            if present < count:
                rest = [*(shape[other] for other in last[:-1]), count - present]
                zeros = builder.emit(relax.op.zeros(rest, dtype))
                parts = [builder.emit(relax.op.concat([part, zeros], -1)) for part in parts]
            bins = half if one_sided else count
            made = fourier_transform(builder, parts, bins, inverse=inverse)
        if inverse:
            factor = relax.const(1 / count, dtype)
            made = [builder.emit(relax.op.multiply(part, factor)) for part in made]
        back = [last.index(other) for other in range(len(shape) - 1)]
        return builder.emit(
            relax.op.stack([builder.emit(relax.op.permute_dims(one, back)) for one in made], -1)
        )


class Stft(OnnxOpConverter):  # type: ignore[misc]
    """Fourier transform of each window of a real signal, [N, T] or [N, T, 1]."""

    @classmethod
    def _impl_v17(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        signal, step, window, length = [*inputs, None, None][:4]
        shape = [int(extent) for extent in signal.ty.shape]
        if len(shape) == 3 and shape[2] != 1:
            raise NotImplementedError("STFT of a complex signal")
        count = (
            int(window.ty.shape[0])
            if length is None
            else int(require_constant(length, "STFT", "frame_length"))
        )
        weights = np.ones(count) if window is None else require_constant(window, "STFT", "window")
        begins = np.arange(
            0, shape[1] - count + 1, int(require_constant(step, "STFT", "frame_step"))
        )
        rows = builder.emit(relax.op.reshape(signal, shape[:2]))
        places = relax.const((begins[:, None] + np.arange(count)).reshape(-1), "int64")
        frames = builder.emit(
            relax.op.reshape(
                builder.emit(relax.op.take(rows, places, 1)), [shape[0], len(begins), count]
            )
        )
        bins = count // 2 + 1 if attributes.get("onesided", 1) else count
        return builder.emit(
            relax.op.stack(fourier_transform(builder, [frames], bins, window=weights), -1)
        )


class OneHot(OnnxOpConverter):  # type: ignore[misc]
    """One value at the index, another elsewhere; an index below 0 counts from the end.

    TVM's converter gives the result another type.
    """

    @classmethod
    def _impl_v9(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        depth, values = (
            require_constant(one, "OneHot", name).reshape(-1)
            for one, name in zip(inputs[1:], ("depth", "values"), strict=True)
        )
        count, rank = int(depth[0]), int(inputs[0].ty.ndim) + 1
        axis = attributes.get("axis", -1) % rank
        indices = builder.emit(
            relax.op.expand_dims(builder.emit(relax.op.astype(inputs[0], "int64")), axis)
        )
        from_end = relax.op.add(indices, relax.const(count, "int64"))
        indices = builder.emit(
            relax.op.where(relax.op.less(indices, relax.const(0, "int64")), from_end, indices)
        )
        places = np.arange(count).reshape([-1 if other == axis else 1 for other in range(rank)])
        chosen = builder.emit(relax.op.equal(indices, relax.const(places, "int64")))
        off, on = (relax.const(value, str(values.dtype)) for value in values)
        return builder.emit(relax.op.where(chosen, on, off))


class EyeLike(OnnxOpConverter):  # type: ignore[misc]
    """Identity matrix, also of another type than the input's."""

    @classmethod
    def _impl_v9(
        cls, _builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        rows, columns = (int(extent) for extent in inputs[0].ty.shape)
        asked = attributes.get("dtype")
        dtype = (
            onnx.helper.tensor_dtype_to_np_dtype(asked).name if asked else str(inputs[0].ty.dtype)
        )
        return relax.const(np.eye(rows, columns, attributes.get("k", 0)), dtype)


class ConvTranspose(OnnxOpConverter):  # type: ignore[misc]
    """ConvTranspose with output_shape, an alternative to pads; TVM's converter does the rest."""

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        """Return the converter for an opset."""
        theirs = onnx_frontend.ConvTranspose.get_converter(opset)

        def convert(
            builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
        ) -> relax.Expr:
            if "output_shape" in attributes:
                attributes = {**attributes, **cls._padding(inputs, attributes)}
                attributes = {
                    name: value
                    for name, value in attributes.items()
                    if name not in ("output_shape", "auto_pad")
                }
            return theirs(builder, inputs, attributes, params)

        return convert

    @classmethod
    def _padding(cls, inputs: Inputs, attributes: Attributes) -> Attributes:
        """Return the attributes pads and output_padding that give the requested output_shape."""
        lengths, kernel = ([int(extent) for extent in one.ty.shape][2:] for one in inputs[:2])
        rank = len(lengths)
        strides, dilations = (
            attributes.get(name) or [1] * rank for name in ("strides", "dilations")
        )
        more, wanted = (
            attributes.get("output_padding") or [0] * rank,
            list(attributes["output_shape"])[-rank:],
        )
        mode = attributes.get("auto_pad", b"NOTSET")
        upper = (mode.decode() if isinstance(mode, bytes) else mode) == "SAME_UPPER"
        begin, end, more = [], [], list(more)
        for axis in range(rank):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            total = strides[axis] * (lengths[axis] - 1) + more[axis] + reach - wanted[axis]
            if total < 0:  # missing elements are added at the end
                more[axis], total = more[axis] - total, 0
            if more[axis] >= max(strides[axis], dilations[axis]):
                raise NotImplementedError(
                    f"ConvTranspose with an output_shape of {wanted}, which is more than "
                    "strides and kernel give"
                )
            begin.append(total // 2 if upper else total - total // 2)
            end.append(total - begin[-1])
        return {"pads": [*begin, *end], "output_padding": more}


class Col2Im(OnnxOpConverter):  # type: ignore[misc]
    """Sum of possibly overlapping blocks over an image.

    Each pixel is the sum of as many look-ups as blocks overlap at most.
    """

    @classmethod
    def _impl_v18(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        image, block = (
            [int(one) for one in require_constant(inputs[n], "Col2Im", name)]
            for n, name in ((1, "image_shape"), (2, "block_shape"))
        )
        batch, rows, columns = (int(extent) for extent in data.ty.shape)
        channels = rows // int(np.prod(block))
        places = _overlapping(image, block, attributes, rows // channels * columns)
        data = builder.emit(relax.op.reshape(data, [batch, channels, -1]))
        data = builder.emit(
            relax.op.concat([data, relax.const(np.zeros([batch, channels, 1]), dtype)], 2)
        )
        parts = builder.emit(relax.op.take(data, relax.const(places.reshape(-1), "int64"), 2))
        parts = builder.emit(relax.op.reshape(parts, [batch, channels, *places.shape]))
        return builder.emit(
            relax.op.reshape(builder.emit(relax.op.sum(parts, 2)), [batch, channels, *image])
        )


def _overlapping(
    image: Sequence[int], block: Sequence[int], attributes: Attributes, nothing: int
) -> Any:
    """Return, per pixel, the positions of the values that fall on it, [overlaps, pixels].

    A position is a flat index into the blocks [K, L]. `nothing` is the position of a zero, for
    pixels on which fewer values fall than the maximum.
    """
    rank = len(image)
    strides, dilations = (attributes.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * (2 * rank)
    axes = []
    for axis, extent in enumerate(image):
        reach = (block[axis] - 1) * dilations[axis] + 1
        begins = (
            np.arange(0, extent + pads[axis] + pads[rank + axis] - reach + 1, strides[axis])
            - pads[axis]
        )
        # [k, l]: the coordinate of a pixel, possibly outside the image.
        axes.append(np.arange(block[axis])[:, None] * dilations[axis] + begins)
    pixels, inside = np.zeros([1, 1], np.int64), np.ones([1, 1], bool)
    for extent, here in zip(image, axes, strict=True):
        shape = [len(pixels) * len(here), -1]
        pixels = (pixels[:, None, :, None] * extent + here[None, :, None]).reshape(shape)
        inside = (
            inside[:, None, :, None] & ((here >= 0) & (here < extent))[None, :, None]
        ).reshape(shape)
    (sources,) = np.nonzero(inside.reshape(-1))
    targets = pixels.reshape(-1)[sources]
    order = np.argsort(targets, kind="stable")
    counts = np.bincount(targets, minlength=int(np.prod(image)))
    turns = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.full([max(1, counts.max()), len(counts)], nothing)
    places[turns, targets[order]] = sources[order]
    return places


def require_constant(value: Any, operator: str, name: str) -> Any:
    """Return the values of an input that must be constant, such as axes and sizes.

    Raises NotImplementedError if it is not.
    """
    if not isinstance(value, GenericConst):
        raise NotImplementedError(f"{operator} whose {name} is not constant")
    return value.value.numpy()


CONVERTERS = {
    "Celu": Celu,
    "QuickGelu": QuickGelu,
    "BitCast": BitCast,
    "Pow": Pow,
    "FusedMatMul": FusedMatMul,
    "LpNormalization": LpNormalization,
    "CumProd": CumProd,
    "ReverseSequence": ReverseSequence,
    "DFT": Dft,
    "ConvTranspose": ConvTranspose,
    "STFT": Stft,
    "OneHot": OneHot,
    "EyeLike": EyeLike,
    "Col2Im": Col2Im,
}
