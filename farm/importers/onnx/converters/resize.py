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

from farm.importers.extents import is_open
from farm.importers.grid_sampling import repeat_single_elements
from farm.importers.onnx.converters.missing import Attributes, Inputs, require_constant

_NEWEST = 19
_WHOLE = 1e-4  # how far a whole length may be from a whole number
_VOLUME = 5  # axes of a batch of volumes
_COORDINATES = "coordinate_transformation_mode"
# The behaviour of Upsample and of the first version of Resize.
_AS_BEFORE_11 = {_COORDINATES: b"asymmetric", "nearest_mode": b"floor"}


class Resize(OnnxOpConverter):  # type: ignore[misc]
    """Resize of opset 10, of some axes only, to one corner, and by scales that are rounded down.

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
            inputs = [None if _is_empty(one) else one for one in inputs]
            if "axes" in attributes:
                inputs = cls._along_all(inputs, attributes["axes"])
            if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
                raise NotImplementedError("Resize with keep_aspect_ratio_policy; give scales")
            by_scales = len(inputs) > 2 and inputs[2] is not None
            if by_scales and attributes.get(_COORDINATES) == b"tf_crop_and_resize":
                raise NotImplementedError("Resize of a region by scales; give sizes")
            if by_scales and _gives_fractions(inputs[0], inputs[2]):
                return _emit_nearest(builder, inputs, attributes)
            if attributes.get(_COORDINATES) == b"half_pixel_symmetric":
                # It differs by how far the lengths are from whole ones.
                attributes = {**attributes, _COORDINATES: b"half_pixel"}
            short = cls._of_one_element(inputs, attributes)
            if not short:
                made = theirs(builder, inputs, attributes, params)
                return cls._extrapolated(builder, inputs, attributes, made)
            lengths = [2 if axis in short else one for axis, one in enumerate(cls._lengths(inputs))]
            if None in lengths:
                raise NotImplementedError("Resize to a length of 1 with an open extent")
            wider = [*inputs[:2], None, relax.const(np.array(lengths), "int64")]
            made = builder.emit(theirs(builder, wider, attributes, params))
            return relax.op.strided_slice(made, short, [0] * len(short), [1] * len(short))

        return convert

    @classmethod
    def _of_one_element(cls, inputs: Inputs, attributes: Attributes) -> list[int]:
        """Return the axes that become one element, the first one, where corners are aligned.

        TVM divides by the number of elements between the corners, which is 0.
        """
        mode = attributes.get(_COORDINATES)
        if mode not in (b"align_corners", b"tf_crop_and_resize"):
            return []
        short = [axis for axis, one in enumerate(cls._lengths(inputs)) if axis > 1 and one == 1]
        if short and mode == b"tf_crop_and_resize":
            raise NotImplementedError("Resize with tf_crop_and_resize to a length of 1")
        return short

    @classmethod
    def _extrapolated(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, made: relax.Expr
    ) -> relax.Expr:
        """Return a region of a volume with the elements that lie outside of the volume replaced.

        TVM replaces those of images, and of volumes not all.
        """
        if attributes.get(_COORDINATES) != b"tf_crop_and_resize" or inputs[0].ty.ndim != _VOLUME:
            return made
        region = require_constant(inputs[1], "Resize", "region").astype(np.float32)
        (begins, ends), lengths = region.reshape(2, -1), cls._lengths(inputs)
        outside = np.zeros([1] * _VOLUME, np.bool_)
        for axis in range(2, _VOLUME):
            last, count = np.float32(int(inputs[0].ty.shape[axis]) - 1), lengths[axis] or 1
            steps = np.arange(count, dtype=np.float32) * (ends[axis] - begins[axis]) * last
            places = begins[axis] * last + steps / np.float32(max(1, count - 1))
            beyond = (places < 0) | (places > last)
            outside = outside | beyond.reshape([-1 if at == axis else 1 for at in range(_VOLUME)])
        fill = relax.const(attributes.get("extrapolation_value", 0.0), str(inputs[0].ty.dtype))
        made = builder.emit(made)
        return relax.op.where(relax.const(outside, "bool"), fill, made)

    @classmethod
    def _lengths(cls, inputs: Inputs) -> list[int | None]:
        """Return the extents of the result; None for those that are open."""
        _, _, scales, sizes = [*inputs, None][:4]
        if sizes is not None:
            return [int(one) for one in require_constant(sizes, "Resize", "sizes")]
        factors = require_constant(scales, "Resize", "scales")
        return [
            None if is_open(extent) else int(int(extent) * float(factor))
            for extent, factor in zip(inputs[0].ty.shape, factors, strict=True)
        ]

    @classmethod
    def _along_all(cls, inputs: Inputs, axes: Sequence[int]) -> Inputs:
        """Return the inputs with region, scales and sizes extended from `axes` to all axes."""
        shape = [int(extent) for extent in inputs[0].ty.shape]
        rank, places = len(shape), [axis % len(shape) for axis in axes]
        rest = [[0.0] * rank + [1.0] * rank, [1.0] * rank, shape]
        made: list[Any] = [inputs[0]]
        for given, whole in zip(inputs[1:], rest, strict=False):
            if given is None:
                made.append(None)
                continue
            values = require_constant(given, "Resize", "region, scales or sizes")
            full = np.array(whole, values.dtype)
            full[[*places, *(rank + axis for axis in places)] if full.size > rank else places] = (
                values
            )
            made.append(relax.const(full, str(full.dtype)))
        return made


def _is_empty(value: Any) -> bool:
    """Return whether an input is of no elements, which before opset 13 stood for no input."""
    return value is not None and len(value.ty.shape) == 1 and int(value.ty.shape[0]) == 0


def _gives_fractions(data: relax.Expr, scales: relax.Expr) -> bool:
    """Return whether scales give lengths that are rounded down; TVM takes their ratio then.

    What they make of open extents is not known, and left to TVM.
    """
    factors = require_constant(scales, "Resize", "scales")
    lengths = [
        int(extent) * float(factor)
        for extent, factor in zip(data.ty.shape, factors, strict=True)
        if not is_open(extent)
    ]
    return any(abs(length - round(length)) > _WHOLE for length in lengths)


def _emit_nearest(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Emit a Resize by the nearest elements, which each axis takes by constant indices."""
    if attributes.get("mode", b"nearest") != b"nearest":
        raise NotImplementedError("scales that give no whole lengths; give sizes")
    mode = attributes.get(_COORDINATES, b"half_pixel").decode()
    rounding = attributes.get("nearest_mode", b"round_prefer_floor").decode()
    made = inputs[0]
    scales = require_constant(inputs[2], "Resize", "scales").astype(np.float32)
    for axis, scale in enumerate(scales):
        if scale == 1:
            continue
        if is_open(inputs[0].ty.shape[axis]):
            raise NotImplementedError("Resize of an open extent by scales")
        extent = int(inputs[0].ty.shape[axis])
        count = int(extent * float(scale))
        places = _coordinates(mode, count, extent, scale)
        nearest = np.clip(_ROUNDINGS[rounding](places), 0, extent - 1).astype(np.int64)
        made = builder.emit(relax.op.take(made, relax.const(nearest, "int64"), axis))
    return made


