"""The schedule rules of farm's own loops (see `loops`): register tiles, with whatever follows the main block applied to each tile."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.choices import CHANNELS
from farm.compiler.core import Core
from farm.compiler.extents import product_at_one
from farm.compiler.fences import APART, COUNTED, FENCE, PACKED
from farm.compiler.integer_loops import CONVOLUTION_INT8, DENSE_INT8, INSTRUCTION
from farm.compiler.loops import CONVOLUTION, DENSE, INPUTS, ORDER, PRODUCT, TILE
from farm.compiler.prefetch import FOLLOWED, PREFETCH
from farm.compiler.seen import SEEN
from farm.compiler.spread import extent, in_parallel, is_open_loop, name_of, place_along, spread
from farm.compiler.tails import TAIL
from farm.compiler.tiles import GROUP, Tile, divisor, groups_at_once

_PRODUCTS = (CONVOLUTION, DENSE, PRODUCT, CONVOLUTION_INT8, DENSE_INT8)
_SHARE_OF_GROUP = 8  # of the L2 cache, one part is for the weights of blocks that are used together
_GROUPS = 4  # of blocks at least: each but the first is fetched ahead
_UNROLLED_BY_LLVM = 16  # steps of a sum at most: the loops of so short a row, which it unrolls, would keep too many inputs in registers


def schedule_product(work: Schedule, core: Core) -> None:
    """Sums of a tile in registers, the reduction around them; then what follows, on that tile."""
    main = main_block(work, _PRODUCTS)
    before = sources_of(work, main)
    _tile_product(work, core, main, inline_epilogue(work, main, core))
    for block in before:
        spread(work, block, core)


def _tile_product(work: Schedule, core: Core, main: SBlockRV, last: SBlockRV) -> None:
    """Tile the last two axes of the main block, and compute the one block that takes its result on each tile."""
    tile, axes = tile_of(work, main), len(work.get(main).writes[0].source.shape)
    spatial, reduced = work.get_loops(main)[:axes], work.get_loops(main)[axes:]
    instruction = str(work.get(main).annotations.get(INSTRUCTION, ""))
    inside = [reduced.pop()] if instruction else []
    asks = SEEN in work.get(main).annotations  # for each tap
    if not core.from_memory and not asks and len(reduced) == 3 and extent(work, reduced[1]) * extent(work, reduced[2]) <= _UNROLLED_BY_LLVM:
        reduced = [work.fuse(*reduced[:2]), reduced[2]]
    inputs = inputs_of(work, main)
    if inputs is not None:
        reduced = [*reduced[:-1], *split_in_groups(work, reduced)]
    *outer, row, column = spatial
    rows, tile_rows = work.split(row, [None, tile.pixels])
    columns, vectors, lanes = work.split(column, [None, tile.vectors, tile.lanes])
    work.reorder(*outer, rows, columns, *reduced, tile_rows, vectors, lanes, *inside)
    if work.get(main).annotations[ORDER] == CHANNELS:
        columns, *within = _together(work, core, main, columns)
        work.reorder(columns, *outer, rows, *within)
        uses = math.prod(extent(work, loop) for loop in outer)  # rows of tiles for which a block is used before the next
        again = uses * extent(work, rows) > 1 and extent(work, columns) > 1 and not is_open_loop(work, rows)
        if core.prefetches and again and name_of(work, main) in (CONVOLUTION, DENSE):
            work.annotate(reduced[-1], PREFETCH, uses)
        shared, place = _fused(work, [columns, *outer]), [rows, *within][-1]
    else:
        shared, place = _fused(work, [*outer, rows]), columns
    _follow(work, main, last, place, tile)
    if core.prefetches:
        work.annotate(place, FOLLOWED, 1)
    in_parallel(work, shared, [main], core)
    _unroll_vectorize(work, [tile_rows, vectors], None if instruction else lanes)
    if asks:
        work.annotate(reduced[-1], SEEN, [int(number) for number in work.get(main).annotations[SEEN]])
    if inputs is not None:
        load_by_groups(work, main, inputs, reduced[-2:], tile)
    initial = work.get_loops(work.decompose_reduction(main, reduced[0]))
    _unroll_vectorize(work, initial[-3:-1], initial[-1])
    if instruction:
        work.tensorize(lanes, instruction)


def _together(work: Schedule, core: Core, main: SBlockRV, columns: LoopRV) -> list[LoopRV]:
    """The loop over blocks of channels, as one over groups of them and one within a group where several stay in the cache.

    A row of tiles is computed for a whole group before the next row: its results, and what is added to them, then lie side by side. The
    weights come from the L2 cache each time: that is fast enough for a tile of many pixels, which uses each of them as often.
    """
    tile = tile_of(work, main)
    bytes_a_cycle = 4 * tile.lanes * core.multiply_adds / tile.pixels  # of weights
    if name_of(work, main) not in (CONVOLUTION, DENSE) or not core.prefetches or bytes_a_cycle > core.l2_speed / 2:
        return [columns]
    block_bytes = 4 * math.prod(int(extent) for extent in work.get(main).reads[-1].source.shape[1:])
    fitting, blocks = core.l2_bytes // _SHARE_OF_GROUP // block_bytes, extent(work, columns)
    together = divisor(blocks, max(1, min(fitting, blocks // _GROUPS)))
    return list(work.split(columns, [None, together])) if together > 1 else [columns]


def inputs_of(work: Schedule, main: SBlockRV) -> SBlockRV | None:
    """The block of a main block's inputs; None where its sums do not go by groups of steps."""
    return next((block for block in work.get_producers(main) if name_of(work, block) == INPUTS), None)


