"""Define and schedule operators that slide a window over each channel by itself.

These are depthwise convolution, maximum and average pooling. No padded copy of the input is made.
Padding is tested per row and column, not per channel; LLVM hoists these tests (loop unswitching).
Activations are NHWC.

On an in-order 64-bit ARM CPU, whose loads wait for multiply-adds, a depthwise convolution loads all
that a row of its window reads for a tile before it multiplies any of it: see load_fences. Its tiles
need not divide a row: the part beyond the row is dropped. Rows of a window beyond the image are
skipped. Which columns are beyond it is known for each tile of a row, if the tiles are few enough to
be unrolled. If tiles fill the image, they have several rows: see depthwise_row_tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.cpu.conv_dense_compute import (
    CROP,
    DEPTHWISE,
    DEPTHWISE_INT8,
    PADDING,
    POOL,
    WINDOW_INPUTS,
    crop,
    kernel_annotations,
    pad_nhwc,
)
from farm.compiler.cpu.conv_dense_schedule import (
    annotated_tile,
    find_grouped_inputs_block,
    find_main_block,
    inline_into_epilogue,
    producer_blocks,
    schedule_grouped_loads,
)
from farm.compiler.cpu.general_schedule import (
    parallelize_and_vectorize_block,
    parallelize_if_long_enough,
    vectorize_with_tail,
)
from farm.compiler.cpu.kernel_config import DIRECT, KernelConfig, Workload
from farm.compiler.cpu.register_tiles import (
    Tile,
    largest_divisor,
    round_up_to_multiple,
    should_group_reduction_step_loads,
)
from farm.compiler.cpu.windows.depthwise_row_tiles import schedule_row_tiles
from farm.compiler.ir.annotations import TILE_ROWS, FenceKind, annotate_fence
from farm.compiler.ir.blocks import block_name, loop_extent
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels import reduce_max_min

AVERAGE = "average_pool"
_ROWS = 7  # of a tile at most: more need more addresses than there are registers
_FAR_ROWS = 4  # the same if each row needs an address of its own
# Of a row: the tests of a column are constant in each; more tiles keep too many addresses.
UNROLLED_TILES = 5
_UNROLLED_TAPS = 49  # 7 x 7: more would make the code too large
_UNROLLED_ROW = 31  # taps of a row of a larger window: tests of columns depend on the tap
_STRIPS = 8  # of an image by tiles of several rows, to divide among threads
_THREADS = (2, 4, 8)  # numbers of threads for which the strips of other images are chosen
_BUFFERED_STRIPS = 16  # at most, if each strip takes and returns a buffer
_OTHERS = 2  # registers that tiles leave free for the bounds of an epilogue
_WAIT_CYCLES = 6  # that a row's first load waits for the multiply-adds before it
_RESULT_CYCLES = 4  # of a vector, its bounds and its store
_TILE_CYCLES = 20  # overhead of a tile
# Factor for vectors of which the last overlaps: their epilogue takes another pass over a row.
_OVERLAP_COST = 1.5

Expr = Any
Array = np.ndarray[Any, Any]


def depthwise_conv2d_compute(
    workload: Workload, config: KernelConfig, rows: int, data: te.Tensor, weight: te.Tensor
) -> te.Tensor:
    """Define a convolution of each channel by itself.

    `weight` is [KH, KW, channels], in `vector_channel_order`. `rows` of a tile: the operands of a
    window row are loaded before its products, for whole tiles; 0 if not.
    """
    covered = (
        round_up_to_multiple(workload.output(1), config.tile.pixels) if rows else workload.output(1)
    )
    top, left, bottom, right = workload.padding
    source = pad_nhwc(
        data, (top, left, bottom, right + (covered - workload.output(1)) * workload.strides[1])
    )
    if rows == 1:
        source = _rows(workload, source)
    elif rows:
        image = source
        source = te.compute(image.shape, lambda n, y, x, c: image[n, y, x, c], name=WINDOW_INPUTS)
    return _windows(
        workload,
        config,
        DEPTHWISE,
        source,
        te.sum,
        lambda value, at: value * weight[at],
        covered,
        rows,
    )


def _rows(workload: Workload, source: te.Tensor) -> te.Tensor:
    """Return, for each row of the output, the rows of the input in its windows.

    The shape is [N, output rows, KH, W, channels].
    """
    count, _, width, channels = source.shape

    def read(n: te.Var, y: te.Var, ry: te.Var, x: te.Var, c: te.Var) -> Expr:
        return source[n, y * workload.strides[0] + ry * workload.dilation[0], x, c]

    return te.compute(
        (count, workload.output(0), workload.weight[0], width, channels), read, name=WINDOW_INPUTS
    )


def depthwise_conv2d_int8_compute(
    workload: Workload,
    config: KernelConfig,
    multiply: Callable[[Expr, Expr], Expr],
    data: te.Tensor,
    weight: te.Tensor,
) -> te.Tensor:
    """Define a depthwise convolution of 8-bit integers with a weight of int16.

    `multiply` returns the 32-bit product of two 16-bit numbers.
    """
    source = pad_nhwc(data, workload.padding)
    return _windows(
        workload,
        config,
        DEPTHWISE_INT8,
        source,
        te.sum,
        lambda value, at: multiply(value.astype("int16"), weight[at]),
    )


def max_pool2d_compute(workload: Workload, config: KernelConfig, data: te.Tensor) -> te.Tensor:
    """Define the maximum of each channel in a window.

    Padding is minus infinity or the least integer.
    """
    is_float = "int" not in str(data.dtype)
    outside = float("-inf") if is_float else te.min_value(str(data.dtype)).value
    return _windows(
        workload,
        config,
        POOL,
        pad_nhwc(data, workload.padding, outside=outside),
        reduce_max_min.reduce_max if is_float else te.max,
        lambda value, _: value,
    )


def avg_pool2d_compute(
    workload: Workload, config: KernelConfig, data: te.Tensor, shares: te.Tensor
) -> te.Tensor:
    """Define the sum of each channel in a window times the window's inverse count, [H, W]."""
    total = _windows(
        workload, config, AVERAGE, pad_nhwc(data, workload.padding), te.sum, lambda value, _: value
    )
    return te.compute(total.shape, lambda n, y, x, c: total[n, y, x, c] * shares[y, x], name="mean")


