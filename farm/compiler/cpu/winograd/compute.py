"""Define Winograd's convolution F(m x m, 3 x 3).

Each tile of m x m outputs takes (m + 2)^2 products instead of 9 m^2, between two transforms. The
transforms evaluate polynomials at 0, at pairs of points p and -p, and at infinity (Toom and Cook;
Lavin and Gray, 2016). For m = 2 all constants are 1. For m = 4 the points are the roots of 1/2 and
2, whose products are powers of two: with them the largest error over sums of 256 channels is about
2e-6 of the largest output, as of a direct sum; with the usual points 1 and 2 it is three times as
large (Barabasz et al., 2020, on the choice of points). Weights are transformed in double precision
when a model is loaded.

Tiles are computed by bands: several rows of tiles, linear in `t`. A packed weight is
[CO / block, m + 2, m + 2, CI / groups, block].

A convolution with a dilation of d reads, for the outputs of rows r, r + d, r + 2 d..., only every
d-th row of its input. These rows are an image of their own, a phase, which is convolved without
dilation. Phases are numbered like images.
"""

from __future__ import annotations

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
from farm.compiler.ir.annotations import ORDER, PHASES, TILE, WORKLOAD
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.winograd_weights import POINTS

WINOGRAD = "winograd"  # the main block: a product of matrices for each of the (m + 2)^2 points
# The transforms, each down and then across.
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
    cpu: CpuModel, blocks: int, tiles: int, size: int, block: int
) -> int:
    """Return the number of blocks of channels whose products precede their output transforms.

    It applies if blocks are divided among threads. The products go point by point, so that a
    point's inputs are read from memory once for all these blocks. It is above 1 only for in-order
    CPUs, whose loads wait for memory: as many as leave enough blocks to divide among threads, and
    as have their products in half of the L2 cache.
    """
    if not cpu.in_order:
        return 1
    fitting = cpu.l2_bytes // 2 // (4 * tiles * (size + 2) ** 2 * block)
    return largest_divisor(blocks, max(1, min(blocks // _ENOUGH_BLOCKS, fitting)))


def workload_of_phases(workload: Workload) -> Workload:
    """Return a convolution without dilation over the phases of a dilated one.

    It has an image for each phase of each image, and the padding is part of the images. All phases
    have the extents of the largest.
    """
    down, across = workload.dilation
    if down == across == 1:
        return workload
    height, width = -(-workload.output(0) // down), -(-workload.output(1) // across)
    kernel_h, kernel_w = workload.weight[:2]
    return replace(
        workload,
        data=(
            workload.data[0] * down * across,
            height + kernel_h - 1,
            width + kernel_w - 1,
            workload.data[3],
        ),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def winograd_conv2d_compute(
    workload: Workload,
    config: KernelConfig,
    size: int,
    band: int,
    grouped_loads: bool,
    data: te.Tensor,
    weight: te.Tensor,
) -> te.Tensor:
    """Define a convolution of 3 x 3, stride 1, by tiles of `size`, `band` rows of them at a time.

    `grouped_loads`: the inputs of several reduction steps are loaded together, see register_tiles.
    """
    (_, height, width, channels), images = workload.data, data.shape[0]
    (top, left, _, _), side = workload.padding, size + 2
    out_h, out_w = workload.output(0), workload.output(1)
    (down, across), phases = workload.dilation, workload_of_phases(workload)
    columns, bands = -(-phases.output(1) // size), -(-phases.output(0) // (size * band))
    count = images * (down * across)
    tiles = band * columns
    covered = round_up_to_multiple(tiles, config.tile.pixels)
    blocks, _, _, group_depth, block = (int(extent) for extent in weight.shape)
    depth, group_channels = group_depth * workload.groups, workload.channels // workload.groups

    def padded(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        row, column = y * down + n // across % down, x * across + n % across
        inside = [
            row >= top,
            row < height + top,
            column >= left,
            column < width + left,
            *([c < channels] if depth > channels else []),
        ]
        return tirx.if_then_else(
            tirx.all(*inside),
            data[n // (down * across), row - top, column - left, c],
            tirx.const(0, "float32"),
        )

    def rows_in(n: te.Var, b: te.Var, r: te.Var, i: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(i, _input(size, lambda row: source[n, (b * band + r) * size + row, x, c]))

    def tiles_in(n: te.Var, b: te.Var, t: te.Var, i: te.Var, j: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(
            j,
            _input(
                size, lambda column: lines[n, b, t // columns, i, t % columns * size + column, c]
            ),
        )

    def sums(n: te.Var, b: te.Var, t: te.Var, i: te.Var, j: te.Var, c: te.Var) -> tirx.Expr:
        first = c // group_channels * group_depth if workload.groups > 1 else 0
        return te.sum(
            inputs(n, b, t, i, j, first + rc) * weight[c // block, i, j, rc, c % block], axis=[rc]
        )

    def read(n: te.Var, b: te.Var, t: te.Var, i: te.Var, j: te.Var, step: te.Var) -> tirx.Expr:
        return points[n, b, t if covered == tiles else te.min(t, tiles - 1), i, j, step]

    # One index counts the tiles of all bands: for half of a tile's rows, TVM then sees from
    # y // size alone that they belong to one tile.
    def rows_out(n: te.Var, t: te.Var, y: te.Var, j: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(y, _output(size, lambda i: main[n, t // tiles, t % tiles, i, j, c]))

    def tiles_out(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        return _one_of(
            x % size,
            _output(size, lambda j: result[n, y // size * columns + x // size, y % size, j, c]),
        )

    source = te.compute(
        (count, bands * band * size + 2, columns * size + 2, depth), padded, name=PADDING
    )
    lines = te.compute((count, bands, band, side, columns * size + 2, depth), rows_in, name=ROWS_IN)
    points = te.compute((count, bands, tiles, side, side, depth), tiles_in, name=TILES_IN)
    inputs = (
        te.compute((count, bands, covered, side, side, depth), read, name=INPUTS)
        if grouped_loads
        else read
    )
    rc = te.reduce_axis((0, group_depth), name="rc")
    tile = [config.tile.pixels, config.tile.vectors, config.tile.lanes]
    attributes = {TILE: tile, ORDER: config.order, WORKLOAD: workload.key}
    main = te.compute(
        (count, bands, covered, side, side, blocks * block), sums, name=WINOGRAD, attrs=attributes
    )
    result = te.compute((count, bands * tiles, size, side, blocks * block), rows_out, name=ROWS_OUT)
    whole = te.compute(
        (count, bands * band * size, columns * size, blocks * block), tiles_out, name=TILES_OUT
    )

    def crop(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        phase = (n * down + y % down) * across + x % across
        return whole[phase, y // down, x // across, c]

    # If a phase has fewer rows than another, its last row is no output, and the results cannot be
    # iterated phase by phase: they are copied.
    as_many_in_each = out_h % down == out_w % across == 0
    dilated = {PHASES: [down, across]} if down * across > 1 and as_many_in_each else {}
    return te.compute((images, out_h, out_w, workload.channels), crop, name=CROP, attrs=dilated)


def _input(size: int, line: Line) -> list[tirx.Expr]:
    """Return the m + 2 values of an input line: at 0, at each pair of points, at infinity.

    LLVM computes the common subexpressions of a pair once.
    """
    squares = [point * point for point in POINTS[size]]
    values = [_even(squares, line, 0)]
    for index, point in enumerate(POINTS[size]):
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


def _output(size: int, line: Line) -> list[tirx.Expr]:
    """Return the m outputs of a line of m + 2 products."""
    pairs = [
        (point, line(2 * index + 1), line(2 * index + 2))
        for index, point in enumerate(POINTS[size])
    ]
    outputs = []
    for power in range(size):
        terms = [
            _scaled(point**power, plus - minus if power % 2 else plus + minus)
            for point, plus, minus in pairs
        ]
        ends = [line(0)] * (power == 0) + [line(size + 1)] * (power == size - 1)
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
