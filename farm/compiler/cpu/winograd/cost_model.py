"""Decide which convolutions may use Winograd's algorithm, and predict their cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from farm.compiler import winograd_weights
from farm.compiler.cpu.conv_dense_compute import CONVOLUTION
from farm.compiler.cpu.kernel_config import CHANNELS, PIXELS, KernelConfig, Workload
from farm.compiler.cpu.register_tiles import (
    Tile,
    cache_set_conflict_cycles,
    gemm_tiles_with_cycles,
    grouped_step_cycles,
    largest_divisor,
    round_up_to_multiple,
    should_group_reduction_step_loads,
    weight_load_cycles,
)
from farm.compiler.cpu.winograd.compute import (
    channel_blocks_per_product,
    minimum_unshared_buffer_bytes,
    workload_of_tiles,
)
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.winograd_weights import WinogradTile, WinogradTransform

# Of `WinogradTile.for_weight`, by method; the names are in records.
SIZES = dict(zip(("winograd2", "winograd4"), winograd_weights.SIZES, strict=True))
_VECTOR_CYCLES = 7  # of a vector of a transform: its loads, about two multiply-adds, its store
_CYCLES_A_POINT = 0.5  # of a vector, for each point of its axis beyond six: more multiply-adds
_USUAL_SIDE = 6
# With more heights of bands to try, each is at least so many times the one before.
_MANY_HEIGHTS, _SPREAD = 32, 1.25
_STEP_CYCLES = 1  # overhead of a reduction step beyond its arithmetic
_UNHIDDEN = 0.3  # of the lesser of arithmetic and memory time; the rest overlaps with the other
# Weight of the time that one of two cores waits: a configuration must suit any number of threads.
_IDLE = 0.25
_LAUNCH = 10_000  # cycles to divide another loop among threads
_REMEMBERED = 1024  # workloads; those of a model come again, and their candidates take milliseconds
_CACHE_SHARE = 0.5  # of the L2 cache for data that must stay there


@lru_cache(_REMEMBERED)
def winograd_candidates(
    workload: Workload, cpu: CpuModel
) -> tuple[tuple[KernelConfig, float], ...]:
    """Return all tile sizes in both orders with suitable register tiles, and predicted cycles.

    There are none for kernels without accurate tiles, for strides with a dilation, and for groups
    whose channels fill no vectors.
    """
    if (
        workload.operator != CONVOLUTION
        or (workload.strides != (1, 1) and workload.dilation != (1, 1))
        or (workload.groups > 1 and not _fill_vectors(workload.data[3], cpu))
        or min(workload.output(0), workload.output(1)) < 1
    ):
        return ()
    found = []
    tiled = workload_of_tiles(workload)
    for method, size in SIZES.items():
        if not _tile(tiled, size).is_accurate:
            continue
        for tile in _tiles(tiled, cpu, size):
            for order in (PIXELS, CHANNELS):
                plan = _fastest_plan(tiled, KernelConfig(method, tile, order), cpu)
                found.append((plan.config, plan.cycles))
    return tuple(found)


def weight_transform_for(
    workload: Workload, config: KernelConfig, cpu: CpuModel
) -> WinogradTransform:
    """Return how a configuration's weight is transformed."""
    down, across = workload.strides
    depth = padded_group_depth(workload_of_tiles(workload), cpu)
    return WinogradTransform(SIZES[config.method], depth, config.tile.block, (down, across))


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """A configuration with the rows of tiles in a band and the padded input channels of a group."""

    config: KernelConfig
    band: int
    depth: int
    cycles: float

    @property
    def size(self) -> int:
        """Return the size of a tile."""
        return SIZES[self.config.method]


def plan_with_fastest_row_count(
    workload: Workload, config: KernelConfig, cpu: CpuModel
) -> WinogradPlan:
    """Return the plan of a configuration with the number of rows that takes the fewest cycles."""
    return _fastest_plan(workload_of_tiles(workload), config, cpu)


def _fastest_plan(tiled: Workload, config: KernelConfig, cpu: CpuModel) -> WinogradPlan:
    """Return the fastest plan; `tiled` is the result of `workload_of_tiles`."""
    depth = padded_group_depth(tiled, cpu)
    plans = (
        WinogradPlan(config, band, depth, _cycles(tiled, config, band, cpu))
        for band in _bands(tiled, SIZES[config.method], cpu)
    )
    return min(plans, key=lambda plan: plan.cycles)


def padded_group_depth(workload: Workload, cpu: CpuModel) -> int:
    """Return the input channels of a group, padded to whole vectors if there is one group only."""
    if workload.groups > 1:
        return workload.weight[2]
    return padded_input_channels(workload.data[3], cpu)


def padded_input_channels(channels: int, cpu: CpuModel) -> int:
    """Return the input channels padded to whole vectors; narrower ones if those fit."""
    if _fill_vectors(channels, cpu):
        return channels
    return round_up_to_multiple(
        channels, cpu.lanes if channels >= cpu.lanes else cpu.vector_widths[-1]
    )


def _fill_vectors(channels: int, cpu: CpuModel) -> bool:
    return largest_divisor(channels, cpu.lanes) >= cpu.vector_widths[-1]


def _tile(workload: Workload, size: int) -> WinogradTile:
    return WinogradTile.for_weight(size, workload.weight)


