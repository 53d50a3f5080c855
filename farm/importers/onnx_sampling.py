"""Converters of ONNX operators that sample images, as https://onnx.ai/onnx/operators defines them: where TVM 0.27 lacks or fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx_lacking import Attributes, Inputs, constant_of

_NEWEST = 19
_AS_BEFORE_11 = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}  # what Upsample and the first Resize did


class Resize(OnnxOpConverter):  # type: ignore[misc]
    """Of the first version, which had no region; and by some axes only. The rest is TVM's."""

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        theirs = onnx_frontend.Resize.get_converter(opset)

        def convert(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any) -> relax.Expr:
            if opset < 11:
                return resized(builder, inputs[0], inputs[1], attributes, params)
            if "axes" in attributes:
                inputs = cls._along_all(inputs, attributes["axes"])
            if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
                raise NotImplementedError("Resize with keep_aspect_ratio_policy; give scales")
            return theirs(builder, inputs, attributes, params)

        return convert

    @classmethod
    def _along_all(cls, inputs: Inputs, axes: Sequence[int]) -> Inputs:
        """Scales, sizes and the region of all axes, out of those of some."""
        shape = [int(extent) for extent in inputs[0].ty.shape]
        rank, places = len(shape), [axis % len(shape) for axis in axes]
        rest = [[0.0] * rank + [1.0] * rank, [1.0] * rank, shape]
        made: list[Any] = [inputs[0]]
        for given, whole in zip(inputs[1:], rest, strict=False):
            if given is None or int(given.ty.shape[0]) == 0:
                made.append(None)
                continue
            values = constant_of(given, "Resize", "region, scales or sizes")
            full = np.array(whole, values.dtype)
            full[[*places, *(rank + axis for axis in places)] if full.size > rank else places] = values
            made.append(relax.const(full, str(full.dtype)))
        return made


class Upsample(OnnxOpConverter):  # type: ignore[misc]
    """Before there was Resize. TVM takes images of four axes with scales as an attribute only, and rounds where ONNX cuts off."""

    @classmethod
    def _impl_v7(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any) -> relax.Expr:
        return resized(builder, inputs[0], relax.const(np.array(attributes["scales"]), "float32"), attributes, params)

    @classmethod
    def _impl_v9(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any) -> relax.Expr:
        return resized(builder, inputs[0], inputs[1], attributes, params)


def resized(builder: relax.BlockBuilder, data: Any, scales: Any, attributes: Attributes, params: Any) -> relax.Expr:
    """By scales, as Upsample and the Resize of opset 10 do."""
    lengths = [int(extent) * float(scale) for extent, scale in zip(data.ty.shape, constant_of(scales, "Resize", "scales"), strict=True)]
    if any(abs(length - round(length)) > 1e-4 for length in lengths):  # TVM's samples by the lengths before and after, not by the scale
        raise NotImplementedError("scales that give no whole lengths")
    theirs = onnx_frontend.Resize.get_converter(_NEWEST)
    return theirs(builder, [data, None, scales], {**_AS_BEFORE_11, "mode": attributes.get("mode", b"nearest")}, params)


class AffineGrid(OnnxOpConverter):  # type: ignore[misc]
    """For each element of an image or a volume, from -1 to 1 along each axis, the place where a matrix moves it: [N, H, W, 2] or [N, D, H,
    W, 3], the last axis in the order x, y, z."""

    @classmethod
    def _impl_v20(cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any) -> relax.Expr:
        theta, dtype = inputs[0], str(inputs[0].ty.dtype)
        batch, _, *lengths = (int(length) for length in constant_of(inputs[1], "AffineGrid", "size"))
        corners = bool(attributes.get("align_corners", 0))
        if corners and 1 in lengths:
            raise NotImplementedError("AffineGrid with align_corners over an axis of length 1, which has one corner")
        places = [np.linspace(-1, 1, length) if corners else (2 * np.arange(length) + 1) / length - 1 for length in lengths]
        grid = np.meshgrid(*places, indexing="ij")
        points = np.stack([*(axis.reshape(-1) for axis in reversed(grid)), np.ones(grid[0].size)], -1)
        moved = relax.op.matmul(relax.const(points, dtype), builder.emit(relax.op.permute_dims(theta, [0, 2, 1])))
        return builder.emit(relax.op.reshape(builder.emit(moved), [batch, *lengths, len(lengths)]))


CONVERTERS = {"Resize": Resize, "Upsample": Upsample, "AffineGrid": AffineGrid}
