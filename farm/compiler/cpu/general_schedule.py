"""Schedule kernels without a rule of their own, and choose threads and vectors for all rules."""

from __future__ import annotations

import itertools
import math

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.cpu.register_tiles import largest_divisor
from farm.compiler.ir.annotations import LOOP_PARTITION
from farm.compiler.ir.blocks import (
    REDUCTION,
    SPATIAL,
    block_iter_types,
    block_name,
    has_reduction,
    is_dynamic_loop,
    loop_extent,
)
from farm.compiler.ir.dynamic_extents import product_at_batch_one
from farm.compiler.target.cpu_model import CpuModel

# The least cycles of a loop that is divided among threads, about 4 us of one core: to divide it
# takes 1 to 2 us (x86, two threads).
_WORTH_THREADS = 16_000
# Predicted cycles of a vector of iterations: of a product in a register tile, and of a pass over
# tensors, which loads and stores more.
PRODUCT_CYCLES, PASS_CYCLES = 0.8, 2.0
_ENOUGH_ROWS = 16  # to divide among threads without splitting rows
_TERMS = 32  # tensors that the expression of an element may read
SIDE_BY_SIDE = 8  # vectors in flight of a sum over rows, in neighbouring cache lines
_COLOURS = 4  # of an image at most
# Elements of a transpose's tile along each axis, so that a line that is read in the other order is
# used up while it is in a cache.
_LINE = 16


def schedule_general(sch: Schedule, cpu: CpuModel) -> None:
    """Inline elementwise blocks that are computed once, and schedule every other block."""
    for block in inline_elementwise(sch, sch.get_child_blocks(sch.get_sblock("root"))):
        parallelize_and_vectorize_block(sch, block, cpu)


def inline_elementwise(sch: Schedule, blocks: list[SBlockRV]) -> list[SBlockRV]:
    """Inline elementwise blocks that are computed once, and return the blocks that are left.

    A block with several consumers is kept if a copy for each of them would be too much code, as in
    concatenations of slices of concatenations. A block that computes a function is kept if its
    consumer is a function of it.
    """
    terms, functions = dict[str, int](), dict[str, bool]()
    producers = {
        block_name(sch, block): [block_name(sch, producer) for producer in sch.get_producers(block)]
        for block in blocks
    }
    left = []
    for block in blocks[:-1]:
        name, consumers = block_name(sch, block), sch.get_consumers(block)
        terms[name] = sum(terms.get(producer, 1) for producer in producers[name]) or 1
        several = len(consumers) > 1 and len(consumers) * terms[name] > _TERMS
        kept = _feeds_reduction(sch, block) and not _is_consumed_once(sch, block)
        functions[name] = computes_math_function(sch, block) or any(
            functions.get(producer, False) for producer in producers[name]
        )
        nested = functions[name] and any(
            computes_math_function(sch, consumer) for consumer in consumers
        )
        if has_reduction(sch, block) or not consumers or kept or several or nested:
            terms[name], functions[name] = 1, False
            left.append(block)
        else:
            sch.compute_inline(block)
    return [*left, *blocks[-1:]]


def schedule_blocks_after(sch: Schedule, name: str, cpu: CpuModel) -> dict[str, SBlockRV]:
    """Schedule the blocks after the one of this name, and return all blocks by their names.

    Elementwise blocks that are computed once are inlined.
    """
    blocks = {block_name(sch, one): one for one in sch.get_child_blocks(sch.get_sblock("root"))}
    names = list(blocks)
    after = [blocks[one] for one in names[names.index(name) + 1 :]]
    for block in inline_elementwise(sch, after):
        parallelize_and_vectorize_block(sch, block, cpu)
    return blocks


