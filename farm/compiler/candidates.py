"""The choices that farm's own loops leave open, with the cycles that each is predicted to take."""

from __future__ import annotations

import math

from farm.compiler.choices import CHANNELS, DIRECT, PIXELS, Choice, Workload
from farm.compiler.core import Core
from farm.compiler.loops import DENSE, PRODUCT, TRANSPOSED
from farm.compiler.tiles import grouped_tile, product_tiles, up_to_multiple

_WEIGHTS_IN_CACHE = 512 * 1024  # bytes: a larger weight is walked block by block, so that a block stays in the L2 cache
_ENOUGH_TASKS = 8  # rows of tiles: with fewer, the blocks of channels are shared out as well
_OTHER_ORDER = 1.25  # times the cycles of the order that these two speak for


def product_candidates(workload: Workload, core: Core) -> list[tuple[Choice, float]]:
    """Of a sum of products: every tile of the core, in both orders."""
    rows, pixels, depth, values = _product(workload)
    channels = workload.channels
    if workload.groups > 1:
        tile = grouped_tile(core, pixels, channels // workload.groups)
        tiles = [] if tile is None else [(tile, 1.0)]
    else:
        tiles = product_tiles(core, pixels, channels, depth)
    found = []
    for tile, cycles in tiles:
        weights = 4 * values * (channels if workload.operator == PRODUCT else up_to_multiple(channels, tile.block))
        tasks = rows * -(-pixels // tile.pixels)
        orders = (CHANNELS, PIXELS) if weights > _WEIGHTS_IN_CACHE or tasks < _ENOUGH_TASKS else (PIXELS, CHANNELS)
        found += [(Choice(DIRECT, tile, order), rows * cycles * factor) for order, factor in zip(orders, (1.0, _OTHER_ORDER), strict=True)]
    return found


def _product(workload: Workload) -> tuple[int, int, int, int]:
    """Rows of pixels, pixels in a row, products in a sum, and values of a packed weight for each channel."""
    data, weight = workload.data, workload.weight
    if workload.operator == DENSE:
        return math.prod(data[:-2]), data[-2], data[-1], data[-1]
    if workload.operator == PRODUCT:
        return math.prod(map(max, data[:-2], weight[:-2])), data[-2], data[-1], math.prod(weight[:-1])
    if workload.operator == TRANSPOSED:  # one phase of the columns at a time, of which each has a part of the kernel
        height, width = (transposed_output(workload, axis) for axis in (0, 1))
        values = math.prod(up_to_multiple(weight[axis], workload.strides[axis]) for axis in (0, 1)) * weight[2]
        return data[0] * height * workload.strides[1], -(-width // workload.strides[1]), weight[2], values
    return data[0] * workload.output(0), workload.output(1), math.prod(weight[:3]), math.prod(weight[:3])


def transposed_output(workload: Workload, axis: int) -> int:
    """The height or width of what a transposed convolution computes; its workload's last paddings are less the output's padding."""
    inside = (workload.data[1 + axis] - 1) * workload.strides[axis] + workload.weight[axis]
    return inside - workload.padding[axis] - workload.padding[axis + 2]
