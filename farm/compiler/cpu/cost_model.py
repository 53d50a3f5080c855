"""List the candidate configurations of products and predict the cycles of each."""

from __future__ import annotations

import math
from dataclasses import replace

from farm.compiler.cpu import padding_taps
from farm.compiler.cpu.conv_dense_compute import CONVOLUTION, DENSE, PRODUCT
from farm.compiler.cpu.kernel_config import (
    CHANNELS,
    DIRECT,
    JOINED_ROWS,
    PIXELS,
    Candidates,
    KernelConfig,
    Workload,
)
from farm.compiler.cpu.register_tiles import (
    STEPS_PER_GROUP,
    Tile,
    gemm_tiles_with_cycles,
    largest_grouped_conv_tile,
    predicted_row_cycles,
    round_up_to_multiple,
    should_group_reduction_step_loads,
)
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.winograd_weights import SIZES as WINOGRAD_SIZES
from farm.compiler.winograd_weights import WinogradTile

_WEIGHT_BYTES_A_CYCLE = 4  # from memory, if products wait for them
_INPUT_BYTES_A_CYCLE = 32  # from memory, overlapped with the arithmetic on them
_OTHERS_BYTES_A_CYCLE = 8  # of the input, from the cache of the core that wrote it
_PIECES_BYTES_A_CYCLE = 6  # to memory, one block of channels at a time
_PACKING_CYCLES = 1  # of an element of a right operand that has to be put into blocks
_ENOUGH_TASKS = 8  # rows of tiles: fewer do not balance among threads
_NARROW = 4  # pixels in a row at most: wider rows fill tiles
_TURN_CYCLES = 1  # of an element of an image that is turned
_GAIN = 0.8  # of the cycles at most, because the prediction is not exact
_SHARED_BADLY = 1e6  # cycles: the penalty for fewer