def split_in_groups(work: Schedule, reduced: list[LoopRV]) -> list[LoopRV]:
    """The innermost loop of a sum as loops of iterations, of the groups in one, and of the steps in a group."""
    *around, steps = (extent(work, loop) for loop in reduced)
    return list(work.split(reduced[-1], [None, groups_at_once(steps, math.prod(around)), GROUP]))


def load_by_groups(work: Schedule, main: SBlockRV, inputs: SBlockRV, loops: list[LoopRV], tile: Tile) -> None:
    """Load all that a group of steps takes before its products. `loops` are those of the groups in an iteration and of their steps."""
    groups, steps = loops
    read = [region.source for region in work.get(main).reads]
    (own,) = (at for at, buffer in enumerate(read) if buffer.same_as(work.get(inputs).writes[0].source))
    packed = int(read[own + 1].shape[-1]) == tile.block and extent(work, steps) >= GROUP
    weights = work.cache_read(main, own + 1, "global")
    for block, lanes in ((inputs, GROUP), (weights, tile.lanes)):
        work.compute_at(block, groups, preserve_unit_loops=True)
        *_, rows, column = work.get_loops(block)
        vectors, column = work.split(column, [None, lanes])
        _unroll_vectorize(work, [rows, vectors], column)
    _unroll_vectorize(work, [], work.get_loops(main)[-1])
    work.unroll(groups)
    work.unroll(steps)
    work.annotate(groups, FENCE, PACKED if packed else APART)
    if packed and extent(work, iterations := _around(work, main, groups)) > 1:
        work.annotate(iterations, FENCE, COUNTED)


def _around(work: Schedule, block: SBlockRV, inner: LoopRV) -> LoopRV:
    """The loop of a block that is next around another."""
    loops = work.get_loops(block)
    return loops[next(at for at, loop in enumerate(loops) if work.get(loop).same_as(work.get(inner))) - 1]


def sources_of(work: Schedule, main: SBlockRV) -> list[SBlockRV]:
    """The blocks that a main block reads, those that its inputs read in place of these."""
    found = [[block] if name_of(work, block) != INPUTS else work.get_producers(block) for block in work.get_producers(main)]
    return [block for blocks in found for block in blocks]


def main_block(work: Schedule, names: tuple[str, ...]) -> SBlockRV:
    return next(block for block in work.get_child_blocks(work.get_sblock("root")) if name_of(work, block) in names)


def tile_of(work: Schedule, main: SBlockRV) -> Tile:
    return Tile(*(int(value) for value in work.get(main).annotations[TILE]))


def _fused(work: Schedule, loops: list[LoopRV]) -> LoopRV:
    return work.fuse(*loops) if len(loops) > 1 else loops[0]


