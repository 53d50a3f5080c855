"""The choices that farm's own loops leave open, with the cycles that each is predicted to take."""

from __future__ import annotations

import math

from farm.compiler import seen
from farm.compiler.choices import CHANNELS, DIRECT, PIXELS, Choice, Workload
from farm.compiler.core import Core
from farm.compiler.loops import CONVOLUTION, DENSE, PRODUCT
from farm.compiler.tiles import GROUP, grouped_tile, in_groups, product_tiles, up_to_multiple

_WEIGHT_BYTES_A_CYCLE = 4  # from memory, where products wait for them
_INPUT_BYTES_A_CYCLE = 32  # from memory, with the work on them in between
_OTHERS_BYTES_A_CYCLE = 8  # of the input, from the cache of the core that wrote it
_PIECES_BYTES_A_CYCLE = 6  # to memory, a block of channels at a time
_ENOUGH_TASKS = 8  # rows of tiles: fewer are not shared out well among threads
_SHARED_BADLY = 1e6  # cycles


def product_candidates(workload: Workload, core: Core) -> list[tuple[Choice, float]]:
    """Of a sum of products: every tile of the core, in both orders."""
    rows, pixels, depth, values = _product(workload)
    channels = workload.channels
    by_groups = sums_by_groups(workload, core)
    if run := run_length(workload, core):
        depth = values = workload.weight[0] * run
    if workload.groups > 1:
        tile = grouped_tile(core, pixels, channels // workload.groups)
        tiles = [] if tile is None else [(tile, 1.0)]
    else:
        tiles = product_tiles(core, pixels, channels, depth, by_groups)
    found = []
    for tile, cycles in tiles:
        weights = 4 * values * (channels if workload.operator == PRODUCT else up_to_multiple(channels, tile.block))
        blocks, tasks = -(-channels // tile.block), rows * -(-pixels // tile.pixels)
        memory = memory_cycles(core, weights, 4 * math.prod(workload.data), 4 * rows * pixels * channels, blocks, tasks)
        if workload.operator == CONVOLUTION and not by_groups and not run:
            cycles *= seen.share(workload, tile.pixels)
        found += [(Choice(DIRECT, tile, order), rows * cycles + extra) for order, extra in zip((PIXELS, CHANNELS), memory, strict=True)]
    return found


def memory_cycles(core: Core, weights: int, inputs: int, outputs: int, blocks: int, tasks: int) -> tuple[float, float]:
    """What waiting for memory adds in the two orders, given bytes of all three, blocks of channels, and rows of tiles.

    By pixels, all weights are read for each row of tiles, from memory at least the first time. By channels a block of them is read once,
    which costs the first block only where the others are fetched ahead; but every core reads the inputs that the others wrote, once for
    each of its blocks, and the outputs are written in pieces.
    """
    in_cache = core.l2_bytes // 2  # what is larger does not stay there from one use to the next
    all_weights = weights / _WEIGHT_BYTES_A_CYCLE
    by_pixels = all_weights * (1 if weights <= in_cache else tasks) + (all_weights + _SHARED_BADLY if tasks < _ENOUGH_TASKS else 0)
    again = inputs * (blocks - 1) / _INPUT_BYTES_A_CYCLE if inputs > in_cache else 0
    pieces = outputs / _PIECES_BYTES_A_CYCLE if outputs > in_cache and blocks > 1 else 0
    by_others = inputs / _OTHERS_BYTES_A_CYCLE
    return by_pixels, all_weights / (blocks if core.prefetches else 1) + by_others + again + pieces


def _product(workload: Workload) -> tuple[int, int, int, int]:
    """Rows of pixels, pixels in a row, products in a sum, and values of a packed weight for each channel."""
    data, weight = workload.data, workload.weight
    if workload.operator == DENSE:
        return math.prod(data[:-2]), data[-2], data[-1], data[-1]
    if workload.operator == PRODUCT:
        return math.prod(map(max, data[:-2], weight[:-2])), data[-2], data[-1], math.prod(weight[:-1])
    return data[0] * workload.output(0), workload.output(1), math.prod(weight[:3]), math.prod(weight[:3])


def sums_by_groups(workload: Workload, core: Core) -> bool:
    """Whether the loops of a workload add by groups of steps: convolutions of one group, and products with a constant."""
    if workload.operator == DENSE:
        return in_groups(core, workload.data[-1])
    if workload.operator != CONVOLUTION or workload.groups > 1:
        return False
    return in_groups(core, workload.weight[2]) or run_length(workload, core) > 0


def run_length(workload: Workload, core: Core) -> int:
    """Of the values of a row of a kernel, all columns and channels, filled up to groups of steps; 0 where channels alone fill groups.

    The inputs of such a row lie together, so that the sums of few channels, as of an image, can go by groups too.
    """
    if workload.operator != CONVOLUTION or workload.groups > 1:
        return 0
    (_, columns, depth, _), (_, dilation) = workload.weight, workload.dilation
    run = up_to_multiple(columns * depth, GROUP)
    return run if dilation == 1 < columns and depth % GROUP and in_groups(core, run) else 0