def _bands(workload: Workload, size: int, cpu: CpuModel) -> list[int]:
    """Return, for each number of bands, the fewest rows that they need.

    There are none if a buffer would be smaller than `minimum_unshared_buffer_bytes`. Of the many of
    a long signal, those are left out that are hardly larger than another.
    """
    tile = _tile(workload, size)
    (tile_h, tile_w), (kernel_h, kernel_w) = tile.outputs, tile.taps
    rows = -(-workload.output(0) // tile_h)
    width = -(-workload.output(1) // tile_w) * tile_w + kernel_w - 1
    least = minimum_unshared_buffer_bytes(cpu) / (4 * width * workload.data[3])
    if 1 not in tile.sides and least > tile.sides[0]:
        return []
    found = [band for band in _rows_of_bands(rows) if band * tile_h + kernel_h - 1 >= least]
    if len(found) <= _MANY_HEIGHTS:
        return found
    spread = found[:1]
    for band in found:
        if band >= _SPREAD * spread[-1]:
            spread.append(band)
    return spread


def _rows_of_bands(rows: int) -> list[int]:
    """Return the fewest rows that each number of bands needs, rising, without repetition."""
    found: list[int] = []
    bands = 1
    while not found or found[-1] > 1:
        found.append(-(-rows // bands))
        bands = -(-rows // max(1, found[-1] - 1))  # the fewest that need less
    return found[::-1]


def _tiles(workload: Workload, cpu: CpuModel, size: int) -> Iterator[Tile]:
    """Yield the best register tile for each number of rows.

    A tile has channels of one group only: all of them read the same inputs.
    """
    columns = -(-workload.output(1) // _tile(workload, size).outputs[1])
    pixels = (min(band * columns, 4 * cpu.registers) for band in _bands(workload, size, cpu))
    depth = padded_group_depth(workload, cpu)
    grouped_loads, channels = (
        should_group_reduction_step_loads(cpu, depth),
        workload.channels // workload.groups,
    )
    found = (
        gemm_tiles_with_cycles(
            cpu,
            count,
            channels,
            depth,
            grouped_loads,
            followed=False,
            pixel_stride_bytes=_tile_stride_bytes(workload, cpu, size),
        )
        for count in set(pixels)
    )
    within = (
        [one for one in tiles if workload.groups == 1 or channels % one[0].block == 0]
        for tiles in found
    )
    best = (min(tiles, key=lambda one: one[1])[0] for tiles in within if tiles)
    yield from sorted(set(best), key=lambda tile: (tile.lanes, tile.vectors, tile.pixels))


def _tile_stride_bytes(workload: Workload, cpu: CpuModel, size: int) -> int:
    """Return the distance between the transformed inputs of two tiles."""
    points = math.prod(_tile(workload, size).sides)
    return 4 * points * padded_group_depth(workload, cpu) * workload.groups


def _cycles(workload: Workload, config: KernelConfig, band: int, cpu: CpuModel) -> float:
    """Predict the cycles of one core: arithmetic, transforms, transfers beyond the cache."""
    size, tile, depth = SIZES[config.method], config.tile, padded_group_depth(workload, cpu)
    (tile_h, tile_w), (side_h, side_w) = (form := _tile(workload, size)).outputs, form.sides
    channels, points = depth * workload.groups, side_h * side_w
    columns = -(-workload.output(1) // tile_w)
    bands = workload.data[0] * -(-workload.output(0) // (tile_h * band))
    tiles, blocks = band * columns, -(-workload.channels // tile.block)
    occupied = cpu.resource_cycles(tile.lanes)
    used_again = tiles > tile.pixels  # what is read once is counted as memory below
    step = max(
        weight_load_cycles(cpu, tile, depth) if used_again else 0,
        tile.pixels * tile.vectors * occupied / cpu.fmas_per_cycle,
        (tile.pixels + tile.vectors * occupied) / cpu.loads_per_cycle,
        cache_set_conflict_cycles(cpu, tile, _tile_stride_bytes(workload, cpu, size)),
        cpu.fma_latency,
    )
    if cpu.gains_by_prefetch:
        step += _STEP_CYCLES
    if should_group_reduction_step_loads(cpu, depth):
        step = grouped_step_cycles(cpu, tile)
    products = (
        points
        * bands
        * -(-tiles // tile.pixels)
        * blocks
        * (depth * step + tile.pixels * tile.vectors * 2)
    )

    vectors = channels / largest_divisor(channels, cpu.lanes)
    between = side_h * tile_w if min(side_h, side_w) > 1 else 0
    inputs = vectors * (tile_h * tile_w + between + points)
    outputs = workload.channels / largest_divisor(workload.channels, tile.lanes) * tile_h * side_w
    longer = _CYCLES_A_POINT * max(0, side_h - _USUAL_SIDE, side_w - _USUAL_SIDE)
    arithmetic = products + bands * tiles * (inputs + outputs) * (_VECTOR_CYCLES + longer)

    room = cpu.l2_bytes / 2 * _CACHE_SHARE
    weights, values = (
        4 * points * depth * blocks * tile.block,
        4 * points * tiles * channels,
    )  # bytes: of all blocks, of one band
    if config.order == PIXELS:
        passes = 1 if weights <= room else bands
        memory: float = weights * passes + (bands * values * (1 + blocks) if values > room else 0)
        tasks, launches = bands, 0
    else:
        at_once = channel_blocks_per_product(cpu, blocks, tiles, points, tile.block)
        passes = 1 if weights / blocks * at_once <= room else bands
        transformed = bands * values
        memory = weights * passes + (
            transformed * (1 + blocks / at_once) if transformed > room else 0
        )
        # as measured: data beyond the cache is read for each block, and all is written and read
        # once
        if cpu.gains_by_prefetch:
            memory = weights * passes + 2 * transformed + max(0, transformed - room) * blocks
        tasks, launches = blocks // at_once, 2
    waited = memory / cpu.dram_bytes_per_cycle
    idle = round_up_to_multiple(tasks, 2) / tasks - 1
    return (max(arithmetic, waited) + _UNHIDDEN * min(arithmetic, waited)) * (
        1 + _IDLE * idle
    ) + launches * _LAUNCH
