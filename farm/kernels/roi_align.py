"""Emit RoiAlign as a TIR kernel that takes the weights of a sample once for all channels.

He et al., "Mask R-CNN", 2017, section 3. TVM's loops compute them again for each channel.
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


@dataclass(frozen=True, slots=True)
class RoiAlignSettings:
    """The attributes of relax.vision.roi_align. A sample ratio of 0 takes one sample a pixel."""

    height: int
    width: int
    scale: float
    samples: int
    aligned: bool


def emit_roi_align(builder: relax.BlockBuilder, call: relax.Call, lanes: int) -> relax.Expr | None:
    """Emit the kernel of a relax.vision.roi_align of images NCHW; return None for other forms.

    A region of interest (ROI) is a batch index and the corners x1, y1, x2, y2. If the batch has no
    such image, the result is zero. `lanes` is the number of channels of a vector.
    """
    data, rois = call.args
    attributes = call.attrs
    if (
        str(attributes.layout) != "NCHW"
        or str(attributes.mode) != "avg"
        or not all(map(_is_fixed_float32, call.args))
    ):
        return None
    height, width = (int(extent) for extent in attributes.pooled_size)
    settings = RoiAlignSettings(
        height,
        width,
        float(attributes.spatial_scale),
        max(0, int(attributes.sample_ratio)),
        bool(attributes.aligned),
    )
    channels_last = builder.emit(builder.call_te(topi.transpose, data, [0, 2, 3, 1]))
    body = partial(_roi_align, settings=settings, lanes=lanes)
    return builder.call_te(body, channels_last, rois, primfunc_name_hint="roi_align")


def _is_fixed_float32(value: relax.Expr) -> bool:
    return fixed_extents(value) is not None and str(value.ty.dtype) == "float32"


def _roi_align(
    data: te.Tensor, rois: te.Tensor, *, settings: RoiAlignSettings, lanes: int
) -> te.Tensor:
    channels, count = int(data.shape[3]), int(rois.shape[0])
    shape = (count, channels, settings.height, settings.width)

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as program, T.parallel(0, count) as row:
            image, known, result = (T.buffer_proxy(one) for one in (*inputs, outputs[0]))
            batch_index = tirx.Cast("int32", known[row, 0])
            is_inside = tirx.all(batch_index >= 0, batch_index < int(data.shape[0]))
            with T.If(is_inside):
                with T.Then():
                    _align(image, known, result, row, batch_index, data, settings, lanes)
                with T.Else():
                    _write_zeros(result, row, shape)
        return program.get()

    return te.extern([shape], [data, rois], body, name="roi_align", dtype=["float32"])


def _write_zeros(result: Any, row: Any, shape: tuple[int, ...]) -> None:
    with (
        T.serial(0, shape[1]) as channel,
        T.serial(0, shape[2]) as y,
        T.serial(0, shape[3]) as x,
    ):
        result[row, channel, y, x] = _float(0)


def _align(
    image: Any,
    known: Any,
    result: Any,
    row: Any,
    batch_index: Any,
    data: te.Tensor,
    settings: RoiAlignSettings,
    lanes: int,
) -> None:
    """Write the result of one region: for each bin the mean of its samples."""
    channels = int(data.shape[3])
    sums = T.buffer_proxy(T.alloc_buffer((channels,), "float32"))
    lows, bins = (T.buffer_proxy(T.alloc_buffer((2,), "float32", scope="local")) for _ in range(2))
    grid = T.buffer_proxy(T.alloc_buffer((2,), "int32", scope="local"))
    # Along y, then along x
    for axis, count in enumerate((settings.height, settings.width)):
        low, high = (known[row, place] * _float(settings.scale) for place in (2 - axis, 4 - axis))
        span = high - low
        if not settings.aligned:
            span = tirx.max(span, _float(1))
        lows[axis] = low
        bins[axis] = span / _float(count)
        grid[axis] = (
            tirx.const(settings.samples, "int32")
            if settings.samples
            else tirx.Cast("int32", tirx.ceil(span / _float(count)))
        )
    samples = tirx.max(grid[0] * grid[1], tirx.const(1, "int32"))
    with T.serial(0, settings.height) as bin_y, T.serial(0, settings.width) as bin_x:
        with T.serial(0, channels) as channel:
            sums[channel] = _float(0)
        with T.serial(0, grid[0]) as step_y, T.serial(0, grid[1]) as step_x:
            y, x = (
                lows[axis]
                + tirx.Cast("float32", at) * bins[axis]
                + (tirx.Cast("float32", step) + _float(0.5))
                * bins[axis]
                / tirx.Cast("float32", grid[axis])
                for axis, at, step in ((0, bin_y, step_y), (1, bin_x, step_x))
            )
            _add_sample(image, sums, batch_index, (y, x), data, lanes)
        with T.serial(0, channels) as channel:
            result[row, channel, bin_y, bin_x] = sums[channel] / tirx.Cast("float32", samples)


def _add_sample(
    image: Any, sums: Any, batch_index: Any, at: tuple[Any, Any], data: te.Tensor, lanes: int
) -> None:
    """Add the image's value at a point, interpolated between four pixels, to `sums`."""
    extents = [int(extent) for extent in data.shape[1:3]]
    channels = int(data.shape[3])
    # Along y, then along x: the pixels on both sides of the point, and their weights
    pixels = T.buffer_proxy(T.alloc_buffer((2, 2), "int32", scope="local"))
    weights = T.buffer_proxy(T.alloc_buffer((2, 2), "float32", scope="local"))
    is_inside = tirx.all(
        *(tirx.all(at[axis] >= _float(-1), at[axis] <= _float(extents[axis])) for axis in (0, 1))
    )
    with T.If(is_inside), T.Then():
        for axis, extent in enumerate(extents):
            point = tirx.min(tirx.max(at[axis], _float(0)), _float(extent - 1))
            low = tirx.Cast("int32", tirx.floor(point))
            pixels[axis, 0] = low
            pixels[axis, 1] = tirx.min(low + 1, tirx.const(extent - 1, "int32"))
            weights[axis, 1] = point - tirx.floor(point)
            weights[axis, 0] = _float(1) - (point - tirx.floor(point))

        def add(channel: Any) -> None:
            total = sums[channel]
            for y in range(2):
                for x in range(2):
                    value = image[batch_index, pixels[0, y], pixels[1, x], channel]
                    total = total + weights[0, y] * weights[1, x] * value
            sums[channel] = total

        whole = channels // lanes * lanes
        with T.serial(0, channels // lanes) as block, T.vectorized(0, lanes) as lane:
            add(block * lanes + lane)
        with T.serial(0, channels - whole) as rest:
            add(rest + whole)


def _float(number: float) -> Any:
    return tirx.const(number, "float32")