def _coordinates(mode: str, count: int, extent: int, scale: np.float32) -> Any:
    """Return where the elements of a resized axis are in the original one, in float32."""
    half, places = np.float32(0.5), np.arange(count, dtype=np.float32)
    if mode == "asymmetric":
        return places / scale
    if mode == "align_corners":
        return places * np.float32(extent - 1) / np.float32(max(1, count - 1))
    if mode == "tf_half_pixel_for_nn":
        return (places + half) / scale
    if mode == "pytorch_half_pixel" and count == 1:
        return np.zeros(1, np.float32)
    shift = np.float32(0)
    if mode == "half_pixel_symmetric":
        shift = np.float32(extent / 2) * (1 - np.float32(count) / (scale * np.float32(extent)))
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise NotImplementedError(f"{mode} and scales that give no whole lengths; give sizes")
    return shift + (places + half) / scale - half


_ROUNDINGS: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda places: np.ceil(places - np.float32(0.5)),
    "round_prefer_ceil": lambda places: np.floor(places + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


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
    if _gives_fractions(data, scales):
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


class GridSample(onnx_frontend.GridSample):  # type: ignore[misc]
    """GridSample of images with axes of one element, at which TVM cannot reflect."""

    @classmethod
    def _impl_v16(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        image, grid = inputs
        if attributes.get("align_corners", 0) and attributes.get("padding_mode") == b"reflection":
            image = repeat_single_elements(builder, image)
        return super()._impl_v16(builder, [image, grid], attributes, params)


CONVERTERS = {
    "GridSample": GridSample,
    "Resize": Resize,
    "Upsample": Upsample,
    "AffineGrid": AffineGrid,
}
