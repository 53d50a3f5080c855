"""List register tiles for products of 8-bit integers, with predicted cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from farm.compiler.cpu.int8.dot_instructions import DotProductInstruction
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.target.cpu_model import CpuModel

_TILE_BYTES = 1023  # of sums at most: larger integer tiles were not measured
_VECTORS = 8  # in a row of a tile at most: a row of one pixel needs this many sums in flight
# Registers for inputs and products; for an in-order CPU LLVM loads them far ahead.
_AT_WORK, _AT_WORK_IN_ORDER = 5, 12
_STEP_CYCLES = 1  # overhead of a step beyond its arithmetic and its loads
_LOAD_SHARE = 0.25  # of the loads' time is lost if a CPU overlaps them with its arithmetic
_RESULT_CYCLES = 8  # of a vector of results: bias, factor, bounds, rounding and store


def int8_gemm_tiles_with_cycles(
    cpu: CpuModel, dot: DotProductInstruction, pixels: int, channels: int, steps: int
) -> Iterator[tuple[Tile, float]]:
    """Yield tiles for an output of pixels x channels with their predicted cycles.

    Each output is a sum of `steps` steps of the instruction. A tile need not divide the output.
    """
    for lanes in cpu.vector_widths:
        for vectors in range(1, min(_VECTORS, -(-channels // lanes)) + 1):
            for high in range(1, min(pixels, max_accumulators(cpu, lanes) // vectors) + 1):
                if (high + dot.weight_registers) * vectors + (
                    _AT_WORK_IN_ORDER if cpu.in_order else _AT_WORK
                ) <= cpu.registers:
                    tile = Tile(high, vectors, lanes)
                    count = math.ceil(pixels / high) * math.ceil(channels / tile.block)
                    yield (
                        tile,
                        count
                        * (steps * _step_cycles(cpu, dot, tile) + high * vectors * _RESULT_CYCLES),
                    )


def max_accumulators(cpu: CpuModel, lanes: int) -> int:
    """Return the largest number of vectors of sums in a tile."""
    return min(cpu.accumulators, _TILE_BYTES // (4 * lanes))


def _step_cycles(cpu: CpuModel, dot: DotProductInstruction, tile: Tile) -> float:
    sums = tile.pixels * tile.vectors
    arithmetic = max(
        (dot.cycles * sums + dot.broadcast_cycles * tile.pixels) / cpu.fmas_per_cycle,
        cpu.fma_latency,
    )
    weights = dot.depth * tile.block
    loads = max(
        (tile.pixels + dot.weight_registers * tile.vectors) / cpu.loads_per_cycle,
        weights / cpu.l2_bytes_per_cycle,
    )
    together = arithmetic + loads if cpu.in_order else max(arithmetic, loads) + _LOAD_SHARE * loads
    return together + _STEP_CYCLES