def parallelize_and_vectorize_block(sch: Schedule, block: SBlockRV, cpu: CpuModel) -> None:
    """Divide the spatial loops among threads and vectorize the innermost one.

    A reduction stays inside, around its vectors.
    """
    loops, kinds = sch.get_loops(block), block_iter_types(sch, block)
    if len(loops) != len(kinds):
        return  # not a perfect loop nest: correct without a schedule
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == SPATIAL]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == REDUCTION]
    if not spatial or any(is_dynamic_loop(sch, loop) for loop in (spatial[-1], *reduced)):
        return
    transposed = _transposed_axis(sch, block)
    if _reads_across(sch, block):
        spatial[-2:] = reversed(spatial[-2:])
        sch.reorder(*spatial)
    elif transposed is None and not reduced and (period := _period(sch, block, cpu)) is not None:
        spatial[-1:] = sch.split(spatial[-1], [None, period])
    lanes, rows = (
        _lanes(sch, spatial[-1], cpu),
        math.prod(loop_extent(sch, loop) for loop in spatial[:-1]),
    )
    inner, line_tile, vectors_in_flight = None, [], []
    if transposed is not None:
        spatial[transposed], lines = sch.split(spatial[transposed], [None, _LINE])
        line_tile = [lines]
    if lanes > 1:
        spatial[-1], inner = sch.split(spatial[-1], [None, lanes])
        if reduced and _reads_along(sch, block):
            spatial[-1], vectors = sch.split(
                spatial[-1], [None, largest_divisor(loop_extent(sch, spatial[-1]), SIDE_BY_SIDE)]
            )
            vectors_in_flight = [vectors]
    sch.reorder(
        *spatial, *line_tile, *reduced, *vectors_in_flight, *([inner] if inner is not None else [])
    )
    # A condition, as in a concatenation, is then tested once for a vector or never
    tested = _tested_loop(sch, block, loops)
    outside = list(itertools.takewhile(lambda loop: loop is not tested, spatial[:-1]))
    if (
        len(outside) < len(spatial) - 1
        and math.prod(loop_extent(sch, loop) for loop in outside) >= _ENOUGH_ROWS
    ):
        hint_loop_partition(sch, spatial[len(outside)], block)
        spatial = outside
    elif rows >= _ENOUGH_ROWS:
        hint_loop_partition(sch, spatial.pop(), block)
    outer = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    parallelize_if_long_enough(sch, outer, [block], cpu)
    if inner is not None:
        sch.vectorize(inner)
    if reduced:
        initial = sch.get_loops(sch.decompose_reduction(block, reduced[0]))
        if inner is not None:
            sch.vectorize(initial[-1])
        for vectors in [*vectors_in_flight, initial[-2]] if vectors_in_flight else []:
            sch.unroll(vectors)


