"""The general rule, for kernels without one of their own, and what all rules share: which loops are worth threads, which vectors."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.core import Core
from farm.compiler.extents import at_one, is_open, product_at_one
from farm.compiler.tiles import divisor

PARTITION = "pragma_loop_partition_hint"  # of a loop: cut it where a condition changes, so that each part knows the answer
_WORTH_THREADS = 40_000  # cycles of one core, about 15 us: to wake the others for less costs more than it gains
_ENOUGH_ROWS = 16  # to share out among threads without breaking them up
_OVERHEAD = 2  # cycles of an iteration that are no multiply-add: loads and stores
_TERMS = 32  # tensors read, of the expression that a kernel's element is computed by
_SIDE_BY_SIDE = 8  # vectors of a sum over rows: so many are in flight, and lie in neighbouring lines of a cache
_COLOURS = 4  # of an image at most
_LINE = 16  # elements: of a tile of a transpose, each way, so that what is read in the other order is used up while it is in a cache
_SPATIAL, _REDUCTION = 0, 2  # tirx.IterVar.DataPar, CommReduce


def schedule_general(work: Schedule, core: Core) -> None:
    """What is computed once and element by element is inlined; every remaining block is spread over threads and lanes.

    A block that several others take is kept where all of it, once for each of them, would be too much code: concatenations of slices of
    concatenations.
    """
    blocks, terms = work.get_child_blocks(work.get_sblock("root")), dict[str, int]()
    producers = {name_of(work, block): [name_of(work, producer) for producer in work.get_producers(block)] for block in blocks}
    for block in blocks[:-1]:
        name, consumers = name_of(work, block), work.get_consumers(block)
        terms[name] = sum(terms[producer] for producer in producers[name]) or 1
        several = len(consumers) > 1 and len(consumers) * terms[name] > _TERMS
        kept = _feeds_reduction(work, block) and not _taken_once(work, block)
        if has_reduction(work, block) or not consumers or kept or several:
            terms[name] = 1
        else:
            work.compute_inline(block)
    for block in work.get_child_blocks(work.get_sblock("root")):
        spread(work, block, core)


def spread(work: Schedule, block: SBlockRV, core: Core) -> None:
    """Spatial loops over the threads, the innermost one over the lanes; a reduction stays inside, around its lanes."""
    loops, kinds = work.get_loops(block), _kinds(work, block)
    if len(loops) != len(kinds):
        return  # not a plain loop nest: correct as it stands
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    if not spatial or any(is_open_loop(work, loop) for loop in (spatial[-1], *reduced)):
        return
    if _reads_across(work, block):
        spatial[-2:] = reversed(spatial[-2:])
        work.reorder(*spatial)
    lanes, rows = _lanes(work, spatial[-1], core), math.prod(extent(work, loop) for loop in spatial[:-1])
    inner, turned, strip, side = None, _turned(work, block), [], []
    if turned is not None:
        spatial[turned], lines = work.split(spatial[turned], [None, _LINE])
        strip = [lines]
    if lanes > 1:
        spatial[-1], inner = work.split(spatial[-1], [None, lanes])
        if reduced and _reads_along(work, block):
            spatial[-1], vectors = work.split(spatial[-1], [None, divisor(extent(work, spatial[-1]), _SIDE_BY_SIDE)])
            side = [vectors]
    work.reorder(*spatial, *strip, *reduced, *side, *([inner] if inner is not None else []))
    if rows >= _ENOUGH_ROWS:  # a choice that depends on the place within a row, as in a concatenation, is then made once for a vector
        partitioned(work, spatial.pop(), block)
    outer = work.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    in_parallel(work, outer, [block], core)
    if inner is not None:
        work.vectorize(inner)
    if reduced:
        initial = work.get_loops(work.decompose_reduction(block, reduced[0]))
        if inner is not None:
            work.vectorize(initial[-1])
        for vectors in [*side, initial[-2]] if side else []:
            work.unroll(vectors)


def _reads_across(work: Schedule, block: SBlockRV) -> bool:
    """Whether the last axis is short, and neighbours of the one before are neighbours in what is read: an image whose colours come last."""
    *_, across, last = [None, None, *(variable.var for variable in work.get(block).iter_vars)]
    regions = [read.region for read in work.get(block).reads if read.region]
    if across is None or has_reduction(work, block) or not regions or extent(work, work.get_loops(block)[-1]) > _COLOURS:
        return False
    taken = tirx.analysis.undefined_vars(regions[0][-1].min)
    return any(one.same_as(across) for one in taken) and not any(one.same_as(last) for one in taken)


def _turned(work: Schedule, block: SBlockRV) -> int | None:
    """The axis along which neighbours lie side by side in what is read, where that is not the last one and both are long: a transpose."""
    loops = work.get_loops(block)
    if has_reduction(work, block) or any(is_open_loop(work, loop) for loop in loops):
        return None
    place = place_along(work, block, _largest_read(work, block))
    if place is None or place == len(loops) - 1:
        return None
    return place if min(extent(work, loops[-1]), extent(work, loops[place])) >= _LINE else None


def _reads_along(work: Schedule, block: SBlockRV) -> bool:
    """Whether neighbours along the last axis of a sum's result come from neighbours in what is read."""
    last = max(place for place, kind in enumerate(_kinds(work, block)) if kind == _SPATIAL)
    return place_along(work, block, _largest_read(work, block)) == last


