"""Register tiles for products of 8-bit integers, each with the cycles that it takes by a simple account of its instructions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from farm.compiler.core import Core
from farm.compiler.dots import Dot
from farm.compiler.tiles import Tile

_TILE_BYTES = 1023  # of sums at most: larger tiles of integers were not measured
_VECTORS = 8  # side by side at most: a row of one pixel needs so many sums in flight
_AT_WORK, _AT_WORK_IN_ORDER = 5, 12  # registers for inputs and products; for a core in order LLVM loads them far ahead
_STEP_CYCLES = 1  # of a step besides its arithmetic and its loads
_LOAD_SHARE = 0.25  # of the loads' time is lost where a core does them beside its arithmetic
_RESULT_CYCLES = 8  # of a vector of results: bias, factor, bounds, rounding and store


def tiles(core: Core, dot: Dot, pixels: int, channels: int, steps: int) -> Iterator[tuple[Tile, float]]:
    """For an output of pixels x channels, each a sum of so many steps of the instruction. A tile need not divide the output."""
    for lanes in core.widths:
        for vectors in range(1, min(_VECTORS, -(-channels // lanes)) + 1):
            for high in range(1, min(pixels, sums_at_most(core, lanes) // vectors) + 1):
                if (high + dot.weights) * vectors + (_AT_WORK_IN_ORDER if core.in_order else _AT_WORK) <= core.registers:
                    tile = Tile(high, vectors, lanes)
                    count = math.ceil(pixels / high) * math.ceil(channels / tile.block)
                    yield tile, count * (steps * _step_cycles(core, dot, tile) + high * vectors * _RESULT_CYCLES)


def sums_at_most(core: Core, lanes: int) -> int:
    """Vectors of sums in a tile."""
    return min(core.tile_budget, _TILE_BYTES // (4 * lanes))


def _step_cycles(core: Core, dot: Dot, tile: Tile) -> float:
    sums = tile.pixels * tile.vectors
    arithmetic = max((dot.cycles * sums + dot.spread * tile.pixels) / core.multiply_adds, core.latency)
    weights = dot.depth * tile.block
    loads = max((tile.pixels + dot.weights * tile.vectors) / core.loads, weights / core.l2_speed)
    together = arithmetic + loads if core.in_order else max(arithmetic, loads) + _LOAD_SHARE * loads
    return together + _STEP_CYCLES
