"""Define Winograd's convolution F(m x n, r x s), for kernels of r x s.

Each tile of m x n outputs takes (m + r - 1) (n + s - 1) products instead of m n r s, between two
transforms. The transforms evaluate polynomials at 0, at pairs of points p and -p, and at infinity
(Toom and Cook; Lavin and Gray, 2016). With the points of `winograd_weights`, the largest error over
sums of 256 channels, against the largest output, is as below; that of a direct sum is 1e-6 to 4e-6.
The usual points 1 and 2 of a side of 6 have four times its error (Barabasz et al., 2020, on the
choice of points).

    side of a tile, m + r - 1    4       6       8       10
    tiles with two axes          8e-7    3e-6    1e-5    not used
    tiles with one axis          5e-7    2e-6    3e-6    8e-6

An axis along which the kernel has one tap is not transformed. Weights are transformed in double
precision when a model is loaded.

Tiles are computed by bands: several rows of tiles, linear in `t`. A packed weight is
[CO / block, *sides, CI / groups, block]. Images of one row, which are signals, are computed as
images of one column: a band then has any number of their tiles.

A convolution with a dilation of d reads, for the outputs of rows r, r + d, r + 2 d..., only every
d-th row of its input. These rows are an image of their own, a phase, which is convolved without
dilation. Phases are numbered like images.

A convolution with a stride of d reads each d-th row of its input with each d-th tap of its kernel,
from each of the first d rows on. These are phases, too, each convolved without a stride; the
outputs are the sums of all, so that phases are numbered like channels, see
`winograd_weights.Phases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from farm.compiler.cpu.conv_dense_compute import CROP, INPUTS, PADDING
from farm.compiler.cpu.kernel_config import KernelConfig, Workload
from farm.compiler.cpu.register_tiles import largest_divisor, round_up_to_multiple
from farm.compiler.ir.annotations import ORDER, OUTPUTS, PHASE_CHANNELS, PHASES, TILE, WORKLOAD
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.winograd_weights import POINTS, Phases, WinogradTile

WINOGRAD = "winograd"  # the main block: a product of matrices for each of a tile's points
# The transforms, each down and then across. Those of an axis with one tap only copy.
ROWS_IN, TILES_IN, ROWS_OUT, TILES_OUT = "rows_in", "tiles_in", "rows_out", "tiles_out"
_REUSED = 16  # TVM lets a register tile share a buffer of at most this many times its size
_LEAST_BYTES = 16 * 1024
_ENOUGH_BLOCKS = 8  # to divide among threads

Array = np.ndarray[Any, Any]
Line = Callable[[int], tirx.Expr]  # the value at each position of a line through a tile


def register_scope(cpu: CpuModel) -> str:
    """Return the scope of what should live in registers.

    TVM lets buffers of the scope "global" share memory, a small one that of a larger one too, and
    LLVM promotes no shared memory to registers. The scope "local" has memory of its own; but with
    it, LLVM spills registers in the transforms for ARM.
    """
    return "local" if cpu.has_memory_operands else "global"


def minimum_unshared_buffer_bytes(cpu: CpuModel) -> int:
    """Return the least bytes of a buffer before the products; smaller ones would be shared."""
    if register_scope(cpu) != "global":
        return 0
    return max(_LEAST_BYTES, _REUSED * 4 * cpu.lanes * cpu.accumulators)


def channel_blocks_per_product(
    cpu: CpuModel, blocks: int, tiles: int, points: int, block: int
) -> int:
    """Return the number of blocks of channels whose products precede their output transforms.

    It applies if blocks are divided among threads. The products go point by point, so that a
    point's inputs are read from memory once for all these blocks. It is above 1 only for in-order
    CPUs, whose loads wait for memory: as many as leave enough blocks to divide among threads, and
    as have their products in half of the L2 cache.
    """
    if not cpu.in_order:
        return 1
    fitting = cpu.l2_bytes // 2 // (4 * tiles * points * block)
    return largest_divisor(blocks, max(1, min(blocks // _ENOUGH_BLOCKS, fitting)))


def _has_one_row(workload: Workload) -> bool:
    """Return whether the images are signals, which are computed as images of one column."""
    return workload.data[1] == workload.output(0) == workload.weight[0] == 1


def _oriented(workload: Workload) -> Workload:
    """Return the convolution with signals as columns, and without dilation along one tap."""
    if _has_one_row(workload):
        workload = workload.turned
    down, across = (
        step if taps > 1 else 1
        for step, taps in zip(workload.dilation, workload.weight[:2], strict=True)
    )
    return replace(workload, dilation=(down, across))


def workload_of_tiles(workload: Workload) -> Workload:
    """Return the convolution that tiles compute: of a signal as a column, by phases.

    It has neither dilation nor strides. A dilated convolution has an image for each phase of each
    image; all phases have the extents of the largest. One with strides has channels for each phase.
    In both cases the padding is part of the images. There is no dilation where there are strides.
    """
    workload = _oriented(workload)
    if workload.dilation == workload.strides == (1, 1):
        return workload
    phases = _phases(workload)
    kernel_h, kernel_w = phases.taps_of_each
    down, across = workload.dilation
    height, width = -(-workload.output(0) // down), -(-workload.output(1) // across)
    return replace(
        workload,
        data=(
            workload.data[0] * down * across,
            height + kernel_h - 1,
            width + kernel_w - 1,
            workload.data[3] * math.prod(phases.counts),
        ),
        weight=phases.shape(workload.weight),
        strides=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def _phases(workload: Workload) -> Phases:
    """Return the phases of the strides."""
    (kernel_h, kernel_w, *_), (down, across) = workload.weight, workload.strides
    return Phases((kernel_h, kernel_w), (down, across))


def winograd_conv2d_compute(
    workload: Workload,
    config: KernelConfig,
    size: int,
    band: int,
    grouped_loads: bool,
    data: te.Tensor,
    weight: te.Tensor,
) -> te.Tensor:
    """Define a convolution by tiles of `size`, `band` rows of them at a time.

    A band has at most all rows: with more, the schedule of a dilated convolution would be wrong.
    `size` is that of `WinogradTile.for_weight`. `grouped_loads`: the inputs of several reduction
    steps are loaded together, see register_tiles.
    """
    turned, key = _has_one_row(workload), workload.key
    tiled, workload = workload_of_tiles(workload), _oriented(workload)
    tile, phases = WinogradTile.for_weight(size, tiled.weight), _phases(workload)
    (tile_h, tile_w), (side_h, side_w), (kernel_h, kernel_w) = tile.outputs, tile.sides, tile.taps
    (_, height, width, channels), images = workload.data, data.shape[0]
    top, left, _, _ = workload.padding
    out_h, out_w = workload.output(0), workload.output(1)
    (down, across), (stride_h, stride_w) = workload.dilation, workload.strides
    phase_count = math.prod(phases.counts)
    band = min(band, -(-tiled.output(0) // tile_h))
    columns, bands = -(-tiled.output(1) // tile_w), -(-tiled.output(0) // (tile_h * band))
    count = images * (down * across)
    tiles = band * columns
    covered = round_up_to_multiple(tiles, config.tile.pixels)
    blocks, _, _, group_depth, block = (int(extent) for extent in weight.shape)
    depth, group_channels = group_depth * workload.groups, workload.channels // workload.groups
    inputs_of_group, of_all_phases = workload.weight[2], tiled.weight[2]
    padded_h, padded_w = bands * band * tile_h + kernel_h - 1, columns * tile_w + kernel_w - 1

    def padded(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        if (stride_h, stride_w) == (1, 1):
            row, column, channel = y * down + n // across % down, x * across + n % across, c
        else:
            phase = c % of_all_phases // inputs_of_group
            channel = c // of_all_phases * inputs_of_group + c % inputs_of_group
            row = y * stride_h + phase // phases.counts[1]
            column = x * stride_w + phase % phases.counts[1]
        inside = [
            row >= top,
            row < height + top,
            column >= left,
            column < width + left,
            *([c < channels * phase_count] if depth > channels * phase_count else []),
        ]
        place = (column - left, row - top) if turned else (row - top, column - left)
        return tirx.if_then_else(
            tirx.all(*inside),
            data[(n // (down * across), *place, channel)],
            tirx.const(0, "float32"),
        )

    def rows_in(n: te.Var, b: te.Var, r: te.Var, i: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(
            i, _input(side_h, lambda row: source[n, (b * band + r) * tile_h + row, x, c])
        )

    def tiles_in(n: te.Var, b: te.Var, t: te.Var, i: te.Var, j: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(
            j,
            _input(
                side_w,
                lambda column: lines[n, b, t // columns, i, t % columns * tile_w + column, c],
            ),
        )

    def sums(n: te.Var, b: te.Var, t: te.Var, i: te.Var, j: te.Var, c: te.Var) -> tirx.Expr:
        first = c // group_channels * group_depth if workload.groups > 1 else 0
        point = (j, i) if turned else (i, j)
        return te.sum(
            inputs(n, b, t, i, j, first + rc) * weight[(c // block, *point, rc, c % block)],
            axis=[rc],
        )

    def read(n: te.Var, b: te.Var, t: te.Var, i: te.Var, j: te.Var, step: te.Var) -> tirx.Expr:
        return points[n, b, t if covered == tiles else te.min(t, tiles - 1), i, j, step]

    # One index counts the tiles of all bands: for a part of a tile's rows, TVM then sees from
    # y // tile_h alone that they belong to one tile.
    def rows_out(n: te.Var, t: te.Var, y: te.Var, j: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(
            y, _output(tile_h, side_h, lambda i: main[n, t // tiles, t % tiles, i, j, c])
        )

    def tiles_out(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        place = y // tile_h * columns + x // tile_w
        return _one_of(
            x % tile_w, _output(tile_w, side_w, lambda j: result[n, place, y % tile_h, j, c])
        )

    strided = {PHASE_CHANNELS: inputs_of_group} if phase_count > 1 else {}
    source = te.compute((count, padded_h, padded_w, depth), padded, name=PADDING, attrs=strided)
    lines = te.compute((count, bands, band, side_h, padded_w, depth), rows_in, name=ROWS_IN)
    points = te.compute((count, bands, tiles, side_h, side_w, depth), tiles_in, name=TILES_IN)
    inputs = (
        te.compute((count, bands, covered, side_h, side_w, depth), read, name=INPUTS)
        if grouped_loads
        else read
    )
    rc = te.reduce_axis((0, group_depth), name="rc")
    attributes = {
        TILE: [config.tile.pixels, config.tile.vectors, config.tile.lanes],
        ORDER: config.order,
        WORKLOAD: key,
        OUTPUTS: list(tile.outputs),
    }
    main = te.compute(
        (count, bands, covered, side_h, side_w, blocks * block),
        sums,
        name=WINOGRAD,
        attrs=attributes,
    )
    result = te.compute(
        (count, bands * tiles, tile_h, side_w, blocks * block), rows_out, name=ROWS_OUT
    )
    whole = te.compute(
        (count, bands * band * tile_h, columns * tile_w, blocks * block), tiles_out, name=TILES_OUT
    )

    def crop(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        y, x = (x, y) if turned else (y, x)
        phase = (n * down + y % down) * across + x % across
        return whole[phase, y // down, x // across, c]

    # If a phase has fewer rows than another, its last row is no output, and the results cannot be
    # iterated phase by phase: they are copied.
    as_many_in_each = out_h % down == out_w % across == 0
    dilated = {PHASES: [down, across]} if down * across > 1 and as_many_in_each else {}
    extents = (out_w, out_h) if turned else (out_h, out_w)
    return te.compute((images, *extents, workload.channels), crop, name=CROP, attrs=dilated)


def _input(side: int, line: Line) -> list[tirx.Expr]:
    """Return the values of an input line: at 0, at each pair of points, at infinity.

    LLVM computes the common subexpressions of a pair once.
    """
    if side == 1:
        return [line(0)]
    squares = [point * point for point in POINTS[side]]
    values = [_even(squares, line, 0)]
    for index, point in enumerate(POINTS[side]):
        others = squares[:index] + squares[index + 1 :]
        even, odd = _even(others, line, 2), _scaled(point, _even(others, line, 1))
        values += [even + odd, even - odd]
    return [*values, _even(squares, line, 1)]


def _even(squares: Sequence[float], line: Line, first: int) -> tirx.Expr:
    """Apply the polynomial with the roots +-sqrt(squares) to every second value of the line."""
    low, *coefficients = np.poly(squares)[::-1] if squares else [1.0]
    terms = [
        _scaled(float(value), line(first + 2 * power))
        for power, value in enumerate([low, *coefficients])
    ]
    return reduce(lambda total, term: total + term, terms[::-1])


def _output(size: int, side: int, line: Line) -> list[tirx.Expr]:
    """Return the `size` outputs of a line of `side` products."""
    if side == 1:
        return [line(0)]
    pairs = [
        (point, line(2 * index + 1), line(2 * index + 2))
        for index, point in enumerate(POINTS[side])
    ]
    outputs = []
    for power in range(size):
        terms = [
            _scaled(point**power, plus - minus if power % 2 else plus + minus)
            for point, plus, minus in pairs
        ]
        ends = [line(0)] * (power == 0) + [line(side - 1)] * (power == size - 1)
        outputs.append(reduce(lambda total, term: total + term, [*terms, *ends]))
    return outputs


def _scaled(factor: float, value: tirx.Expr) -> tirx.Expr:
    rounded = round(factor, 12)  # powers of roots may be integers
    return value if rounded == 1 else tirx.const(rounded, "float32") * value


def _one_of(index: tvm.tirx.Expr, values: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the value at an index that is constant once its loop is unrolled."""
    *rest, chosen = values
    for place in reversed(range(len(rest))):
        chosen = tirx.Select(index == place, rest[place], chosen)
    return chosen
