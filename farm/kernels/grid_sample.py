"""Emit grid sampling as a TIR kernel that takes the weights of a point once for all channels.

Jaderberg et al., "Spatial Transformer Networks", 2015, section 3.3. TVM's loops compute them again
for each channel, whose pixels are far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.kernels.fixed_extents import fixed_extents

_AXES = 4  # of images NCHW


@dataclass(frozen=True, slots=True)
class GridSampleSettings:
    """How to sample: `clamps` takes the nearest pixel for one outside, which is 0 otherwise.

    `lanes` is the number of channels of a vector.
    """

    clamps: bool
    align_corners: bool
    lanes: int


def emit_grid_sample(
    builder: relax.BlockBuilder, call: relax.Call, lanes: int
) -> relax.Expr | None:
    """Emit the kernel of a bilinear relax.image.grid_sample of images NCHW; None for other forms.

    The grid is [N, 2, height, width], of x and y. `lanes` is the number of channels of a vector.
    """
    attributes = call.attrs
    if (
        str(attributes.method) != "bilinear"
        or str(attributes.layout) != "NCHW"
        or str(attributes.padding_mode) not in ("zeros", "border")
        or not all(map(_is_fixed_image, call.args))
    ):
        return None
    settings = GridSampleSettings(
        str(attributes.padding_mode) == "border", bool(attributes.align_corners), lanes
    )
    data, grid = call.args
    channels_last = builder.emit(
        builder.call_te(topi.transpose, data, [0, 2, 3, 1], primfunc_name_hint="transpose")
    )
    body = partial(_grid_sample, settings=settings)
    sampled = builder.emit(
        builder.call_te(body, channels_last, grid, primfunc_name_hint="grid_sample")
    )
    return builder.call_te(topi.transpose, sampled, [0, 3, 1, 2], primfunc_name_hint="transpose")


def _is_fixed_image(value: relax.Expr) -> bool:
    extents = fixed_extents(value)
    return (
        extents is not None
        and len(extents) == _AXES
        and 0 not in extents
        and str(value.ty.dtype) == "float32"
    )


def _grid_sample(data: te.Tensor, grid: te.Tensor, *, settings: GridSampleSettings) -> te.Tensor:
    images, _, height, width = (int(extent) for extent in grid.shape)
    channels = int(data.shape[3])

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as program, T.parallel(0, images * height) as row:
            image, points, result = (T.buffer_proxy(one) for one in (*inputs, outputs[0]))
            # Along y, then along x: the pixels on both sides of a point, and their weights
            pixels = T.buffer_proxy(T.alloc_buffer((2, 2), "int32", scope="local"))
            weights = T.buffer_proxy(T.alloc_buffer((2, 2), "float32", scope="local"))
            number, y = row // height, row % height
            with T.serial(0, width) as x:
                for axis in range(2):
                    extent = int(data.shape[1 + axis])
                    at = points[number, 1 - axis, y, x]
                    _write_sides(pixels, weights, axis, _pixel(at, extent, settings), extent)

                def write(channel: Any) -> None:
                    total = _float(0)
                    for one in range(2):
                        for other in range(2):
                            value = image[number, pixels[0, one], pixels[1, other], channel]
                            total = total + weights[0, one] * weights[1, other] * value
                    result[number, y, x, channel] = total

                whole = channels // settings.lanes * settings.lanes
                if whole:
                    with (
                        T.serial(0, channels // settings.lanes) as block,
                        T.vectorized(0, settings.lanes) as lane,
                    ):
                        write(block * settings.lanes + lane)
                if whole < channels:
                    with T.serial(0, channels - whole) as rest:
                        write(rest + whole)
        return program.get()

    shape = (images, height, width, channels)
    return te.extern([shape], [data, grid], body, name="grid_sample", dtype=["float32"])


def _pixel(at: Any, extent: int, settings: GridSampleSettings) -> Any:
    """Return the place among the pixels of a coordinate from -1 to 1, at most two pixels outside.

    Further away no pixel is within reach; the place would be too large for an integer. The place of
    NaN is outside, too: it is no integer either.
    """
    if settings.align_corners:
        place = (at + _float(1)) * _float((extent - 1) / 2)
    else:
        place = ((at + _float(1)) * _float(extent) - _float(1)) * _float(0.5)
    low, high = (0, extent - 1) if settings.clamps else (-2, extent + 1)
    # a comparison with NaN is false
    below = tirx.Select(place < _float(high), place, _float(high))
    return tirx.Select(below > _float(low), below, _float(low))


def _write_sides(pixels: Any, weights: Any, axis: int, place: Any, extent: int) -> None:
    """Write the pixels on both sides of a place along an axis, and their weights.

    A pixel outside has the weight 0.
    """
    low = tirx.floor(place)
    last = tirx.const(extent - 1, "int32")
    zero = tirx.const(0, "int32")
    for side in range(2):
        index = tirx.Cast("int32", low) + side
        share = place - low
        is_inside = tirx.all(index >= 0, index <= last)
        weight = share if side else _float(1) - share
        weights[axis, side] = tirx.Select(is_inside, weight, _float(0))
        pixels[axis, side] = tirx.max(zero, tirx.min(last, index))


def _float(number: float) -> Any:
    return tirx.const(number, "float32")