def inline_epilogue(work: Schedule, main: SBlockRV, core: Core) -> SBlockRV:
    """Inline all that follows the main block into the last block, and return that; a main block that is the last gets a copy to follow it.

    Where the last block has more elements than the main one, as where a channel's factor is applied to all of its pixels, what comes before
    it is computed once for each element of the main block: the last block is spread over the core by itself, and the one before returned.
    So it is where the last block takes, too, what the main one begins with, which TVM cannot tile with it: a copy of the sums is returned.
    Raises where that cannot be done, as when a kernel has several results.
    """
    _begin_with_bias(work, main)
    if not work.get_consumers(main):
        work.cache_write(main, 0, "global")
    sources = {name_of(work, block) for block in sources_of(work, main)}
    first = {INPUTS, name_of(work, main), *sources}
    *between, last = after = [block for block in work.get_child_blocks(work.get_sblock("root")) if name_of(work, block) not in first]
    before = None
    if _elements(work, last) > _elements(work, main):
        before = _last_as_small(work, main)
    elif any(name_of(work, producer) in sources for block in after for producer in work.get_producers(block)):
        before = work.cache_write(main, 0, "global")
    kept = () if before is None else (name_of(work, before),)
    for block in between:
        if name_of(work, block) not in kept:
            work.compute_inline(block)
    if before is None:
        return last
    spread(work, last, core)
    return before


def _last_as_small(work: Schedule, main: SBlockRV) -> SBlockRV | None:
    """The one block that all larger ones have what they need of a main block from, itself no larger; None where there are several."""
    small, gates, reached, waiting = _elements(work, main), dict[str, SBlockRV](), set[str](), [main]
    while waiting:
        block = waiting.pop()
        reached.add(name_of(work, block))
        for consumer in work.get_consumers(block):
            if _elements(work, consumer) > small:
                gates[name_of(work, block)] = block
            elif name_of(work, consumer) not in reached:
                waiting.append(consumer)
    if len(gates) != 1:
        return None
    (gate,) = gates.values()
    return work.cache_write(main, 0, "global") if name_of(work, gate) == name_of(work, main) else gate


def _elements(work: Schedule, block: SBlockRV) -> int:
    return product_at_one(work.get(block).writes[0].source.shape)


def _begin_with_bias(work: Schedule, main: SBlockRV) -> None:
    """Where all that is made of the main block's sums is to add something to them, begin them with that.

    Not those of an instruction: the block would not match it any more.
    """
    consumers = work.get_consumers(main)
    if len(consumers) != 1 or work.get(main).init is None or work.get(main).annotations.get(INSTRUCTION):
        return
    added = getattr(work.get(consumers[0]).body, "value", None)
    sums = work.get(main).writes[0].source
    if isinstance(added, tirx.Add) and any(sums.same_as(getattr(part, "source", None)) for part in (added.a, added.b)):
        work.fuse_reduction_epilogue(main, consumers[0])


def _follow(work: Schedule, main: SBlockRV, last: SBlockRV, place: LoopRV, tile: Tile) -> None:
    """Compute the last block a tile at a time, by whole vectors, of which the last one of all is cut where channels do not fill it."""
    channels = int(work.get(last).writes[0].source.shape[-1])
    sums = next((read for read in work.get(last).reads if read.source.same_as(work.get(main).writes[0].source)), None)
    by_channels = place_along(work, last, sums) == len(work.get(last).iter_vars) - 1
    work.reverse_compute_at(last, place, preserve_unit_loops=True)
    *_, pixels, column = work.get_loops(last)
    tailed = by_channels and channels % tile.lanes > 0 and extent(work, column) == min(channels, tile.block)
    vectors, lanes = work.split(column, [None, tile.lanes if tailed else divisor(math.gcd(channels, tile.block), tile.lanes)])
    _unroll_vectorize(work, [pixels, vectors], lanes)
    if tailed:
        work.annotate(pixels, TAIL, channels)


def _unroll_vectorize(work: Schedule, loops: list[LoopRV], lanes: LoopRV | None) -> None:
    if lanes is not None:
        work.vectorize(lanes)
    for loop in loops:
        work.unroll(loop)


RULES = {
    CONVOLUTION: schedule_product,
    DENSE: schedule_product,
    PRODUCT: schedule_product,
    CONVOLUTION_INT8: schedule_product,
    DENSE_INT8: schedule_product,
}
