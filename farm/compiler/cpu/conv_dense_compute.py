"""Define convolutions and matrix products as tensor expressions with packed weights.

A rule of conv_dense_schedule tiles the main block. A packed weight holds, for each block of output
channels, everything that the block reads in the order of use: [CO / block, KH, KW, CI, block] for a
convolution, [N / block, K, block] for a product. The main block covers whole tiles: its pixels
beyond the output repeat the last pixel, its channels beyond the output have zero weights, and a
block after it drops both. Activations are NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te

from farm.compiler.cpu import padding_taps
from farm.compiler.cpu.kernel_config import KernelConfig, Workload
from farm.compiler.cpu.register_tiles import round_up_to_multiple
from farm.compiler.ir.annotations import ORDER, ROW_LENGTH, SKIP_PADDING_TAPS, TILE, WORKLOAD
from farm.compiler.ir.dynamic_extents import (
    Extent,
    is_dynamic,
    round_up_extent,
    shapes_are_equal,
    static_extents_as_ints,
)

# Main blocks, with the names of kernels and rules.
CONVOLUTION, DEPTHWISE, DENSE, PRODUCT = "convolution", "depthwise", "dense", "product"
GROUPED_CONVOLUTION = "grouped_convolution"  # its groups fill no whole tiles
POOL, DEPTHWISE_INT8 = "max_pool", "depthwise_int8"
PADDING, PADDED_PLANES, PACKING, CROP = "padding", "padded_planes", "packing", "crop"
# The block that a main block with grouped loads reads: an input for each step of each pixel.
INPUTS = "inputs"
WINDOW_INPUTS = "window_inputs"  # the same of windows over each channel


def conv2d_compute(
    workload: Workload,
    config: KernelConfig,
    data: te.Tensor,
    weight: te.Tensor,
    *,
    grouped_loads: bool,
    turned: bool,
    planar: bool,
) -> te.Tensor:
    """Define a convolution; with several groups, each output reads the channels of its own group.

    `turned`: height and width of the workload are swapped, those of `data` and of the result are
    not. `grouped_loads`: the inputs of several reduction steps are loaded together, see
    register_tiles. If the packed weight has one column and the kernel several, that column is a
    contiguous run of the values of all columns and channels, padded with zeros. `planar`: `data`
    is NCHW, and neither turned, nor grouped, nor read as runs.

    If the channels of a group fill no whole tiles, the weight is padded for each group, and the
    main block has an axis of groups: a tile must not span two, whose inputs differ.
    """
    blocks, kernel_h, kernel_w, depth, block = static_shape(weight)
    _, columns, channels, _ = workload.weight
    runs = kernel_w < columns
    beyond = round_up_to_multiple(depth, channels) // channels - columns if runs else 0
    (top, left, bottom, right) = workload.padding
    if planar:
        source = _pad_planes(data, workload.padding)
    else:
        source = pad_nhwc(data, (top, left, bottom, right + beyond), turned=turned)
    out_h, out_w = workload.output(0), workload.output(1)
    ry, rx, rc = (
        te.reduce_axis((0, extent), name=name)
        for extent, name in ((kernel_h, "ry"), (kernel_w, "rx"), (depth, "rc"))
    )
    (stride_y, stride_x), (dilation_y, dilation_x) = workload.strides, workload.dilation
    count = data.shape[0]
    covered_w = round_up_to_multiple(out_w, config.tile.pixels)
    shape = (count, out_h, covered_w, blocks * block)

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
        first = c // (workload.channels // workload.groups) * depth if workload.groups > 1 else 0
        return te.sum(
            inputs(n, y, x, ry, rx, first + rc) * weight[c // block, ry, rx, rc, c % block],
            axis=[ry, rx, rc],
        )

    def read(n: te.Var, y: te.Var, x: te.Var, ry: te.Var, rx: te.Var, c: te.Var) -> tvm.tirx.Expr:
        row, column = (
            y * stride_y + ry * dilation_y,
            clamp_index(x, out_w, covered_w) * stride_x + rx * dilation_x,
        )
        if runs:
            return source[n, row, column + c // channels, c % channels]
        if not planar:
            return source[n, row, column, c]
        return source[n, row, c, column] if any(workload.padding) else source[n, c, row, column]

    inputs = (
        te.compute((*shape[:3], kernel_h, kernel_w, depth), read, name=INPUTS)
        if grouped_loads
        else read
    )
    attrs = kernel_annotations(workload, config)
    if workload.pads_groups(block):
        blocks_per_group = blocks // workload.groups
        group_channels = workload.channels // workload.groups

        def value_in_group(n: te.Var, y: te.Var, g: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
            at = g * blocks_per_group + c // block
            return te.sum(
                read(n, y, x, ry, rx, g * depth + rc) * weight[at, ry, rx, rc, c % block],
                axis=[ry, rx, rc],
            )

        groups = te.compute(
            (count, out_h, workload.groups, covered_w, blocks_per_group * block),
            value_in_group,
            name=GROUPED_CONVOLUTION,
            attrs=attrs,
        )

        def joined(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
            y, x = (x, y) if turned else (y, x)
            return groups[n, y, c // group_channels, x, c % group_channels]

        image = (out_w, out_h) if turned else (out_h, out_w)
        return te.compute((count, *image, workload.channels), joined, name=CROP)
    if (
        not grouped_loads
        and not runs
        and padding_taps.used_tap_fraction(workload, config.tile.pixels) < 1
    ):
        attrs[SKIP_PADDING_TAPS] = padding_taps.skip_taps_annotation(workload)
    main = te.compute(shape, value, name=CONVOLUTION, attrs=attrs)
    if not turned:
        return crop(main, (count, out_h, out_w, workload.channels))
    return te.compute(
        (count, out_w, out_h, workload.channels), lambda n, y, x, c: main[n, x, y, c], name=CROP
    )


def joined_rows_compute(
    workload: Workload, config: KernelConfig, data: te.Tensor, weight: te.Tensor
) -> te.Tensor:
    """Define a convolution of single pixels, the rows of each image joined into one.

    The last tile of each row would repeat pixels; here only that of an image does.
    """
    count, height, width, depth = static_extents_as_ints(data.shape)
    blocks, _, _, _, block = static_shape(weight)
    pixels = height * width
    covered = round_up_to_multiple(pixels, config.tile.pixels)
    # A kernel of one tap, as the rule for convolutions expects loops over the taps
    reduced = [
        te.reduce_axis((0, extent), name=name)
        for extent, name in ((1, "ry"), (1, "rx"), (depth, "rc"))
    ]

    def value(n: te.Var, _: te.Var, place: te.Var, c: te.Var) -> tvm.tirx.Expr:
        pixel = clamp_index(place, pixels, covered)
        read = data[n, pixel // width, pixel % width, reduced[-1]]
        return te.sum(read * weight[(c // block, *reduced, c % block)], axis=reduced)

    attrs = {**kernel_annotations(workload, config), ROW_LENGTH: width}
    main = te.compute((count, 1, covered, blocks * block), value, name=CONVOLUTION, attrs=attrs)
    return te.compute(
        (count, height, width, workload.channels),
        lambda n, y, x, c: main[n, 0, y * width + x, c],
        name=CROP,
    )


def dense_compute(
    workload: Workload,
    config: KernelConfig,
    grouped_loads: bool,
    row_axis: int,
    data: te.Tensor,
    weight: te.Tensor,
) -> te.Tensor:
    """Define [..., M, K] by a packed weight: [..., M, N]. `grouped_loads`: see `conv2d_compute`.

    `row_axis` is the axis of the rows that are tiled. It is the one before the last, or an axis
    before that where that has one row only, as in sequences [time, batch, K] of a batch of one.
    """
    *leading, depth = static_extents_as_ints(data.shape)
    outer = [extent for axis, extent in enumerate(leading) if axis != row_axis]
    rows = leading[row_axis]
    blocks, _, block = static_shape(weight)
    k = te.reduce_axis((0, depth), name="k")
    shape = (*outer, round_up_extent(rows, config.tile.pixels), blocks * block)

    def value(*at: te.Var) -> tvm.tirx.Expr:
        *before, j = at
        return te.sum(inputs(*before, k) * weight[j // block, k, j % block], axis=k)

    def read(*at: te.Var) -> tvm.tirx.Expr:
        *batch, i, step = at
        batch.insert(row_axis, clamp_index(i, rows, shape[-2]))
        return data(*batch, step)

    inputs = te.compute((*shape[:-1], depth), read, name=INPUTS) if grouped_loads else read
    main = te.compute(shape, value, name=DENSE, attrs=kernel_annotations(workload, config))
    if row_axis == len(leading) - 1:
        return crop(main, (*outer, rows, workload.channels))

    def moved(*at: te.Var) -> tvm.tirx.Expr:
        *batch, column = at
        row = batch.pop(row_axis)
        return main(*batch, row, column)

    return te.compute((*leading, workload.channels), moved, name=CROP)


def matmul_compute(
    workload: Workload, config: KernelConfig, left: te.Tensor, right: te.Tensor
) -> te.Tensor:
    """Define [..., M, K] by [..., K, N], neither of them constant: [..., M, N].

    The leading extents are equal or 1. The right operand is packed first if its rows do not fill
    blocks.
    """
    (*outer_left, rows, depth), (*outer_right, _, width) = (
        static_extents_as_ints(left.shape),
        static_extents_as_ints(right.shape),
    )
    outer = [
        one if is_dynamic(one) or one != 1 else other
        for one, other in zip(outer_left, outer_right, strict=True)
    ]
    k = te.reduce_axis((0, depth), name="k")
    block = config.tile.block
    shape = (
        *outer,
        round_up_to_multiple(rows, config.tile.pixels),
        round_up_to_multiple(width, block),
    )
    packed = _packed(right, block) if width % block else None

    def value(*at: te.Var) -> tvm.tirx.Expr:
        *batch, i, j = at
        first = left(*_broadcast(batch, outer_left), clamp_index(i, rows, shape[-2]), k)
        batch = _broadcast(batch, outer_right)
        second = right(*batch, k, j) if packed is None else packed(*batch, j // block, k, j % block)
        return te.sum(first * second, axis=k)

    return crop(
        te.compute(shape, value, name=PRODUCT, attrs=kernel_annotations(workload, config)),
        (*outer, rows, width),
    )


def static_shape(tensor: te.Tensor) -> list[int]:
    """Return the extents of a weight, which are known."""
    return [int(extent) for extent in tensor.shape]


def kernel_annotations(workload: Workload, config: KernelConfig) -> dict[str, Any]:
    """Return the annotations of a main block that say how it is configured."""
    tile = config.tile
    return {
        TILE: [tile.pixels, tile.vectors, tile.lanes],
        ORDER: config.order,
        WORKLOAD: workload.key,
    }


def clamp_index(index: te.Var, limit: Extent, covered: Extent) -> tvm.tirx.Expr:
    """Return the index, or the last valid one for indices beyond the limit.

    Computing a pixel twice costs less than testing whether it exists.
    """
    return index if shapes_are_equal([limit], [covered]) else te.min(index, limit - 1)


def _broadcast(indices: Sequence[te.Var], extents: Sequence[Extent]) -> list[Any]:
    return [
        index if is_dynamic(extent) or extent > 1 else 0
        for index, extent in zip(indices, extents, strict=True)
    ]


def crop(main: te.Tensor, shape: Sequence[Extent]) -> te.Tensor:
    """Return the tensor without the pixels and channels beyond `shape`."""
    if shapes_are_equal(main.shape, shape):
        return main
    return te.compute(tuple(shape), lambda *at: main[at], name=CROP)


def pad_nhwc(
    data: te.Tensor, padding: Sequence[int], outside: float = 0, turned: bool = False
) -> te.Tensor:
    """Return an NHWC tensor with padding: top, left, bottom, right, filled with `outside`.

    `turned`: height and width of the tensor are swapped first.
    """
    if not any(padding) and not turned:
        return data
    count, height, width, channels = static_extents_as_ints(data.shape)
    if turned:
        height, width = width, height
    top, left, bottom, right = padding

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
        value = data[n, x - left, y - top, c] if turned else data[n, y - top, x - left, c]
        if not any(padding):
            return value
        inside = tvm.tirx.all(y >= top, y < height + top, x >= left, x < width + left)
        return tvm.tirx.if_then_else(inside, value, tvm.tirx.const(outside, data.dtype))

    return te.compute(
        (count, height + top + bottom, width + left + right, channels), value, name=PADDING
    )


def _pad_planes(data: te.Tensor, padding: Sequence[int]) -> te.Tensor:
    """Return an NCHW tensor with padding (top, left, bottom, right) as NHCW; itself without any.

    The rows of all channels then lie as near to one another as the pixels of NHWC.
    """
    if not any(padding):
        return data
    count, channels, height, width = static_extents_as_ints(data.shape)
    top, left, bottom, right = padding

    def value(n: te.Var, y: te.Var, c: te.Var, x: te.Var) -> tvm.tirx.Expr:
        inside = tvm.tirx.all(y >= top, y < height + top, x >= left, x < width + left)
        zero = tvm.tirx.const(0, data.dtype)
        return tvm.tirx.if_then_else(inside, data[n, c, y - top, x - left], zero)

    return te.compute(
        (count, height + top + bottom, channels, width + left + right), value, name=PADDED_PLANES
    )


def _packed(right: te.Tensor, block: int) -> te.Tensor:
    *outer, depth, width = static_extents_as_ints(right.shape)

    def value(*at: te.Var) -> tvm.tirx.Expr:
        *batch, blocks, k, lane = at
        column = blocks * block + lane
        return tvm.tirx.if_then_else(
            column < width, right(*batch, k, column), tvm.tirx.const(0, right.dtype)
        )

    return te.compute((*outer, -(-width // block), depth, block), value, name=PACKING)
