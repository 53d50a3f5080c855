"""Choose register tiles: the part of an output that is computed at once, its sums in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farm.compiler.target.cpu_model import CpuModel

_VECTORS = 8  # in a row of a tile at most: a row of one pixel needs this many sums in flight
_STEP_CYCLES = 1  # overhead of a reduction step beyond its arithmetic
_INPUTS = 3  # in registers at a time, in addition to a tile's sums and its vectors of weights
# Pointers in registers if a row's last tile repeats pixels, so that each has a pointer of its own;
# more are loaded in each step.
_POINTERS = 8
_STORE_CYCLES = 4  # of a vector of results: its epilogue and its store
# More if a CPU with memory operands has more than _MANY sums: the next tile waits, as measured.
_CROWDED_CYCLES = 5
_MANY = 14
# Reduction steps whose inputs are loaded together on an in-order CPU: one vector holds a pixel's.
STEPS_PER_GROUP = 4
_WAIT_CYCLES = 2  # that a group's first load waits for the multiply-adds before it
_GROUPS = 8  # of steps in one iteration at most
_LINE_BYTES = 64  # of a cache line


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is at most `limit`."""
    return next(
        candidate for candidate in range(min(number, limit), 0, -1) if number % candidate == 0
    )


def round_up_to_multiple(number: int, unit: int) -> int:
    """Return the least multiple of `unit` that is not less than `number`."""
    return -(-number // unit) * unit


def should_group_reduction_step_loads(cpu: CpuModel, depth: int) -> bool:
    """Return whether sums of `depth` products load the operands of several steps together.

    This pays on in-order CPUs, whose loads wait for multiply-adds, if the registers hold the inputs
    of a tile for a group of steps. 16 registers are too few: a tile would be so small that its
    loads take longer than they wait now.
    """
    return (
        cpu.in_order
        and not cpu.has_memory_operands
        and cpu.registers >= 32
        and depth % STEPS_PER_GROUP == 0
    )


def groups_per_iteration(depth: int, around: int) -> int:
    """Return the number of groups of steps in one iteration; they share its loop overhead.

    `around`: iterations of the reduction loops around these `depth` steps, as over a kernel's rows.
    A short sum is a single iteration only if it has loops around it.
    """
    groups = depth // STEPS_PER_GROUP
    if groups <= _GROUPS and around > 2:
        return groups
    return largest_divisor(groups, _GROUPS if groups > _GROUPS else max(1, groups // 2))


def grouped_step_cycles(cpu: CpuModel, tile: Tile) -> float:
    """Return the cycles of a reduction step whose operands are loaded by groups."""
    arithmetic = max(tile.pixels * tile.vectors / cpu.fmas_per_cycle, cpu.fma_latency)
    return (
        arithmetic + (tile.pixels + STEPS_PER_GROUP * tile.vectors + _WAIT_CYCLES) / STEPS_PER_GROUP
    )


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile of `pixels` x `vectors` sums of `lanes` values each."""

    pixels: int
    vectors: int
    lanes: int

    @property
    def block(self) -> int:
        """Return the width of the tile in channels."""
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{self.pixels}x{self.vectors}x{self.lanes}"


def gemm_tiles_with_cycles(
    cpu: CpuModel,
    pixels: int,
    channels: int,
    depth: int,
    grouped_loads: bool = False,
    followed: bool = True,
    pixel_stride_bytes: int | None = None,
) -> list[tuple[Tile, float]]:
    """Return the tiles for an output of pixels x channels with their predicted cycles.

    Each output element is a sum of `depth` products. A tile need not divide the output: what it
    computes beyond the edges costs cycles and is dropped. `grouped_loads`: see
    `should_group_reduction_step_loads`. `followed`: an epilogue processes the results before they
    are stored. `pixel_stride_bytes`: see `cache_set_conflict_cycles`.
    """
    tiles = [
        Tile(high, vectors, lanes)
        for lanes in cpu.vector_widths
        for vectors in range(1, min(_VECTORS, -(-channels // lanes)) + 1)
        for high in range(1, min(pixels, cpu.accumulators // vectors) + 1)
        if fits_registers(cpu, Tile(high, vectors, lanes), grouped_loads)
    ]
    return [
        (
            tile,
            predicted_row_cycles(
                cpu, tile, pixels, channels, depth, grouped_loads, followed, pixel_stride_bytes
            ),
        )
        for tile in tiles
    ]


def fits_registers(cpu: CpuModel, tile: Tile, grouped_loads: bool = False) -> bool:
    """Return whether a tile's sums and the operands of a step, or a group of steps, fit."""
    if tile.pixels > max(1, cpu.accumulators // tile.vectors):
        return False
    needed = _registers(cpu, tile.pixels, tile.vectors, grouped_loads)
    return (tile.pixels == 1 and not grouped_loads) or needed <= cpu.registers


def _registers(cpu: CpuModel, high: int, vectors: int, grouped_loads: bool) -> int:
    """Return the registers for a tile's sums and for the operands of a step or a group of steps."""
    if cpu.has_memory_operands:
        return (high + 1) * vectors + 1
    if grouped_loads:
        return high * vectors + high + STEPS_PER_GROUP * vectors
    return (high + 1) * vectors + _INPUTS


def largest_grouped_conv_tile(cpu: CpuModel, pixels: int, channels: int) -> Tile | None:
    """Return the largest tile that divides the channels of one group; None if none does.

    All its lanes then read the same input. A row is divided evenly: 14 pixels are two tiles of 7,
    if a tile may have 9.
    """
    for lanes in (*cpu.vector_widths, 4):
        if channels % lanes == 0:
            vectors = largest_divisor(channels // lanes, 4)
            fitting = (
                (cpu.registers - 1) // vectors - 1 if cpu.has_memory_operands else cpu.registers
            )
            high = min(pixels, max(1, min(fitting, cpu.accumulators // vectors)))
            return Tile(-(-pixels // -(-pixels // high)), vectors, lanes)
    return None


def predicted_row_cycles(
    cpu: CpuModel,
    tile: Tile,
    pixels: int,
    channels: int,
    depth: int,
    grouped_loads: bool,
    followed: bool,
    pixel_stride_bytes: int | None = None,
) -> float:
    """Return the predicted cycles of a row of pixels, of all channels.

    See `gemm_tiles_with_cycles`.
    """
    sums = tile.pixels * tile.vectors
    pointers = max(0, tile.pixels - _POINTERS) if pixels % tile.pixels else 0
    occupied = cpu.resource_cycles(tile.lanes)
    loads = (tile.pixels + tile.vectors * occupied + pointers) / cpu.loads_per_cycle
    weights = weight_load_cycles(cpu, tile, depth)
    arithmetic = max(sums * occupied / cpu.fmas_per_cycle, cpu.fma_latency)
    if grouped_loads:
        step = grouped_step_cycles(cpu, tile)
    else:
        step = (
            arithmetic + loads
            if cpu.in_order
            else max(
                arithmetic, loads, weights, cache_set_conflict_cycles(cpu, tile, pixel_stride_bytes)
            )
        ) + _STEP_CYCLES
    store = _STORE_CYCLES + (
        _CROWDED_CYCLES if followed and cpu.has_memory_operands and sums > _MANY else 0
    )
    return (
        math.ceil(pixels / tile.pixels)
        * math.ceil(channels / tile.block)
        * (depth * step + sums * store)
    )


def weight_load_cycles(cpu: CpuModel, tile: Tile, depth: int) -> float:
    """Return the cycles of a reduction step that its weights take from the L2 cache.

    Returns 0 if the L1 cache holds those of all `depth` steps from one tile to the next.
    """
    step_bytes = 4 * tile.block
    return step_bytes / cpu.l2_bytes_per_cycle if step_bytes * depth > cpu.l1_bytes // 2 else 0


def cache_set_conflict_cycles(cpu: CpuModel, tile: Tile, pixel_stride_bytes: int | None) -> float:
    """Return the cycles of a reduction step that the conflict misses of its inputs take.

    `pixel_stride_bytes` is the distance between the inputs of two pixels. If it is a multiple of a
    large power of two, these inputs share few sets of the L1 cache: those of 14 pixels of 1,024
    channels are 4 KiB apart and share one set. If they need all ways of a set (the weights need
    one), each load is from the L2 cache. Returns 0 if they need fewer, or if the distance is not
    known (None).
    """
    if pixel_stride_bytes is None:
        return 0
    sets = cpu.l1_way_bytes // math.gcd(pixel_stride_bytes, cpu.l1_way_bytes)
    lines_per_set = -(-tile.pixels // sets)
    if lines_per_set < cpu.l1_ways:
        return 0
    return tile.pixels * _LINE_BYTES / cpu.l2_bytes_per_cycle