def _largest_read(work: Schedule, block: SBlockRV) -> tirx.BufferRegion | None:
    return max(work.get(block).reads, key=lambda read: product_at_one(read.source.shape), default=None)


def place_along(work: Schedule, block: SBlockRV, read: tirx.BufferRegion | None) -> int | None:
    """The axis of a block along which neighbours lie side by side in what is read; None where there is no such single one."""
    along = tirx.analysis.undefined_vars(read.region[-1].min) if read is not None and read.region else []
    variables = [variable.var for variable in work.get(block).iter_vars]
    places = [place for place, variable in enumerate(variables) if any(variable.same_as(one) for one in along)]
    return places[0] if len(places) == 1 else None


def partitioned(work: Schedule, loop: LoopRV, block: SBlockRV) -> None:
    """Have a loop around a block cut in parts. Not where the batch is open: TVM's pass then mixes indices of 32 and 64 bits, and fails."""
    if not any(is_open_loop(work, around) for around in work.get_loops(block)):
        work.annotate(loop, PARTITION, 1)


def _lanes(work: Schedule, loop: LoopRV, core: Core) -> int:
    """The widest vectors that divide the loop; if those are narrow, full ones and a rest."""
    lanes = divisor(extent(work, loop), core.lanes)
    return core.lanes if 2 * lanes < core.lanes < extent(work, loop) else lanes


def in_parallel(work: Schedule, loop: LoopRV, blocks: list[SBlockRV], core: Core) -> None:
    """Share a loop out over the threads if the blocks in it are work enough: the one place that decides it."""
    iterations = sum(math.prod(extent(work, around) for around in work.get_loops(block)) for block in blocks)
    if iterations / core.lanes * _OVERHEAD >= _WORTH_THREADS and (is_open_loop(work, loop) or extent(work, loop) > 1):
        work.parallel(loop)


def vectorized(work: Schedule, loop: LoopRV, core: Core) -> None:
    """Vectors as wide as they divide the loop."""
    work.vectorize(work.split(loop, [None, divisor(extent(work, loop), core.lanes)])[1])


def vectorized_tail(work: Schedule, loop: LoopRV, lanes: int) -> None:
    """Whole vectors, and one narrower vector for what is left at the end: a loop of its own, for conditions in vectors are slow."""
    whole, rest = divmod(extent(work, loop), lanes)
    if whole and rest:
        loop, last = work.loop_partition(loop, [whole * lanes, None])
        work.vectorize(last)
    elif rest:
        lanes = rest
    work.vectorize(work.split(loop, [None, lanes])[1])


def extent(work: Schedule, loop: LoopRV) -> int:
    """The number of iterations, at a batch of one where the batch is open."""
    return at_one(work.get(loop).extent)


def name_of(work: Schedule, block: SBlockRV) -> str:
    return str(work.get(block).name_hint)


def is_open_loop(work: Schedule, loop: LoopRV) -> bool:
    """Whether the number of iterations depends on the batch."""
    return is_open(work.get(loop).extent)


def _kinds(work: Schedule, block: SBlockRV) -> list[int]:
    return [int(variable.iter_type) for variable in work.get(block).iter_vars]


def has_reduction(work: Schedule, block: SBlockRV) -> bool:
    return _REDUCTION in _kinds(work, block)


def _feeds_reduction(work: Schedule, block: SBlockRV) -> bool:
    return any(has_reduction(work, consumer) for consumer in work.get_consumers(block))


def _taken_once(work: Schedule, block: SBlockRV) -> bool:
    """Whether the one sum that takes what a block computes takes each element once, by vectors of neighbours: nothing is gained by keeping
    them."""
    consumers = work.get_consumers(block)
    if len(consumers) != 1 or any(is_open_loop(work, loop) for loop in work.get_loops(consumers[0])):
        return False
    own, (consumer,) = work.get(block).writes[0].source, consumers
    iterations = math.prod(extent(work, loop) for loop in work.get_loops(consumer))
    return _reads_along(work, consumer) and iterations == product_at_one(own.shape) and work.get(consumer).reads[0].source.same_as(own)
