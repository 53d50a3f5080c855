"""Register tiles: how much of an output is computed at once, with all its sums in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farm.compiler.core import Core

_VECTORS = 8  # side by side at most: a row of one pixel needs so many sums in flight
_STEP_CYCLES = 1  # of a step of a sum besides its arithmetic
_INPUTS = 3  # in registers at a time, beside a tile's sums and its vectors of weights
_POINTERS = 8  # held in registers, where a row's last tile repeats pixels so that each has its own; more are loaded in each step
_STORE_CYCLES = 4  # of a vector of results: its epilogue and its store
_CROWDED_CYCLES = 5  # more where a core that takes inputs from memory has more than _MANY sums: the next tile waits, as measured
_MANY = 14
GROUP = 4  # steps of a sum whose inputs are loaded together, for a core in order: one vector holds those of a pixel
_WAIT_CYCLES = 2  # of a group's first load for the multiply-adds before it
_GROUPS = 8  # in one iteration at most


def divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(candidate for candidate in range(min(number, limit), 0, -1) if number % candidate == 0)


def up_to_multiple(number: int, unit: int) -> int:
    """The least multiple of `unit` that is not less than `number`."""
    return -(-number // unit) * unit


def in_groups(core: Core, depth: int) -> bool:
    """Whether sums of `depth` products go by groups of steps: loads wait for multiply-adds, and registers hold a tile's inputs for a group.

    16 registers hold too few: a tile would be so small that its loads take longer than they wait now.
    """
    return core.in_order and not core.from_memory and core.registers >= 32 and depth % GROUP == 0


def groups_at_once(depth: int, around: int) -> int:
    """Groups of steps in one iteration: they share its end. A short sum is one iteration only where it has loops around.

    `around`: iterations of the loops of the sum around these `depth` steps, as over a kernel's rows.
    """
    groups = depth // GROUP
    if groups <= _GROUPS and around > 2:
        return groups
    return divisor(groups, _GROUPS if groups > _GROUPS else max(1, groups // 2))


def step_in_groups(core: Core, tile: Tile) -> float:
    """Cycles of a step, where a group of them is loaded at once."""
    arithmetic = max(tile.pixels * tile.vectors / core.multiply_adds, core.latency)
    return arithmetic + (tile.pixels + GROUP * tile.vectors + _WAIT_CYCLES) / GROUP


@dataclass(frozen=True, slots=True)
class Tile:
    """`pixels` x `vectors` sums of `lanes` values each. `block` is its width in channels."""

    pixels: int
    vectors: int
    lanes: int

    @property
    def block(self) -> int:
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{self.pixels}x{self.vectors}x{self.lanes}"


def product_tiles(
    core: Core, pixels: int, channels: int, depth: int, by_groups: bool = False, followed: bool = True
) -> list[tuple[Tile, float]]:
    """The tiles for an output of pixels x channels, each a sum of `depth` products, with the cycles that it takes by a simple account.

    A tile need not divide the output: what it computes beyond the edges counts, and is thrown away. `by_groups`: of the steps of a sum.
    `followed`: something is done to results before they are stored.
    """
    tiles = [
        Tile(high, vectors, lanes)
        for lanes in core.widths
        for vectors in range(1, min(_VECTORS, -(-channels // lanes)) + 1)
        for high in range(1, min(pixels, core.tile_budget // vectors) + 1)
        if (high == 1 and not by_groups) or _registers(core, high, vectors, by_groups) <= core.registers
    ]
    return [(tile, _cycles(core, tile, pixels, channels, depth, by_groups, followed)) for tile in tiles]


def _registers(core: Core, high: int, vectors: int, by_groups: bool) -> int:
    """Of a tile's sums and what a step, or a group of steps, needs beside them."""
    if core.from_memory:
        return (high + 1) * vectors + 1
    if by_groups:
        return high * vectors + high + GROUP * vectors
    return (high + 1) * vectors + _INPUTS


def grouped_tile(core: Core, pixels: int, channels: int) -> Tile | None:
    """The largest tile that divides the channels of one group, so that all its lanes read the same input; None where none does."""
    for lanes in (*core.widths, 4):
        if channels % lanes == 0:
            vectors = divisor(channels // lanes, 4)
            fitting = (core.registers - 1) // vectors - 1 if core.from_memory else core.registers
            return Tile(min(pixels, max(1, min(fitting, core.tile_budget // vectors))), vectors, lanes)
    return None


def _cycles(core: Core, tile: Tile, pixels: int, channels: int, depth: int, by_groups: bool, followed: bool) -> float:
    sums = tile.pixels * tile.vectors
    pointers = max(0, tile.pixels - _POINTERS) if pixels % tile.pixels else 0
    loads = (tile.pixels + tile.vectors + pointers) / core.loads
    weights = 4 * tile.block / core.l2_speed if 4 * tile.block * depth > core.l1_bytes // 2 else 0
    arithmetic = max(sums / core.multiply_adds, core.latency)
    if by_groups:
        step = step_in_groups(core, tile)
    else:
        step = (arithmetic + loads if core.in_order else max(arithmetic, loads, weights)) + _STEP_CYCLES
    store = _STORE_CYCLES + (_CROWDED_CYCLES if followed and core.from_memory and sums > _MANY else 0)
    return math.ceil(pixels / tile.pixels) * math.ceil(channels / tile.block) * (depth * step + sums * store)