def gemm_candidates(workload: Workload, cpu: CpuModel) -> list[tuple[KernelConfig, float]]:
    """Return every tile of the CPU in both orders for a sum of products, with predicted cycles."""
    rows, pixels, depth, values = gemm_rows_pixels_depth_weights(workload)
    channels = workload.channels
    grouped_loads = uses_grouped_loads(workload, cpu)
    if run := padded_kernel_row_length(workload, cpu):
        depth = values = workload.weight[0] * run
    stride_bytes = 4 * workload.data[-1] * workload.strides[-1]
    if workload.groups > 1:
        tiles = _grouped_conv_tiles(workload, cpu, pixels, depth, stride_bytes)
    else:
        tiles = gemm_tiles_with_cycles(
            cpu, pixels, channels, depth, grouped_loads, pixel_stride_bytes=stride_bytes
        )
    found, groups = [], workload.groups
    for tile, cycles in tiles:
        padded = groups * round_up_to_multiple(channels // groups, tile.block)
        weights = 4 * values * (channels if workload.operator == PRODUCT else padded)
        blocks, tasks = padded // tile.block, rows * -(-pixels // tile.pixels)
        memory = memory_stall_cycles(
            cpu, weights, 4 * math.prod(workload.data), 4 * rows * pixels * channels, blocks, tasks
        )
        if workload.operator == PRODUCT and channels % tile.block:
            packing = math.prod(workload.weight) * _PACKING_CYCLES
            memory = (memory[0] + packing, memory[1] + packing)
        pads_groups = workload.pads_groups(tile.block)
        if workload.operator == CONVOLUTION and not (grouped_loads or run or pads_groups):
            cycles *= padding_taps.used_tap_fraction(workload, tile.pixels)
        found += [
            (KernelConfig(DIRECT, tile, order), rows * cycles + extra)
            for order, extra in zip((PIXELS, CHANNELS), memory, strict=True)
            if order == PIXELS or not pads_groups
        ]
    return found


def joined_rows_candidates(workload: Workload, cpu: CpuModel) -> list[tuple[KernelConfig, float]]:
    """Return the tiles for a convolution of single pixels, with the rows of an image joined."""
    joined = workload.with_joined_rows
    if joined is None or uses_grouped_loads(workload, cpu):
        return []
    return [
        (replace(config, method=JOINED_ROWS), cycles)
        for config, cycles in gemm_candidates(joined, cpu)
    ]


def _grouped_conv_tiles(
    workload: Workload, cpu: CpuModel, pixels: int, depth: int, stride_bytes: int
) -> list[tuple[Tile, float]]:
    """Return the tiles for a row of a grouped convolution, with the cycles of all groups.

    The tile that divides the channels of a group comes first, if there is one. It is the only one
    where Winograd's method applies: with the small vectors of groups that is faster than predicted
    (1.5 to 1.8 times on Zen 5), so that other tiles would be selected in its place. There are none
    for groups of one channel, which are as fast by the general rule.
    """
    channels = workload.channels // workload.groups
    if channels == 1:
        return []
    whole = largest_grouped_conv_tile(cpu, pixels, channels)
    tiles = gemm_tiles_with_cycles(cpu, pixels, channels, depth, pixel_stride_bytes=stride_bytes)
    if whole is not None:
        cycles = predicted_row_cycles(
            cpu, whole, pixels, channels, depth, False, True, stride_bytes
        )
        if whole.lanes in cpu.vector_widths and _has_winograd_tiles(workload):
            tiles = []
        tiles = [(whole, cycles), *(one for one in tiles if one[0] != whole)]
    return [(tile, workload.groups * cycles) for tile, cycles in tiles]


def _has_winograd_tiles(workload: Workload) -> bool:
    """Return whether Winograd's method applies to a convolution without strides."""
    tiles = (WinogradTile.for_weight(size, workload.weight) for size in WINOGRAD_SIZES)
    return workload.strides == (1, 1) and any(tile.is_accurate for tile in tiles)


def is_faster_with_tiles_along_height(
    workload: Workload, candidates: Candidates, cpu: CpuModel
) -> bool:
    """Return whether a convolution is faster if tiles run along the height of its narrow images.

    `candidates` are those of the workload as it is. The images are turned by a copy.
    """
    if workload.output(1) > _NARROW or workload.output(0) <= workload.output(1):
        return False
    copied = math.prod(workload.data) * _TURN_CYCLES
    turned = [cycles for _, cycles in gemm_candidates(workload.turned, cpu)]
    return bool(candidates and turned) and min(turned) + copied < _GAIN * min(
        cycles for _, cycles in candidates
    )


def memory_stall_cycles(
    cpu: CpuModel, weights: int, inputs: int, outputs: int, blocks: int, tasks: int
) -> tuple[float, float]:
    """Return the cycles that waiting for memory adds, in the orders PIXELS and CHANNELS.

    `weights`, `inputs` and `outputs` are bytes, `blocks` are blocks of channels, `tasks` rows of
    tiles. In the order PIXELS all weights are read for each row of tiles, from memory at least the
    first time. In the order CHANNELS a block of weights is read once, which costs only the first
    block if the others are prefetched; but every core reads the inputs that the others wrote, once
    for each of its blocks, and the outputs are written block by block.
    """
    in_cache = cpu.l2_bytes // 2  # larger data does not stay there from one use to the next
    all_weights = weights / _WEIGHT_BYTES_A_CYCLE
    by_pixels = all_weights * (1 if weights <= in_cache else tasks) + (
        all_weights + _SHARED_BADLY if tasks < _ENOUGH_TASKS else 0
    )
    again = inputs * (blocks - 1) / _INPUT_BYTES_A_CYCLE if inputs > in_cache else 0
    pieces = outputs / _PIECES_BYTES_A_CYCLE if outputs > in_cache and blocks > 1 else 0
    by_others = inputs / _OTHERS_BYTES_A_CYCLE
    return by_pixels, all_weights / (
        blocks if cpu.gains_by_prefetch else 1
    ) + by_others + again + pieces


def gemm_rows_pixels_depth_weights(workload: Workload) -> tuple[int, int, int, int]:
    """Return rows, pixels in a row, products in a sum, packed weights of a channel."""
    data, weight = workload.data, workload.weight
    if workload.operator == DENSE:
        return math.prod(data[:-2]), data[-2], data[-1], data[-1]
    if workload.operator == PRODUCT:
        return (
            math.prod(map(max, data[:-2], weight[:-2])),
            data[-2],
            data[-1],
            math.prod(weight[:-1]),
        )
    return (
        data[0] * workload.output(0),
        workload.output(1),
        math.prod(weight[:3]),
        math.prod(weight[:3]),
    )


def uses_grouped_loads(workload: Workload, cpu: CpuModel) -> bool:
    """Return whether the loops of a workload load the operands of several reduction steps together.

    This holds for convolutions of one group and products with a constant.
    """
    if workload.operator == DENSE:
        return should_group_reduction_step_loads(cpu, workload.data[-1])
    if workload.operator != CONVOLUTION or workload.groups > 1:
        return False
    return (
        should_group_reduction_step_loads(cpu, workload.weight[2])
        or padded_kernel_row_length(workload, cpu) > 0
    )


def padded_kernel_row_length(workload: Workload, cpu: CpuModel) -> int:
    """Return the length of a kernel row, columns x channels, padded to whole groups of steps.

    Returns 0 if the channels alone fill groups. The inputs of such a row are contiguous, so that
    the sums of few channels, as of an image, can load by groups too.
    """
    if workload.operator != CONVOLUTION or workload.groups > 1:
        return 0
    (_, columns, depth, _), (_, dilation) = workload.weight, workload.dilation
    run = round_up_to_multiple(columns * depth, STEPS_PER_GROUP)
    return (
        run
        if dilation == 1 < columns
        and depth % STEPS_PER_GROUP
        and should_group_reduction_step_loads(cpu, run)
        else 0
    )
