"""Which convolutions Winograd's algorithm may compute, how, and how many cycles that is predicted to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farm.compiler.choices import CHANNELS, PIXELS, Choice, Workload
from farm.compiler.core import Core
from farm.compiler.loops import CONVOLUTION
from farm.compiler.tiles import Tile, divisor, in_groups, product_tiles, step_in_groups, up_to_multiple
from farm.compiler.winograd import least_bytes, together

SIZES = {"winograd2": 2, "winograd4": 4}  # of an output tile, by method
_VECTOR_CYCLES = 7  # of a vector of a transform: its loads, about two multiply-adds, its store
_STEP_CYCLES = 1  # of a step of a sum besides its arithmetic
_UNHIDDEN = 0.3  # of the lesser of arithmetic and memory: the rest goes on behind the other
_IDLE = 0.25  # of what other cores wait for one of two: a choice has to serve any number of threads
_LAUNCH = 10_000  # cycles to share another loop out among threads
_CACHE_SHARE = 0.5  # of the L2 cache for what has to stay there


def candidates(workload: Workload, core: Core) -> list[tuple[Choice, float]]:
    """Both sizes of tiles in both orders, each with those register tiles that suit some number of rows; none for other convolutions."""
    plain = (workload.weight[:2], workload.strides, workload.dilation, workload.groups) == ((3, 3), (1, 1), (1, 1), 1)
    if workload.operator != CONVOLUTION or not plain or min(workload.output(0), workload.output(1)) < 1:
        return []
    found = []
    for method, size in SIZES.items():
        for tile in _tiles(workload, core, size):
            for order in (PIXELS, CHANNELS):
                plan = best_plan(workload, Choice(method, tile, order), core)
                found.append((plan.choice, plan.cycles))
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """A choice with the rows of tiles in a band, and its input channels with those that fill vectors."""

    choice: Choice
    band: int
    depth: int
    cycles: float

    @property
    def size(self) -> int:
        return SIZES[self.choice.method]


def best_plan(workload: Workload, choice: Choice, core: Core) -> Plan:
    """The plan of a choice with the number of rows that takes the fewest cycles."""
    depth = filled(workload.data[3], core)
    plans = (Plan(choice, band, depth, _cycles(workload, choice, band, core)) for band in _bands(workload, SIZES[choice.method], core))
    return min(plans, key=lambda plan: plan.cycles)


def filled(channels: int, core: Core) -> int:
    """Input channels with zeros up to whole vectors; narrower vectors where these do without."""
    if divisor(channels, core.lanes) >= core.widths[-1]:
        return channels
    return up_to_multiple(channels, core.lanes if channels >= core.lanes else core.widths[-1])


def _bands(workload: Workload, size: int, core: Core) -> list[int]:
    """For each number of bands, the fewest rows that they need; none where the work is too small for buffers of their own."""
    rows, width = -(-workload.output(0) // size), -(-workload.output(1) // size) * size + 2
    least = least_bytes(core) / (4 * width * workload.data[3])
    return sorted(band for band in {-(-rows // bands) for bands in range(1, rows + 1)} if band * size + 2 >= least <= size + 2)


def _tiles(workload: Workload, core: Core, size: int) -> Iterator[Tile]:
    """The best register tile for each number of rows."""
    columns = -(-workload.output(1) // size)
    pixels = (min(band * columns, 4 * core.registers) for band in _bands(workload, size, core))
    depth, by_groups = workload.data[3], in_groups(core, filled(workload.data[3], core))
    found = (product_tiles(core, count, workload.channels, depth, by_groups, followed=False) for count in set(pixels))
    best = (min(tiles, key=lambda one: one[1])[0] for tiles in found)
    yield from sorted(set(best), key=lambda tile: (tile.lanes, tile.vectors, tile.pixels))


def _cycles(workload: Workload, choice: Choice, band: int, core: Core) -> float:
    """Arithmetic, transforms and what comes from beyond the cache, for one core."""
    size, tile, depth = SIZES[choice.method], choice.tile, filled(workload.data[3], core)
    points, columns = (size + 2) ** 2, -(-workload.output(1) // size)
    bands = workload.data[0] * -(-workload.output(0) // (size * band))
    tiles, blocks = band * columns, -(-workload.channels // tile.block)
    step = max(tile.pixels * tile.vectors / core.multiply_adds, (tile.pixels + tile.vectors) / core.loads, core.latency)
    if core.prefetches:
        step += _STEP_CYCLES
    if in_groups(core, depth):
        step = step_in_groups(core, tile)
    products = points * bands * -(-tiles // tile.pixels) * blocks * (depth * step + tile.pixels * tile.vectors * 2)

    inputs = depth / divisor(depth, core.lanes) * (size * size + size * (size + 2) + points)
    outputs = workload.channels / divisor(workload.channels, tile.lanes) * size * (size + 2)
    arithmetic = products + bands * tiles * (inputs + outputs) * _VECTOR_CYCLES

    room = core.l2_bytes / 2 * _CACHE_SHARE
    weights, values = 4 * points * depth * blocks * tile.block, 4 * points * tiles * depth  # bytes: of all blocks, of one band
    if choice.order == PIXELS:
        passes = 1 if weights <= room else bands
        memory: float = weights * passes + (bands * values * (1 + blocks) if values > room else 0)
        tasks, launches = bands, 0
    else:
        at_once = together(core, blocks, tiles, size, tile.block)
        passes = 1 if weights / blocks * at_once <= room else bands
        transformed = bands * values
        memory = weights * passes + (transformed * (1 + blocks / at_once) if transformed > room else 0)
        if core.prefetches:  # as measured: what is beyond the cache is read for each block, and all of it written and read once
            memory = weights * passes + 2 * transformed + max(0, transformed - room) * blocks
        tasks, launches = blocks // at_once, 2
    waited = memory / core.stream
    idle = up_to_multiple(tasks, 2) / tasks - 1
    return (max(arithmetic, waited) + _UNHIDDEN * min(arithmetic, waited)) * (1 + _IDLE * idle) + launches * _LAUNCH
