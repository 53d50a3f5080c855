"""The heavy operators as loops: tensor expressions whose main block a rule of `rules` then tiles.

A packed weight holds, for each block of output channels, all it needs in the order of use: [CO / block, KH, KW, CI, block] for a
convolution, [N / block, K, block] for a product. The main block covers whole tiles: its pixels beyond the output repeat the last one, its
channels beyond the output have zero weights, and a block after it drops both. Activations are NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te

from farm.compiler import seen
from farm.compiler.choices import Choice, Workload
from farm.compiler.extents import Extent, covering, is_open, plain, same
from farm.compiler.tiles import up_to_multiple

CONVOLUTION, DEPTHWISE, DENSE, PRODUCT = "convolution", "depthwise", "dense", "product"  # main blocks, named as their kernels and rules
POOL, DEPTHWISE_INT8 = "max_pool", "depthwise_int8"
PADDING, PACKING, CROP = "padding", "packing", "crop"
INPUTS = "inputs"  # what a main block whose sums go by groups of steps reads: an input for each step of each pixel
TILE, ORDER, WORKLOAD = "tile", "order", "workload_key"  # annotations of a main block: what was chosen, and for what; TVM drops "workload"


def convolution(workload: Workload, choice: Choice, by_groups: bool, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """A convolution; in one of several groups, each output sees the channels of its own group. `by_groups`: of the steps of a sum.

    A weight of one column where the kernel has several takes them, and all their channels, as one run of values; those beyond are zeros.
    """
    blocks, kernel_h, kernel_w, depth, block = extents(weight)
    _, columns, channels, _ = workload.weight
    runs = kernel_w < columns
    beyond = up_to_multiple(depth, channels) // channels - columns if runs else 0
    (top, left, bottom, right) = workload.padding
    source = padded(data, (top, left, bottom, right + beyond))
    out_h, out_w = workload.output(0), workload.output(1)
    ry, rx, rc = (te.reduce_axis((0, extent), name=name) for extent, name in ((kernel_h, "ry"), (kernel_w, "rx"), (depth, "rc")))
    (stride_y, stride_x), (dilation_y, dilation_x) = workload.strides, workload.dilation
    count = source.shape[0]
    shape = (count, out_h, up_to_multiple(out_w, choice.tile.pixels), blocks * block)

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
        first = c // (workload.channels // workload.groups) * depth if workload.groups > 1 else 0
        return te.sum(inputs(n, y, x, ry, rx, first + rc) * weight[c // block, ry, rx, rc, c % block], axis=[ry, rx, rc])

    def read(n: te.Var, y: te.Var, x: te.Var, ry: te.Var, rx: te.Var, c: te.Var) -> tvm.tirx.Expr:
        row, column = y * stride_y + ry * dilation_y, within(x, out_w, shape[2]) * stride_x + rx * dilation_x
        return source[n, row, column + c // channels, c % channels] if runs else source[n, row, column, c]

    inputs = te.compute((*shape[:3], kernel_h, kernel_w, depth), read, name=INPUTS) if by_groups else read
    attrs = notes_of(workload, choice)
    if not by_groups and not runs and seen.share(workload, choice.tile.pixels) < 1:
        attrs[seen.SEEN] = seen.notes(workload)
    main = te.compute(shape, value, name=CONVOLUTION, attrs=attrs)
    return cropped(main, (count, out_h, out_w, workload.channels))


def dense(workload: Workload, choice: Choice, by_groups: bool, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """[..., M, K] by a packed weight: [..., M, N]. `by_groups`: of the steps of a sum."""
    *outer, rows, depth = plain(data.shape)
    blocks, _, block = extents(weight)
    k = te.reduce_axis((0, depth), name="k")
    shape = (*outer, covering(rows, choice.tile.pixels), blocks * block)

    def value(*at: te.Var) -> tvm.tirx.Expr:
        *before, j = at
        return te.sum(inputs(*before, k) * weight[j // block, k, j % block], axis=k)

    def read(*at: te.Var) -> tvm.tirx.Expr:
        *batch, i, step = at
        return data(*batch, within(i, rows, shape[-2]), step)

    inputs = te.compute((*shape[:-1], depth), read, name=INPUTS) if by_groups else read
    return cropped(te.compute(shape, value, name=DENSE, attrs=notes_of(workload, choice)), (*outer, rows, workload.channels))


def product(workload: Workload, choice: Choice, left: te.Tensor, right: te.Tensor) -> te.Tensor:
    """[..., M, K] by [..., K, N], neither of them constant, of the same leading extents or 1: [..., M, N].

    The right one is packed first where its rows do not fill blocks.
    """
    (*outer_left, rows, depth), (*outer_right, _, width) = plain(left.shape), plain(right.shape)
    outer = [one if is_open(one) or one != 1 else other for one, other in zip(outer_left, outer_right, strict=True)]
    k = te.reduce_axis((0, depth), name="k")
    block = choice.tile.block
    shape = (*outer, up_to_multiple(rows, choice.tile.pixels), up_to_multiple(width, block))
    packed = _packed(right, block) if width % block else None

    def value(*at: te.Var) -> tvm.tirx.Expr:
        *batch, i, j = at
        first = left(*_broadcast(batch, outer_left), within(i, rows, shape[-2]), k)
        batch = _broadcast(batch, outer_right)
        second = right(*batch, k, j) if packed is None else packed(*batch, j // block, k, j % block)
        return te.sum(first * second, axis=k)

    return cropped(te.compute(shape, value, name=PRODUCT, attrs=notes_of(workload, choice)), (*outer, rows, width))


def extents(tensor: te.Tensor) -> list[int]:
    """Those of a weight, which are known."""
    return [int(extent) for extent in tensor.shape]


def notes_of(workload: Workload, choice: Choice) -> dict[str, Any]:
    tile = choice.tile
    return {TILE: [tile.pixels, tile.vectors, tile.lanes], ORDER: choice.order, WORKLOAD: workload.key}


def within(index: te.Var, limit: Extent, covered: Extent) -> tvm.tirx.Expr:
    """The index, the last one for those beyond: to compute a pixel twice costs less than to ask whether it is there."""
    return index if same([limit], [covered]) else te.min(index, limit - 1)


def _broadcast(indices: Sequence[te.Var], extents: Sequence[Extent]) -> list[Any]:
    return [index if is_open(extent) or extent > 1 else 0 for index, extent in zip(indices, extents, strict=True)]


def cropped(main: te.Tensor, shape: Sequence[Extent]) -> te.Tensor:
    if same(main.shape, shape):
        return main
    return te.compute(tuple(shape), lambda *at: main[at], name=CROP)


def padded(data: te.Tensor, padding: Sequence[int], outside: float = 0) -> te.Tensor:
    if not any(padding):
        return data
    count, height, width, channels = plain(data.shape)
    top, left, bottom, right = padding

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
        inside = tvm.tirx.all(y >= top, y < height + top, x >= left, x < width + left)
        return tvm.tirx.if_then_else(inside, data[n, y - top, x - left, c], tvm.tirx.const(outside, data.dtype))

    return te.compute((count, height + top + bottom, width + left + right, channels), value, name=PADDING)


def _packed(right: te.Tensor, block: int) -> te.Tensor:
    *outer, depth, width = plain(right.shape)

    def value(*at: te.Var) -> tvm.tirx.Expr:
        *batch, blocks, k, lane = at
        column = blocks * block + lane
        return tvm.tirx.if_then_else(column < width, right(*batch, k, column), tvm.tirx.const(0, right.dtype))

    return te.compute((*outer, -(-width // block), depth, block), value, name=PACKING)
