"""Convert ONNX operators that sample images, where TVM 0.27's converters are missing or wrong.

The definitions: https://onnx.ai/onnx/operators
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs, require_constant

_NEWEST = 19
# The behaviour of Upsample and of the first version of Resize.
_AS_BEFORE_11 = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}


class Resize(OnnxOpConverter):  # type: ignore[misc]
    """Resize of opset 10, which has no region, and Resize of some axes only.

    TVM's converter does the rest.
    """

    @classmethod
    def get_converter(cls, opset: int) -> Callable[..., relax.Expr]:
        """Return the converter for an opset."""
        theirs = onnx_frontend.Resize.get_converter(opset)

        def convert(
            builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
        ) -> relax.Expr:
            if opset < 11:
                return emit_resize_by_scales(builder, inputs[0], inputs[1], attributes, params)
            if "axes" in attributes:
                inputs = cls._along_all(inputs, attributes["axes"])
            if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
                raise NotImplementedError("Resize with keep_aspect_ratio_policy; give scales")
            return theirs(builder, inputs, attributes, params)

        return convert

    @classmethod
    def _along_all(cls, inputs: Inputs, axes: Sequence[int]) -> Inputs:
        """Return the inputs with region, scales and sizes extended from `axes` to all axes."""
        shape = [int(extent) for extent in inputs[0].ty.shape]
        rank, places = len(shape), [axis % len(shape) for axis in axes]
        rest = [[0.0] * rank + [1.0] * rank, [1.0] * rank, shape]
        made: list[Any] = [inputs[0]]
        for given, whole in zip(inputs[1:], rest, strict=False):
            if given is None or int(given.ty.shape[0]) == 0:
                made.append(None)
                continue
            values = require_constant(given, "Resize", "region, scales or sizes")
            full = np.array(whole, values.dtype)
            full[[*places, *(rank + axis for axis in places)] if full.size > rank else places] = (
                values
            )
            made.append(relax.const(full, str(full.dtype)))
        return made


class Upsample(OnnxOpConverter):  # type: ignore[misc]
    """Upsample, the predecessor of Resize.

    TVM accepts only images of four axes with scales as an attribute, and rounds where ONNX
    truncates.
    """

    @classmethod
    def _impl_v7(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        return emit_resize_by_scales(
            builder,
            inputs[0],
            relax.const(np.array(attributes["scales"]), "float32"),
            attributes,
            params,
        )

    @classmethod
    def _impl_v9(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        return emit_resize_by_scales(builder, inputs[0], inputs[1], attributes, params)


def emit_resize_by_scales(
    builder: relax.BlockBuilder, data: Any, scales: Any, attributes: Attributes, params: Any
) -> relax.Expr:
    """Emit a resize by scales, as Upsample and the Resize of opset 10 define it."""
    lengths = [
        int(extent) * float(scale)
        for extent, scale in zip(
            data.ty.shape, require_constant(scales, "Resize", "scales"), strict=True
        )
    ]
    # TVM samples by the ratio of the extents, not by the scale.
    if any(abs(length - round(length)) > 1e-4 for length in lengths):
        raise NotImplementedError("scales that give no whole lengths")
    theirs = onnx_frontend.Resize.get_converter(_NEWEST)
    return theirs(
        builder,
        [data, None, scales],
        {**_AS_BEFORE_11, "mode": attributes.get("mode", b"nearest")},
        params,
    )


class AffineGrid(OnnxOpConverter):  # type: ignore[misc]
    """Sampling grid of an affine transform, [N, H, W, 2] or [N, D, H, W, 3].

    For each element of an image or volume, with coordinates from -1 to 1 along each axis, the grid
    holds the position to which a matrix maps it; the last axis is in the order x, y, z.
    """

    @classmethod
    def _impl_v20(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        theta, dtype = inputs[0], str(inputs[0].ty.dtype)
        batch, _, *lengths = (
            int(length) for length in require_constant(inputs[1], "AffineGrid", "size")
        )
        corners = bool(attributes.get("align_corners", 0))
        if corners and 1 in lengths:
            raise NotImplementedError(
                "AffineGrid with align_corners over an axis of length 1, which has one corner"
            )
        places = [
            np.linspace(-1, 1, length) if corners else (2 * np.arange(length) + 1) / length - 1
            for length in lengths
        ]
        grid = np.meshgrid(*places, indexing="ij")
        points = np.stack(
            [*(axis.reshape(-1) for axis in reversed(grid)), np.ones(grid[0].size)], -1
        )
        moved = relax.op.matmul(
            relax.const(points, dtype), builder.emit(relax.op.permute_dims(theta, [0, 2, 1]))
        )
        return builder.emit(relax.op.reshape(builder.emit(moved), [batch, *lengths, len(lengths)]))


CONVERTERS = {"Resize": Resize, "Upsample": Upsample, "AffineGrid": AffineGrid}
