"""Operators that look at each channel by itself through a window: depthwise convolution, maximum and average pooling.

The input is read where it lies: no padded copy is made. Whether a tap is in the image is asked for rows and columns, never for channels,
and LLVM takes the questions out of the loops. Activations are NHWC.

On a 64-bit ARM core in order, where a load waits for multiply-adds, a depthwise convolution loads what a row of its window takes for a
tile before it multiplies any of it: see `fences`. Its tiles need not divide a row: what lies beyond is thrown away. Rows of a window that
lie beyond the image are left out; which columns do, is known for each tile of a row, where these are few enough to be code of their own.
Where tiles fill the image, they have several rows: see `rolled`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.choices import DIRECT, Choice, Workload
from farm.compiler.core import Core
from farm.compiler.fences import EACH, FENCE
from farm.compiler.loops import CROP, DEPTHWISE, DEPTHWISE_INT8, INPUTS, PADDING, POOL, cropped, notes_of, padded
from farm.compiler.rolled import ROWS, roll
from farm.compiler.rules import inline_epilogue, inputs_of, load_by_groups, main_block, sources_of, tile_of
from farm.compiler.spread import extent, in_parallel, name_of, spread, vectorized_tail
from farm.compiler.tiles import Tile, divisor, in_groups, up_to_multiple

AVERAGE = "average_pool"
_ROWS = 7  # of a tile at most: more have more addresses than registers
_FAR_ROWS = 4  # where each row needs an address of its own
_UNROLLED_TILES = 5  # of a row: what is asked of a column is known in each; more keep too many addresses
_UNROLLED_TAPS = 49  # 7 x 7: more make the code grow without bounds
_STRIPS = 8  # of an image, to share out among threads
_OTHERS = 2  # registers that tiles leave free: they are for bounds of what follows
_WAIT_CYCLES = 6  # of a row's first load for the multiply-adds before it
_RESULT_CYCLES = 4  # of a vector, its bounds and its store
_TILE_CYCLES = 20  # besides
_OVERLAP_COST = 1.5  # of vectors of which the last overlaps with the one before: what follows them takes another pass over a row

Expr = Any
Array = np.ndarray[Any, Any]


def depthwise(workload: Workload, choice: Choice, rows: int, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """A convolution of each channel by itself. `weight` is [KH, KW, channels], these in the order of `computed`.

    `rows` of a tile: what a row of the window takes is loaded before its products, for whole tiles; 0 where not.
    """
    covered = up_to_multiple(workload.output(1), choice.tile.pixels) if rows else workload.output(1)
    top, left, bottom, right = workload.padding
    source = padded(data, (top, left, bottom, right + (covered - workload.output(1)) * workload.strides[1]))
    if rows == 1:
        source = _rows(workload, source)
    elif rows:
        image = source
        source = te.compute(image.shape, lambda *at: image[at], name=INPUTS)
    return _windows(workload, choice, DEPTHWISE, source, te.sum, lambda value, at: value * weight[at], covered, rows)


def _rows(workload: Workload, source: te.Tensor) -> te.Tensor:
    """For each row of the output, the rows of the input that its windows take: [N, output's rows, KH, W, channels]."""
    count, _, width, channels = source.shape

    def read(n: te.Var, y: te.Var, ry: te.Var, x: te.Var, c: te.Var) -> Expr:
        return source[n, y * workload.strides[0] + ry * workload.dilation[0], x, c]

    return te.compute((count, workload.output(0), workload.weight[0], width, channels), read, name=INPUTS)


def depthwise_int8(
    workload: Workload, choice: Choice, multiply: Callable[[Expr, Expr], Expr], data: te.Tensor, weight: te.Tensor
) -> te.Tensor:
    """The same of 8-bit integers with a weight of int16; `multiply` makes a number of 32 bits of two of 16."""
    source = padded(data, workload.padding)
    return _windows(workload, choice, DEPTHWISE_INT8, source, te.sum, lambda value, at: multiply(value.astype("int16"), weight[at]))


def max_pool(workload: Workload, choice: Choice, data: te.Tensor) -> te.Tensor:
    """The largest of each channel in a window; padding is minus infinity, or the least integer."""
    outside = te.min_value(str(data.dtype)).value if "int" in str(data.dtype) else float("-inf")
    return _windows(workload, choice, POOL, padded(data, workload.padding, outside=outside), te.max, lambda value, _: value)


def average_pool(workload: Workload, choice: Choice, data: te.Tensor, shares: te.Tensor) -> te.Tensor:
    """The sum of each channel in a window, times the window's own share, [H, W]."""
    total = _windows(workload, choice, AVERAGE, padded(data, workload.padding), te.sum, lambda value, _: value)
    return te.compute(total.shape, lambda n, y, x, c: total[n, y, x, c] * shares[y, x], name="mean")


def shares(workload: Workload, counted: Sequence[int]) -> Array:
    """One over how many of its taps count, for each window: those in the image and in the padding `counted`, top, left, bottom, right."""
    numbers = []
    for axis in (0, 1):
        first = np.arange(workload.output(axis)) * workload.strides[axis] - workload.padding[axis]
        taps = first[:, None] + np.arange(workload.weight[axis]) * workload.dilation[axis]
        numbers.append(((taps >= -counted[axis]) & (taps < workload.data[1 + axis] + counted[axis + 2])).sum(axis=1))
    return np.asarray(1 / np.maximum(np.outer(*numbers), 1), "float32")


def computed(channels: int, lanes: int) -> list[int]:
    """The channels in the order of computation. Where they fill no whole vectors, the last vector overlaps with the one before."""
    begins = (min(first, channels - lanes) for first in range(0, channels, lanes))
    return [begin + lane for begin in begins for lane in range(lanes)]


def _windows(
    workload: Workload,
    choice: Choice,
    name: str,
    source: te.Tensor,
    reducer: Callable[..., Any],
    value_of: Callable[[Expr, tuple[Any, ...]], Expr],
    covered: int = 0,
    rows: int = 0,
) -> te.Tensor:
    """Reduce each window: to the channels of `computed` in the main block, then, where these are others, to [N, H, W, C].

    `source` is the image, or its `_rows`, with room for `covered` columns of the output; `rows` those of a tile.
    """
    (stride_y, stride_x), (dilation_y, dilation_x) = workload.strides, workload.dilation
    lanes, channels = choice.tile.lanes, workload.data[3]
    overlap = -channels % lanes
    ry, rx = te.reduce_axis((0, workload.weight[0]), name="ry"), te.reduce_axis((0, workload.weight[1]), name="rx")

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> Expr:
        row, column = y * stride_y + ry * dilation_y, x * stride_x + rx * dilation_x
        channel = te.min(c // lanes * lanes, channels - lanes) + c % lanes if overlap else c
        at = (n, y, ry, column, channel) if len(source.shape) == 5 else (n, row, column, channel)
        return reducer(value_of(source[at], (ry, rx, c)), axis=[ry, rx])

    shape = (source.shape[0], workload.output(0), workload.output(1))
    notes = {**notes_of(workload, choice), **({ROWS: rows} if rows > 1 else {})}
    main = te.compute((*shape[:2], covered or shape[2], channels + overlap), value, name=name, attrs=notes)
    if not overlap:
        return cropped(main, (*shape, channels))
    early = channels + overlap - lanes  # where the last vector begins
    return te.compute((*shape, channels), lambda n, y, x, c: main[n, y, x, c + tirx.Select(c >= early, overlap, 0)], name=CROP)


def by_rows(workload: Workload, core: Core) -> bool:
    """Whether a depthwise convolution loads what a row of its window takes first: where registers hold it, and it is unrolled."""
    kernel_h, kernel_w, *_ = workload.weight
    if workload.operator != DEPTHWISE or not in_groups(core, workload.data[3]) or kernel_h * kernel_w > _UNROLLED_TAPS:
        return False
    return _row_registers(workload, min(workload.output(1), core.latency // 2)) <= core.registers - _OTHERS


def _row_inputs(workload: Workload, pixels: int) -> int:
    """Columns of the input that the windows of so many neighbours take."""
    return (pixels - 1) * workload.strides[1] + (workload.weight[1] - 1) * workload.dilation[1] + 1


def _row_registers(workload: Workload, pixels: int) -> int:
    """Of a tile's sums, and of what a row of its windows takes."""
    return pixels + _row_inputs(workload, pixels) + workload.weight[1]


def rows_of(workload: Workload, choice: Choice, core: Core) -> int:
    """The rows of a tile: several where registers hold the sums of a whole window's, and its weights; 0 where nothing is loaded by rows."""
    return _tile_rows(workload, core, choice.tile.pixels) if by_rows(workload, core) else 0


def _tile_rows(workload: Workload, core: Core, pixels: int) -> int:
    """Only where tiles fill the image: sums then begin with a bias, and addresses are few enough for their registers.

    Nor where rows of windows lie further apart: LLVM leaves their sums in memory.
    """
    kernel_h, kernel_w, *_ = workload.weight
    needed = kernel_h * pixels + _row_inputs(workload, pixels) + kernel_h * kernel_w
    if needed > core.registers - 2 * _OTHERS or workload.output(1) % pixels or workload.strides[0] * workload.dilation[0] > 1:
        return 1
    near = 3 * 4 * workload.data[2] * workload.data[3] <= 1 << 16  # rows: three of them in the reach of one address
    return divisor(workload.output(0), _ROWS if near else _FAR_ROWS)


def _row_candidates(workload: Workload, core: Core) -> list[tuple[Choice, float]]:
    """The heights of a tile that registers hold."""
    (height, width), (kernel_h, kernel_w, *_) = (workload.output(0), workload.output(1)), workload.weight
    found = []
    for high in range(1, width + 1):
        rows = _tile_rows(workload, core, high)
        if rows > 1 or _row_registers(workload, high) <= core.registers - _OTHERS:
            reached = Counter(row + tap for row in range(rows) for tap in range(kernel_h))
            loads = (_row_inputs(workload, high) + (kernel_w if rows == 1 else 0)) / core.loads + _WAIT_CYCLES
            sums = sum(loads + kernel_w * max(high * together / core.multiply_adds, core.latency) for together in reached.values())
            cycles = sums + rows * high * _RESULT_CYCLES + _TILE_CYCLES
            tiles = workload.data[0] * -(-height // rows) * -(-width // high) * workload.data[3] // core.lanes
            found.append((Choice(DIRECT, Tile(high, 1, core.lanes)), tiles * cycles))
    return found


def window_candidates(workload: Workload, core: Core) -> list[tuple[Choice, float]]:
    """The heights of a tile of one vector, by the cycles of its loads: those of neighbouring taps are shared."""
    if by_rows(workload, core):
        return _row_candidates(workload, core)
    width, channels = workload.output(1), workload.data[3]
    lanes = _lanes(core, channels)
    kernel_h, kernel_w = workload.weight[:2]
    rows = workload.data[0] * workload.output(0) * -(-channels // lanes)
    found = []
    highest = core.registers // (8 if core.in_order else 4)  # in order, the inputs are loaded far ahead
    for high in range(1, min(width, highest) + 1):
        loads = min(high * kernel_w, (high - 1) * workload.strides[1] + kernel_w) + kernel_w
        cycles = kernel_h * max(loads / core.loads, high * kernel_w / core.multiply_adds) + core.latency
        found.append((Choice(DIRECT, Tile(high, 1, lanes)), rows * -(-width // high) * cycles))
    return found


def _lanes(core: Core, channels: int) -> int:
    """The widest vectors of a core that divide the channels; full ones of which the last overlaps, where those are many more.

    Any other number of lanes takes as long as a full vector, or as two.
    """
    fitting = [width for width in core.widths if width <= channels]
    if not fitting:
        return divisor(channels, core.lanes)
    dividing = next((width for width in fitting if channels % width == 0), 0)
    overlapping = -(-channels // fitting[0]) * _OVERLAP_COST
    return dividing if dividing and channels // dividing <= overlapping else fitting[0]


def schedule_windows(work: Schedule, core: Core) -> None:
    """A row of pixels for one vector of channels, the window's taps unrolled; then what follows, on that tile.

    Where the vectors overlap, it follows a row at a time.
    """
    main = main_block(work, tuple(WINDOW_RULES))
    for block in sources_of(work, main):
        if name_of(work, block) == PADDING:
            work.compute_inline(block)
    before = sources_of(work, main)
    last = inline_epilogue(work, main, core)
    tile, followed = tile_of(work, main), _channels(work, main) == _channels(work, last)
    if ROWS in work.get(main).annotations:
        roll(work, core, main, last, strips=_STRIPS, unrolled=_UNROLLED_TILES)
        for other in before:
            spread(work, other, core)
        return
    row = _row(work, main if followed else last, before, core)
    if not followed:
        work.compute_at(main, row, preserve_unit_loops=True)
        vectorized_tail(work, work.get_loops(last)[-1], tile.lanes)
    _tile_row(work, core, main, tile, last if followed else None)


def _row(work: Schedule, block: SBlockRV, apart: list[SBlockRV], core: Core) -> LoopRV:
    """The loop over the rows of a strip; the strips are shared out."""
    n, y, *_ = work.get_loops(block)
    strips, row = work.split(y, [divisor(extent(work, y), _STRIPS), None])
    in_parallel(work, work.fuse(n, strips), [block], core)
    for other in apart:
        spread(work, other, core)
    return row


def _tile_row(work: Schedule, core: Core, main: SBlockRV, tile: Tile, follower: SBlockRV | None) -> None:
    """Tiles of a row, the pixels and the window's taps unrolled, and the follower on each."""
    x, c, ry, rx = work.get_loops(main)[-4:]
    columns, pixels = work.split(x, [None, tile.pixels])
    channels, lanes = work.split(c, [None, tile.lanes])
    work.reorder(columns, channels, ry, rx, pixels, lanes)
    inputs = inputs_of(work, main)
    unrolled, vectors = [pixels], [lanes]
    if extent(work, ry) * extent(work, rx) <= _UNROLLED_TAPS:
        unrolled += [ry, rx]
    if follower is not None:
        work.reverse_compute_at(follower, channels, preserve_unit_loops=True)
        unrolled.append(work.get_loops(follower)[-2])
        vectors.append(work.get_loops(follower)[-1])
    for loop in unrolled:
        work.unroll(loop)
    for loop in vectors:
        work.vectorize(loop)
    if inputs is not None:
        load_by_groups(work, main, inputs, [ry, rx], tile)
        if extent(work, columns) <= _UNROLLED_TILES:
            work.unroll(columns)
    loaded = core.copies_by_loads and name_of(work, main) == DEPTHWISE and tile.lanes == core.lanes
    *_, pixels, lanes = work.get_loops(work.decompose_reduction(main, ry))
    work.unroll(pixels)
    work.vectorize(lanes)
    if loaded:
        work.annotate(pixels, FENCE, EACH)


def _channels(work: Schedule, block: SBlockRV) -> int:
    return int(work.get(block).writes[0].source.shape[-1])


WINDOW_RULES = dict.fromkeys((DEPTHWISE, DEPTHWISE_INT8, POOL, AVERAGE), schedule_windows)