def computes_math_function(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block computes a function such as exp, with `let` values used several times.

    See farm.kernels.vector_math. Functions nested in the arguments of others make TVM's code
    generator twelve times as slow with each that is added.
    """
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(sch.get(block).body, [(tirx.Let, found.append)])
    return bool(found)


def _tested_loop(sch: Schedule, block: SBlockRV, loops: list[LoopRV]) -> LoopRV | None:
    """Return the loop whose index a block compares with constants; None if there are several.

    `loops` are those of the block's axes.
    """
    root = sch.get(block)
    found: list[tirx.PrimExpr] = []
    tvm_ffi.structural_walk(root.body, [((tirx.LT, tirx.LE, tirx.GT, tirx.GE), found.append)])
    compared = [
        variable
        for one in found
        if isinstance(one.a, tirx.IntImm) or isinstance(one.b, tirx.IntImm)
        for variable in tirx.analysis.undefined_vars(one)
    ]
    axes = {
        axis
        for axis, one in enumerate(root.iter_vars)
        if any(one.var.same_as(variable) for variable in compared)
    }
    return loops[axes.pop()] if len(axes) == 1 else None


def _reads_across(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether the last axis is short, and the one before is contiguous in the input.

    An example is an image whose colours come last.
    """
    *_, across, last = [None, None, *(variable.var for variable in sch.get(block).iter_vars)]
    regions = [read.region for read in sch.get(block).reads if read.region]
    if (
        across is None
        or has_reduction(sch, block)
        or not regions
        or loop_extent(sch, sch.get_loops(block)[-1]) > _COLOURS
    ):
        return False
    taken = tirx.analysis.undefined_vars(regions[0][-1].min)
    return any(one.same_as(across) for one in taken) and not any(one.same_as(last) for one in taken)


def _period(sch: Schedule, block: SBlockRV, cpu: CpuModel) -> int | None:
    """Return after how many elements of its last axis a block reads from another place.

    The block divides that index by this number, as in a repeated tensor or in one whose last axes
    are joined. Within a period, the elements are contiguous where they would be without. Returns
    None if there is no such number, or several, or if it does not divide the axis.
    """
    last = sch.get(block).iter_vars[-1]
    found: list[tirx.PrimExpr] = []
    tvm_ffi.structural_walk(sch.get(block).body, [((tirx.FloorDiv, tirx.FloorMod), found.append)])
    divisors = {
        int(one.b) for one in found if one.a.same_as(last.var) and isinstance(one.b, tirx.IntImm)
    }
    if len(divisors) != 1:
        return None
    (period,) = divisors
    extent = int(last.dom.extent)
    return period if cpu.lanes // 2 <= period < extent and extent % period == 0 else None


def _transposed_axis(sch: Schedule, block: SBlockRV) -> int | None:
    """Return the axis that is contiguous in the input, if that is not the last and both are long.

    Such a block is a transpose. Returns None otherwise.
    """
    loops = sch.get_loops(block)
    if has_reduction(sch, block) or any(is_dynamic_loop(sch, loop) for loop in loops):
        return None
    place = contiguous_axis(sch, block, _largest_read(sch, block))
    if place is None or place == len(loops) - 1:
        return None
    return (
        place if min(loop_extent(sch, loops[-1]), loop_extent(sch, loops[place])) >= _LINE else None
    )


def _reads_along(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether the last axis of a reduction's result is contiguous in its input."""
    spatial = [at for at, kind in enumerate(block_iter_types(sch, block)) if kind == SPATIAL]
    return contiguous_axis(sch, block, _largest_read(sch, block)) in spatial[-1:]


def _largest_read(sch: Schedule, block: SBlockRV) -> tirx.BufferRegion | None:
    return max(
        sch.get(block).reads, key=lambda read: product_at_batch_one(read.source.shape), default=None
    )


def contiguous_axis(sch: Schedule, block: SBlockRV, read: tirx.BufferRegion | None) -> int | None:
    """Return the axis of a block that is contiguous in a region; None if not exactly one."""
    along = (
        tirx.analysis.undefined_vars(read.region[-1].min)
        if read is not None and read.region
        else []
    )
    variables = [variable.var for variable in sch.get(block).iter_vars]
    places = [
        place
        for place, variable in enumerate(variables)
        if any(variable.same_as(one) for one in along)
    ]
    return places[0] if len(places) == 1 else None


def hint_loop_partition(sch: Schedule, loop: LoopRV, block: SBlockRV) -> None:
    """Request that a loop around a block is split where a condition changes, to make it constant.

    Not if the batch is open: TVM's pass then mixes indices of 32 and 64 bits, and fails.
    """
    if not any(is_dynamic_loop(sch, around) for around in sch.get_loops(block)):
        sch.annotate(loop, LOOP_PARTITION, 1)


def _lanes(sch: Schedule, loop: LoopRV, cpu: CpuModel) -> int:
    """Return the widest vectors that divide the loop; full ones if those are narrow.

    Full vectors leave a remainder.
    """
    lanes = largest_divisor(loop_extent(sch, loop), cpu.lanes)
    return cpu.lanes if 2 * lanes < cpu.lanes < loop_extent(sch, loop) else lanes


def parallelize_if_long_enough(
    sch: Schedule,
    loop: LoopRV,
    blocks: list[SBlockRV],
    cpu: CpuModel,
    cycles_per_vector: float = PASS_CYCLES,
) -> None:
    """Divide a loop among threads if the blocks in it take long enough.

    `cycles_per_vector` is predicted for a vector of iterations.
    """
    iterations = sum(
        math.prod(loop_extent(sch, around) for around in sch.get_loops(block)) for block in blocks
    )
    if takes_long_enough(iterations, cpu, cycles_per_vector) and (
        is_dynamic_loop(sch, loop) or loop_extent(sch, loop) > 1
    ):
        sch.parallel(loop)


def takes_long_enough(
    iterations: int, cpu: CpuModel, cycles_per_vector: float = PASS_CYCLES
) -> bool:
    """Return whether so many iterations are worth several threads.

    No other function decides this.
    """
    return iterations / cpu.lanes * cycles_per_vector >= _WORTH_THREADS


def vectorize_widest(sch: Schedule, loop: LoopRV, cpu: CpuModel) -> None:
    """Vectorize a loop by the widest vectors that divide it."""
    sch.vectorize(sch.split(loop, [None, largest_divisor(loop_extent(sch, loop), cpu.lanes)])[1])


def vectorize_with_tail(sch: Schedule, loop: LoopRV, lanes: int) -> None:
    """Vectorize a loop by whole vectors, and one narrower vector for the remainder at the end.

    The remainder is a loop of its own, because conditions in vectors are slow.
    """
    whole, rest = divmod(loop_extent(sch, loop), lanes)
    if whole and rest:
        loop, last = sch.loop_partition(loop, [whole * lanes, None])
        sch.vectorize(last)
    elif rest:
        lanes = rest
    sch.vectorize(sch.split(loop, [None, lanes])[1])


def partition_last_vector(sch: Schedule, loop: LoopRV, count: int, lanes: int) -> None:
    """Give the last vector of `count` elements a loop of its own, and vectors beyond it another.

    `loop` is over vectors of `lanes`. Conditions in vectors are slow; in these loops they are
    constant, except in the last vector. Blocks must be computed at their places before: TVM finds
    no consumers in such loops.
    """
    whole, rest = divmod(count, lanes)
    beyond = loop_extent(sch, loop) - whole - (rest > 0)
    extents = [extent for extent in (whole, int(rest > 0), beyond) if extent]
    if len(extents) > 1:
        sch.loop_partition(loop, [*extents[:-1], None])


def _feeds_reduction(sch: Schedule, block: SBlockRV) -> bool:
    return any(has_reduction(sch, consumer) for consumer in sch.get_consumers(block))


def _is_consumed_once(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether the only consumer is a reduction that reads each element once.

    It also reads them contiguously. Materialising the block would then save nothing.
    """
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or any(
        is_dynamic_loop(sch, loop) for loop in sch.get_loops(consumers[0])
    ):
        return False
    own, (consumer,) = sch.get(block).writes[0].source, consumers
    iterations = math.prod(loop_extent(sch, loop) for loop in sch.get_loops(consumer))
    return (
        _reads_along(sch, consumer)
        and iterations == product_at_batch_one(own.shape)
        and sch.get(consumer).reads[0].source.same_as(own)
    )
