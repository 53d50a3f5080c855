"""Decide which convolutions may use Winograd's algorithm, and predict their cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
)
from farm.compiler.cpu.winograd.compute import (
    channel_blocks_per_product,
    minimum_unshared_buffer_bytes,
    workload_of_phases,
)
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.winograd_weights import WinogradTransform

SIZES = {"winograd2": 2, "winograd4": 4}  # of an output tile, by method; the names are in records
_VECTOR_CYCLES = 7  # of a vector of a transform: its loads, about two multiply-adds, its store
_STEP_CYCLES = 1  # overhead of a reduction step beyond its arithmetic
_UNHIDDEN = 0.3  # of the lesser of arithmetic and memory time; the rest overlaps with the other
# Weight of the time that one of two cores waits: a configuration must suit any number of threads.
_IDLE = 0.25
_LAUNCH = 10_000  # cycles to divide another loop among threads
_CACHE_SHARE = 0.5  # of the L2 cache for data that must stay there


def winograd_candidates(workload: Workload, cpu: CpuModel) -> list[tuple[KernelConfig, float]]:
    """Return both tile sizes in both orders with suitable register tiles, and predicted cycles.

    There are none for convolutions other than 3 x 3 of stride 1, and none for groups whose channels
    fill no vectors.
    """
    plain = (workload.weight[:2], workload.strides) == ((3, 3), (1, 1))
    if (
        workload.operator != CONVOLUTION
        or not plain
        or (workload.groups > 1 and not _fill_vectors(workload.data[3], cpu))
        or min(workload.output(0), workload.output(1)) < 1
    ):
        return []
    found = []
    for method, size in SIZES.items():
        for tile in _tiles(workload_of_phases(workload), cpu, size):
            for order in (PIXELS, CHANNELS):
                plan = plan_with_fastest_row_count(workload, KernelConfig(method, tile, order), cpu)
                found.append((plan.config, plan.cycles))
    return found


def weight_transform_for(
    workload: Workload, config: KernelConfig, cpu: CpuModel
) -> WinogradTransform:
    """Return how a configuration's weight is transformed."""
    return WinogradTransform(
        SIZES[config.method], padded_group_depth(workload, cpu), config.tile.block
    )


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """A configuration with the rows of tiles in a band and the padded input channels of a group."""

    config: KernelConfig
    band: int
    depth: int
    cycles: float

    @property
    def size(self) -> int:
        """Return the size m of an output tile."""
        return SIZES[self.config.method]


def plan_with_fastest_row_count(
    workload: Workload, config: KernelConfig, cpu: CpuModel
) -> WinogradPlan:
    """Return the plan of a configuration with the number of rows that takes the fewest cycles."""
    depth, workload = padded_group_depth(workload, cpu), workload_of_phases(workload)
    plans = (
        WinogradPlan(config, band, depth, _cycles(workload, config, band, cpu))
        for band in _bands(workload, SIZES[config.method], cpu)
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


def _bands(workload: Workload, size: int, cpu: CpuModel) -> list[int]:
    """Return, for each number of bands, the fewest rows that they need.

    There are none if a buffer would be smaller than `minimum_unshared_buffer_bytes`.
    """
    rows, width = -(-workload.output(0) // size), -(-workload.output(1) // size) * size + 2
    least = minimum_unshared_buffer_bytes(cpu) / (4 * width * workload.data[3])
    return sorted(
        band
        for band in {-(-rows // bands) for bands in range(1, rows + 1)}
        if band * size + 2 >= least <= size + 2
    )


def _tiles(workload: Workload, cpu: CpuModel, size: int) -> Iterator[Tile]:
    """Yield the best register tile for each number of rows.

    A tile has channels of one group only: all of them read the same inputs.
    """
    columns = -(-workload.output(1) // size)
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
    return 4 * (size + 2) ** 2 * padded_group_depth(workload, cpu) * workload.groups


def _cycles(workload: Workload, config: KernelConfig, band: int, cpu: CpuModel) -> float:
    """Predict the cycles of one core: arithmetic, transforms, transfers beyond the cache."""
    size, tile, depth = SIZES[config.method], config.tile, padded_group_depth(workload, cpu)
    channels = depth * workload.groups
    points, columns = (size + 2) ** 2, -(-workload.output(1) // size)
    bands = workload.data[0] * -(-workload.output(0) // (size * band))
    tiles, blocks = band * columns, -(-workload.channels // tile.block)
    step = max(
        tile.pixels * tile.vectors / cpu.fmas_per_cycle,
        (tile.pixels + tile.vectors) / cpu.loads_per_cycle,
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
    inputs = vectors * (size * size + size * (size + 2) + points)
    outputs = workload.channels / largest_divisor(workload.channels, tile.lanes) * size * (size + 2)
    arithmetic = products + bands * tiles * (inputs + outputs) * _VECTOR_CYCLES

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
        at_once = channel_blocks_per_product(cpu, blocks, tiles, size, tile.block)
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