def avg_pool2d_inverse_counts(workload: Workload, counted: Sequence[int]) -> Array:
    """Return one over the number of taps that count, for each window.

    Taps count in the image and in the padding `counted`: top, left, bottom, right.
    """
    numbers = []
    for axis in (0, 1):
        first = np.arange(workload.output(axis)) * workload.strides[axis] - workload.padding[axis]
        taps = first[:, None] + np.arange(workload.weight[axis]) * workload.dilation[axis]
        numbers.append(
            ((taps >= -counted[axis]) & (taps < workload.data[1 + axis] + counted[axis + 2])).sum(
                axis=1
            )
        )
    return np.asarray(1 / np.maximum(np.outer(*numbers), 1), "float32")


def vector_channel_order(channels: int, lanes: int) -> list[int]:
    """Return the channels in the order of computation.

    If they fill no whole vectors, the last vector overlaps with the one before.
    """
    begins = (min(first, channels - lanes) for first in range(0, channels, lanes))
    return [begin + lane for begin in begins for lane in range(lanes)]


def _windows(
    workload: Workload,
    config: KernelConfig,
    name: str,
    source: te.Tensor,
    reducer: Callable[..., Any],
    value_of: Callable[[Expr, tuple[Any, ...]], Expr],
    covered: int = 0,
    rows: int = 0,
) -> te.Tensor:
    """Define the reduction of each window.

    The main block computes the channels in `vector_channel_order`; if that repeats some, another
    block returns [N, H, W, C]. `source` is the image, or its `_rows`, with room for `covered`
    columns of the output; `rows` are the rows of a tile.
    """
    (stride_y, stride_x), (dilation_y, dilation_x) = workload.strides, workload.dilation
    lanes, channels = config.tile.lanes, workload.data[3]
    overlap = -channels % lanes
    ry, rx = (
        te.reduce_axis((0, workload.weight[0]), name="ry"),
        te.reduce_axis((0, workload.weight[1]), name="rx"),
    )

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> Expr:
        row, column = y * stride_y + ry * dilation_y, x * stride_x + rx * dilation_x
        channel = te.min(c // lanes * lanes, channels - lanes) + c % lanes if overlap else c
        at = (n, y, ry, column, channel) if len(source.shape) == 5 else (n, row, column, channel)
        return reducer(value_of(source[at], (ry, rx, c)), axis=[ry, rx])

    shape = (source.shape[0], workload.output(0), workload.output(1))
    notes = {**kernel_annotations(workload, config), **({TILE_ROWS: rows} if rows > 1 else {})}
    main = te.compute(
        (*shape[:2], covered or shape[2], channels + overlap), value, name=name, attrs=notes
    )
    if not overlap:
        return crop(main, (*shape, channels))
    early = channels + overlap - lanes  # where the last vector begins
    return te.compute(
        (*shape, channels),
        lambda n, y, x, c: main[n, y, x, c + tirx.Select(c >= early, overlap, 0)],
        name=CROP,
    )


def uses_row_loads(workload: Workload, cpu: CpuModel) -> bool:
    """Return whether a depthwise convolution loads the operands of a window row first.

    It does if registers hold them and the window is unrolled.
    """
    kernel_h, kernel_w, *_ = workload.weight
    if (
        workload.operator != DEPTHWISE
        or not should_group_reduction_step_loads(cpu, workload.data[3])
        or kernel_h * kernel_w > _UNROLLED_TAPS
    ):
        return False
    return (
        _row_registers(workload, min(workload.output(1), cpu.fma_latency // 2))
        <= cpu.registers - _OTHERS
    )


def _row_inputs(workload: Workload, pixels: int) -> int:
    """Return the columns of the input in the windows of `pixels` neighbours."""
    return (pixels - 1) * workload.strides[1] + (workload.weight[1] - 1) * workload.dilation[1] + 1


def _row_registers(workload: Workload, pixels: int) -> int:
    """Return the registers for a tile's sums and for the operands of a window row."""
    return pixels + _row_inputs(workload, pixels) + workload.weight[1]


def rows_per_tile(workload: Workload, config: KernelConfig, cpu: CpuModel) -> int:
    """Return the rows of a tile; 0 if operands are not loaded by rows.

    There are several if registers hold the sums of a whole window's rows, and its weights.
    """
    return _tile_rows(workload, cpu, config.tile.pixels) if uses_row_loads(workload, cpu) else 0


def _tile_rows(workload: Workload, cpu: CpuModel, pixels: int) -> int:
    """Return the rows of a tile of `pixels` columns.

    There are several only if tiles fill the image: sums are then initialised with a bias, and
    addresses are few enough for their registers. There is one if the rows of windows are more than
    a row apart: LLVM would leave their sums in memory.
    """
    kernel_h, kernel_w, *_ = workload.weight
    needed = kernel_h * pixels + _row_inputs(workload, pixels) + kernel_h * kernel_w
    if (
        needed > cpu.registers - 2 * _OTHERS
        or workload.output(1) % pixels
        or workload.strides[0] * workload.dilation[0] > 1
    ):
        return 1
    near = (
        3 * 4 * workload.data[2] * workload.data[3] <= 1 << 16
    )  # three rows are in the reach of one address
    return largest_divisor(workload.output(0), _ROWS if near else _FAR_ROWS)


def _row_candidates(workload: Workload, cpu: CpuModel) -> list[tuple[KernelConfig, float]]:
    """Return the tile widths that registers hold, with predicted cycles."""
    (height, width), (kernel_h, kernel_w, *_) = (
        (workload.output(0), workload.output(1)),
        workload.weight,
    )
    found = []
    for high in range(1, width + 1):
        rows = _tile_rows(workload, cpu, high)
        if rows > 1 or _row_registers(workload, high) <= cpu.registers - _OTHERS:
            reached = Counter(row + tap for row in range(rows) for tap in range(kernel_h))
            loads = (
                _row_inputs(workload, high) + (kernel_w if rows == 1 else 0)
            ) / cpu.loads_per_cycle + _WAIT_CYCLES
            sums = sum(
                loads + kernel_w * max(high * together / cpu.fmas_per_cycle, cpu.fma_latency)
                for together in reached.values()
            )
            cycles = sums + rows * high * _RESULT_CYCLES + _TILE_CYCLES
            tiles = (
                workload.data[0]
                * -(-height // rows)
                * -(-width // high)
                * workload.data[3]
                // cpu.lanes
            )
            found.append((KernelConfig(DIRECT, Tile(high, 1, cpu.lanes)), tiles * cycles))
    return found


def sliding_window_candidates(
    workload: Workload, cpu: CpuModel
) -> list[tuple[KernelConfig, float]]:
    """Return the tile widths for one vector of channels, with predicted cycles.

    The loads of neighbouring taps are shared.
    """
    if uses_row_loads(workload, cpu):
        return _row_candidates(workload, cpu)
    width, channels = workload.output(1), workload.data[3]
    lanes = _lanes(cpu, channels)
    kernel_h, kernel_w = workload.weight[:2]
    rows = workload.data[0] * workload.output(0) * -(-channels // lanes)
    found = []
    highest = cpu.registers // (
        8 if cpu.in_order else 4
    )  # in-order CPUs: LLVM loads the inputs far ahead
    for high in range(1, min(width, highest) + 1):
        loads = min(high * kernel_w, (high - 1) * workload.strides[1] + kernel_w) + kernel_w
        cycles = (
            kernel_h * max(loads / cpu.loads_per_cycle, high * kernel_w / cpu.fmas_per_cycle)
            + cpu.fma_latency
        )
        found.append(
            (KernelConfig(DIRECT, Tile(high, 1, lanes)), rows * -(-width // high) * cycles)
        )
    return found


def _lanes(cpu: CpuModel, channels: int) -> int:
    """Return the widest vectors that divide the channels, or full ones of which the last overlaps.

    The latter if narrow vectors would be many more. Any other number of lanes takes as long as a
    full vector, or as two.
    """
    fitting = [width for width in cpu.vector_widths if width <= channels]
    if not fitting:
        return largest_divisor(channels, cpu.lanes)
    dividing = next((width for width in fitting if channels % width == 0), 0)
    overlapping = -(-channels // fitting[0]) * _OVERLAP_COST
    return dividing if dividing and channels // dividing <= overlapping else fitting[0]


def schedule_sliding_windows(sch: Schedule, cpu: CpuModel) -> None:
    """Compute a row of pixels for one vector of channels, then the epilogue on it.

    The taps of the window are unrolled.

    If the vectors overlap, the epilogue follows a row at a time.
    """
    main = find_main_block(sch, tuple(WINDOW_RULES))
    for block in producer_blocks(sch, main):
        if block_name(sch, block) == PADDING:
            sch.compute_inline(block)
    before = producer_blocks(sch, main)
    last = inline_into_epilogue(sch, main, cpu, _crop_of_overlapping_vectors(sch, main))
    tile, followed = annotated_tile(sch, main), _channels(sch, main) == _channels(sch, last)
    if TILE_ROWS in sch.get(main).annotations:
        schedule_row_tiles(sch, cpu, main, last, strips=_STRIPS, unrolled=UNROLLED_TILES)
        for other in before:
            parallelize_and_vectorize_block(sch, other, cpu)
        return
    row = _row(sch, cpu, main, before, row_consumer=None if followed else last)
    if not followed:
        sch.compute_at(main, row, preserve_unit_loops=True)
        vectorize_with_tail(sch, sch.get_loops(last)[-1], tile.lanes)
    tile_row_of_windows(sch, cpu, main, tile, last if followed else None)


def _crop_of_overlapping_vectors(sch: Schedule, main: SBlockRV) -> SBlockRV | None:
    """Return the block that has each channel once; None if the main block has."""
    crops = [block for block in sch.get_consumers(main) if block_name(sch, block) == CROP]
    return crops[0] if crops and _channels(sch, crops[0]) < _channels(sch, main) else None


def _row(
    sch: Schedule,
    cpu: CpuModel,
    main: SBlockRV,
    apart: list[SBlockRV],
    row_consumer: SBlockRV | None,
) -> LoopRV:
    """Return the loop over the rows of a strip; the strips are divided among threads.

    `row_consumer` is the block that reads the main block's results row by row, from a buffer; None
    if they are consumed tile by tile.
    """
    n, y, *_ = sch.get_loops(main if row_consumer is None else row_consumer)
    rows = loop_extent(sch, y)
    most = rows if row_consumer is None else _BUFFERED_STRIPS
    strips, row = sch.split(y, [even_strips(rows, most), None])
    parallelize_if_long_enough(sch, sch.fuse(n, strips), [main], cpu)
    for other in apart:
        parallelize_and_vectorize_block(sch, other, cpu)
    return row


def even_strips(rows: int, most: int) -> int:
    """Return the number of equal strips of an image's rows with which threads wait least.

    It is at most `most`. Threads wait for the one that computes the most strips.
    """

    def slowdown(strips: int) -> float:
        return sum(round_up_to_multiple(strips, threads) / strips for threads in _THREADS)

    fitting = (strips for strips in range(1, min(rows, most) + 1) if rows % strips == 0)
    return min(fitting, key=lambda strips: (slowdown(strips), strips))


def tile_row_of_windows(
    sch: Schedule, cpu: CpuModel, main: SBlockRV, tile: Tile, follower: SBlockRV | None
) -> None:
    """Tile a row, with pixels and taps unrolled, and compute the follower on each tile."""
    x, c, ry, rx = sch.get_loops(main)[-4:]
    columns, pixels = sch.split(x, [None, tile.pixels])
    channels, lanes = sch.split(c, [None, tile.lanes])
    sch.reorder(columns, channels, ry, rx, pixels, lanes)
    inputs = find_grouped_inputs_block(sch, main)
    unrolled, vectors = [pixels], [lanes]
    if loop_extent(sch, ry) * loop_extent(sch, rx) <= _UNROLLED_TAPS:
        unrolled += [ry, rx]
    elif loop_extent(sch, rx) <= _UNROLLED_ROW:
        unrolled.append(rx)
    if follower is not None:
        sch.reverse_compute_at(follower, channels, preserve_unit_loops=True)
        unrolled.append(sch.get_loops(follower)[-2])
        vectors.append(sch.get_loops(follower)[-1])
    for loop in unrolled:
        sch.unroll(loop)
    for loop in vectors:
        sch.vectorize(loop)
    if inputs is not None:
        schedule_grouped_loads(sch, main, inputs, [ry, rx], tile)
        if loop_extent(sch, columns) <= UNROLLED_TILES:
            sch.unroll(columns)
    loaded = (
        cpu.prefers_reload_over_copy
        and block_name(sch, main) == DEPTHWISE
        and tile.lanes == cpu.lanes
    )
    *_, pixels, lanes = sch.get_loops(sch.decompose_reduction(main, ry))
    sch.unroll(pixels)
    sch.vectorize(lanes)
    if loaded:
        annotate_fence(sch, pixels, FenceKind.SEPARATE_LOADS)


def _channels(sch: Schedule, block: SBlockRV) -> int:
    return int(sch.get(block).writes[0].source.shape[-1])


WINDOW_RULES = dict.fromkeys((DEPTHWISE, DEPTHWISE_INT8, POOL, AVERAGE), schedule_sliding_windows)
