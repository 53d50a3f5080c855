"""Schedule convolutions and products: register tiles, with the epilogue on each tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer

from farm.compiler.cpu.conv_dense_compute import (
    CONVOLUTION,
    CROP,
    DENSE,
    GROUPED_CONVOLUTION,
    INPUTS,
    PADDING,
    PRODUCT,
    WINDOW_INPUTS,
)
from farm.compiler.cpu.general_schedule import (
    PRODUCT_CYCLES,
    computes_math_function,
    contiguous_axis,
    inline_elementwise,
    parallelize_and_vectorize_block,
    parallelize_if_long_enough,
    vectorize_widest,
)
from farm.compiler.cpu.int8.compute import CONVOLUTION_INT8, DENSE_INT8
from farm.compiler.cpu.kernel_config import CHANNELS
from farm.compiler.cpu.register_tiles import (
    STEPS_PER_GROUP,
    Tile,
    groups_per_iteration,
    largest_divisor,
)
from farm.compiler.ir.annotations import (
    INSTRUCTION,
    ORDER,
    PREFETCH_NEXT_BLOCK,
    PREFETCH_OPERANDS,
    ROW_LENGTH,
    SKIP_PADDING_TAPS,
    TILE,
    VECTOR_TAIL,
    FenceKind,
    annotate_fence,
)
from farm.compiler.ir.blocks import block_name, has_reduction, is_dynamic_loop, loop_extent
from farm.compiler.ir.dynamic_extents import is_dynamic, shapes_are_equal, value_at_batch_one
from farm.compiler.target.cpu_model import CpuModel

_PRODUCTS = (CONVOLUTION, GROUPED_CONVOLUTION, DENSE, PRODUCT, CONVOLUTION_INT8, DENSE_INT8)
_PREFETCHED = (CONVOLUTION, DENSE, CONVOLUTION_INT8, DENSE_INT8)  # their weights are packed
_GROUPED = (INPUTS, WINDOW_INPUTS)
_SHARE_OF_GROUP = 8  # 1/8 of the L2 cache is for the weights of blocks that are used together
# Pixels of a tile whose multiplications hide the prefetch of a block that is used once; measured.
_ENOUGH_PIXELS = 9
_GROUPS = 4  # of blocks at least: each but the first is prefetched
_FUNCTIONS = 2  # nested in an epilogue at most: see `computes_math_function`
# Reduction steps at most: LLVM unrolls the loops of such a short row, and would keep too many
# inputs in registers.
_UNROLLED_BY_LLVM = 16


def schedule_conv_dense(sch: Schedule, cpu: CpuModel) -> None:
    """Keep the sums of a tile in registers, then compute the epilogue on the tile."""
    main = find_main_block(sch, _PRODUCTS)
    before = producer_blocks(sch, main)
    by_tile = [block for block in before if _is_padded_by_tile(sch, cpu, main, block)]
    if block_name(sch, main) == GROUPED_CONVOLUTION:
        (joined,) = sch.get_consumers(main)
        last = inline_into_epilogue(sch, main, cpu, joined)
        _divide_channels_by_groups(sch, main, last)
    elif ROW_LENGTH in sch.get(main).annotations:
        (image,) = sch.get_consumers(main)
        last = inline_into_epilogue(sch, main, cpu, image)
        _join_rows(sch, main, last)
    else:
        last = inline_into_epilogue(sch, main, cpu)
    shared = _tile_product(sch, cpu, main, last)
    for block in before:
        if block in by_tile:
            sch.compute_at(block, shared, preserve_unit_loops=True)
            vectorize_widest(sch, sch.get_loops(block)[-1], cpu)
        else:
            parallelize_and_vectorize_block(sch, block, cpu)


def _divide_channels_by_groups(sch: Schedule, main: SBlockRV, last: SBlockRV) -> None:
    """Give the last block an axis of groups, as the main block has one.

    Its channels are then those of one group, so that it can be computed with the main block's
    tiles.
    """
    _, _, groups, _, _ = sch.get(main).writes[0].source.shape
    each = int(sch.get(last).iter_vars[-1].dom.extent) // int(groups)
    sch.transform_block_layout(last, lambda n, y, x, c: (n, y, x, c // each, c % each))
    # TVM leaves the number of a group as (group * each + channel) // each
    block, analyzer = sch.get(last), Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    simple = tvm_ffi.structural_map(
        block, [(kind, analyzer.simplify) for kind in kinds], order="post"
    )
    sch.state.replace(sch.get_sref(last), simple, {block: simple})


def _join_rows(sch: Schedule, main: SBlockRV, last: SBlockRV) -> None:
    """Join the axes of rows and columns of the last block, as those of the main block are.

    Raises ValueError if the block does not have both, next to each other.
    """
    width = int(sch.get(main).annotations[ROW_LENGTH])
    axes = [axis.var for axis in sch.get(last).iter_vars]
    extents = [axis.dom.extent for axis in sch.get(last).iter_vars]
    analyzer = Analyzer()
    sums = sch.get(main).writes[0].source
    places = [read[-2] for read in loads_of(sch.get(last).body, sums)]
    found = [
        at
        for at, (row, column) in enumerate(pairwise(axes))
        if shapes_are_equal([extents[at + 1]], [width])
        and all(analyzer.can_prove_equal(place, row * width + column) for place in places)
    ]
    if len(found) != 1:
        raise ValueError("the rows and columns of an image are not next to each other")
    (rows,) = found

    def joined(*at: tirx.Var) -> tuple[Any, ...]:
        return (*at[:rows], at[rows] * width + at[rows + 1], *at[rows + 2 :])

    index_type = str(axes[0].ty.dtype)
    sch.transform_block_layout(
        last, tirx.IndexMap.from_func(joined, ndim=len(axes), index_dtype=index_type)
    )
    block = sch.get(last)
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def simplify(sum_: tirx.Add) -> Any:
        return analyzer.simplify(sum_) if "int" in str(sum_.ty.dtype) else sum_

    simple = tvm_ffi.structural_map(block, [(tirx.Add, simplify)], order="post")
    sch.state.replace(sch.get_sref(last), simple, {block: simple})


def _is_padded_by_tile(sch: Schedule, cpu: CpuModel, main: SBlockRV, block: SBlockRV) -> bool:
    """Return whether each tile pads the part of the image that it reads, for itself.

    This pays if the cache does not hold the padded image: a copy of all of it would be written to
    memory and read again.
    """
    image = sch.get(block).writes[0].source
    return (
        block_name(sch, block) == PADDING
        and block_name(sch, main) in (CONVOLUTION, GROUPED_CONVOLUTION)
        and sch.get(main).annotations[ORDER] != CHANNELS
        and find_grouped_inputs_block(sch, main) is None
        and 4 * math.prod(map(value_at_batch_one, image.shape)) > cpu.l2_bytes // 2
    )


def _tile_product(sch: Schedule, cpu: CpuModel, main: SBlockRV, last: SBlockRV) -> LoopRV:
    """Tile the last two axes of the main block, and compute its one consumer on each tile.

    Returns the loop that is divided among threads.
    """
    tile, axes = annotated_tile(sch, main), len(sch.get(main).writes[0].source.shape)
    spatial, reduced = sch.get_loops(main)[:axes], sch.get_loops(main)[axes:]
    instruction = str(sch.get(main).annotations.get(INSTRUCTION, ""))
    inside = [reduced.pop()] if instruction else []
    asks = SKIP_PADDING_TAPS in sch.get(main).annotations  # a test for each tap
    if not asks:
        reduced = fuse_short_reduction(sch, cpu, reduced)
    inputs = find_grouped_inputs_block(sch, main)
    if inputs is not None:
        reduced = [*reduced[:-1], *split_reduction_into_groups(sch, reduced)]
    *outer, row, column = spatial
    rows, tile_rows = sch.split(row, [None, tile.pixels])
    columns, vectors, lanes = sch.split(column, [None, tile.vectors, tile.lanes])
    sch.reorder(*outer, rows, columns, *reduced, tile_rows, vectors, lanes, *inside)
    if sch.get(main).annotations[ORDER] == CHANNELS:
        columns, *within = _split_block_groups(sch, cpu, main, columns)
        sch.reorder(columns, *outer, rows, *within)
        uses = math.prod(
            loop_extent(sch, loop) for loop in outer
        )  # rows of tiles that use a block before the next block
        prefetch = (
            (uses * loop_extent(sch, rows) > 1 or tile.pixels >= _ENOUGH_PIXELS)
            and loop_extent(sch, columns) > 1
            and not is_dynamic_loop(sch, rows)
        )
        if cpu.gains_by_prefetch and prefetch and block_name(sch, main) in _PREFETCHED:
            sch.annotate(reduced[-1], PREFETCH_NEXT_BLOCK, uses)
        shared, place = _fused(sch, [columns, *outer]), [rows, *within][-1]
    else:
        shared, place = _fused(sch, [*outer, rows]), columns
    _follow(sch, main, last, place, tile)
    if cpu.gains_by_prefetch:
        sch.annotate(place, PREFETCH_OPERANDS, 1)
    parallelize_if_long_enough(sch, shared, [main], cpu, PRODUCT_CYCLES)
    _unroll_vectorize(sch, [tile_rows, vectors], None if instruction else lanes)
    if asks:
        sch.annotate(
            reduced[-1],
            SKIP_PADDING_TAPS,
            [int(number) for number in sch.get(main).annotations[SKIP_PADDING_TAPS]],
        )
    if inputs is not None:
        schedule_grouped_loads(sch, main, inputs, reduced[-2:], tile)
    initial = sch.get_loops(sch.decompose_reduction(main, reduced[0]))
    _unroll_vectorize(sch, initial[-3:-1], initial[-1])
    if instruction:
        sch.tensorize(lanes, instruction)
    return shared


def fuse_short_reduction(sch: Schedule, cpu: CpuModel, reduced: list[LoopRV]) -> list[LoopRV]:
    """Return the reduction loops of a convolution, with those over a short kernel's taps fused."""
    if (
        not cpu.has_memory_operands
        and len(reduced) == 3
        and loop_extent(sch, reduced[1]) * loop_extent(sch, reduced[2]) <= _UNROLLED_BY_LLVM
    ):
        return [sch.fuse(*reduced[:2]), reduced[2]]
    return reduced


def _split_block_groups(
    sch: Schedule, cpu: CpuModel, main: SBlockRV, columns: LoopRV
) -> list[LoopRV]:
    """Split the loop over blocks of channels into one over groups and one within a group.

    The groups are blocks whose weights stay in the cache together; the loop is returned unsplit if
    there is one block in a group. A row of tiles is computed for a whole group before the next row:
    its results, and what is added to them, are then adjacent. The weights come from the L2 cache
    each time: that is fast enough for a tile of many pixels, which reuses each weight for each
    pixel.
    """
    tile = annotated_tile(sch, main)
    vectors_a_cycle = cpu.fmas_per_cycle / cpu.resource_cycles(tile.lanes)
    bytes_a_cycle = 4 * tile.lanes * vectors_a_cycle / tile.pixels  # of weights
    if (
        block_name(sch, main) not in (CONVOLUTION, DENSE)
        or not cpu.gains_by_prefetch
        or bytes_a_cycle > cpu.l2_bytes_per_cycle / 2
    ):
        return [columns]
    block_bytes = 4 * math.prod(int(extent) for extent in sch.get(main).reads[-1].source.shape[1:])
    fitting, blocks = cpu.l2_bytes // _SHARE_OF_GROUP // block_bytes, loop_extent(sch, columns)
    together = largest_divisor(blocks, max(1, min(fitting, blocks // _GROUPS)))
    return list(sch.split(columns, [None, together])) if together > 1 else [columns]


def find_grouped_inputs_block(sch: Schedule, main: SBlockRV) -> SBlockRV | None:
    """Return the block of a main block's grouped loads; None if its loads are not grouped."""
    return next(
        (block for block in sch.get_producers(main) if block_name(sch, block) in _GROUPED), None
    )


def split_reduction_into_groups(sch: Schedule, reduced: list[LoopRV]) -> list[LoopRV]:
    """Split the innermost reduction loop into iterations, groups and steps of a group."""
    *around, steps = (loop_extent(sch, loop) for loop in reduced)
    return list(
        sch.split(
            reduced[-1], [None, groups_per_iteration(steps, math.prod(around)), STEPS_PER_GROUP]
        )
    )


def schedule_grouped_loads(
    sch: Schedule, main: SBlockRV, inputs: SBlockRV, loops: list[LoopRV], tile: Tile
) -> None:
    """Load all operands of a group of reduction steps before the products of the group.

    `loops` are the loop over the groups of an iteration and the loop over the steps of a group.
    """
    groups, steps = loops
    read = [region.source for region in sch.get(main).reads]
    (own,) = (
        at for at, buffer in enumerate(read) if buffer.same_as(sch.get(inputs).writes[0].source)
    )
    packed = (
        int(read[own + 1].shape[-1]) == tile.block and loop_extent(sch, steps) >= STEPS_PER_GROUP
    )
    weights = sch.cache_read(main, own + 1, "global")
    for block, lanes in ((inputs, STEPS_PER_GROUP), (weights, tile.lanes)):
        sch.compute_at(block, groups, preserve_unit_loops=True)
        *_, rows, column = sch.get_loops(block)
        vectors, column = sch.split(column, [None, lanes])
        _unroll_vectorize(sch, [rows, vectors], column)
    _unroll_vectorize(sch, [], sch.get_loops(main)[-1])
    sch.unroll(groups)
    sch.unroll(steps)
    annotate_fence(sch, groups, FenceKind.GROUPED_PACKED if packed else FenceKind.GROUPED_ROWS)
    if packed and loop_extent(sch, iterations := _around(sch, main, groups)) > 1:
        annotate_fence(sch, iterations, FenceKind.OPAQUE_TRIP_COUNT)


def _around(sch: Schedule, block: SBlockRV, inner: LoopRV) -> LoopRV:
    """Return the loop of a block that directly encloses another."""
    loops = sch.get_loops(block)
    return loops[
        next(at for at, loop in enumerate(loops) if sch.get(loop).same_as(sch.get(inner))) - 1
    ]


def producer_blocks(sch: Schedule, main: SBlockRV) -> list[SBlockRV]:
    """Return the blocks that a main block reads, directly or through grouped loads."""
    found = [
        [block] if block_name(sch, block) not in _GROUPED else sch.get_producers(block)
        for block in sch.get_producers(main)
    ]
    return [block for blocks in found for block in blocks]


def find_main_block(sch: Schedule, names: tuple[str, ...]) -> SBlockRV:
    """Return the first block that has one of the names."""
    return next(
        block
        for block in sch.get_child_blocks(sch.get_sblock("root"))
        if block_name(sch, block) in names
    )


def annotated_tile(sch: Schedule, main: SBlockRV) -> Tile:
    """Return the register tile that a main block is annotated with."""
    return Tile(*(int(value) for value in sch.get(main).annotations[TILE]))


def _fused(sch: Schedule, loops: list[LoopRV]) -> LoopRV:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def inline_into_epilogue(
    sch: Schedule, main: SBlockRV, cpu: CpuModel, result: SBlockRV | None = None
) -> SBlockRV:
    """Inline all blocks after the main block into the last one, and return that.

    `result` is a block after the main block that has its results in another order: what follows
    takes the elements of that. It is inlined, too.

    A main block that is the last gets a copy as its epilogue. The returned block computes each of
    its elements from one element of the main block: computed with the tiles of the main block, it
    is complete. If that does not hold for the last block (a channel's factor is applied to all
    pixels, a padding has elements that do not depend on the main block), the part before it is
    computed with the tiles: the last block is parallelized and vectorized by itself, and the block
    before is returned. The same holds if the last block also reads an input of the main block,
    because TVM's `reverse_compute_at` rejects that: the result is then staged through a copy, which
    is returned.

    Raises if that is impossible, as when a kernel has several results.
    """
    _fuse_bias_into_init(sch, main)
    if not sch.get_consumers(main):
        sch.cache_write(main, 0, "global")
    sources = {block_name(sch, block) for block in producer_blocks(sch, main)}
    first = {*_GROUPED, block_name(sch, main), *sources}
    *between, last = after = [
        block
        for block in sch.get_child_blocks(sch.get_sblock("root"))
        if block_name(sch, block) not in first
    ]
    whole = main if result is None else result
    before = find_or_create_dominating_consumer(sch, whole)
    if before is None and any(
        block_name(sch, producer) in sources
        for block in after
        for producer in sch.get_producers(block)
    ):
        before = sch.cache_write(whole, 0, "global")
    if before is None:
        for block in between:
            sch.compute_inline(block)
        return last
    inline_producers(sch, before, between, last, cpu)
    return before


def inline_producers(
    sch: Schedule, before: SBlockRV, between: list[SBlockRV], last: SBlockRV, cpu: CpuModel
) -> None:
    """Inline the producers of `before` into it, and schedule the blocks after it by themselves."""
    needed, waiting = set[str](), [before]
    while waiting:
        producers = sch.get_producers(waiting.pop())
        needed.update(block_name(sch, block) for block in producers)
        waiting += producers
    after = [
        block
        for block in between
        if block_name(sch, block) not in {*needed, block_name(sch, before)}
    ]
    for block in between:
        if block_name(sch, block) in needed:
            sch.compute_inline(block)
    for block in inline_elementwise(sch, [*after, last]):
        parallelize_and_vectorize_block(sch, block, cpu)


def find_or_create_dominating_consumer(sch: Schedule, main: SBlockRV) -> SBlockRV | None:
    """Return the block through which all blocks after it depend on the main block.

    Returns None if every block after the main block computes each element from one element of the
    blocks before it, with at most _FUNCTIONS functions nested. Returns a copy of the main block if
    there is no such single block.
    """
    gates, reached, waiting = dict[str, SBlockRV](), {block_name(sch, main): 0}, [main]
    while waiting:
        block = waiting.pop()
        for consumer in sch.get_consumers(block):
            name, functions = (
                block_name(sch, consumer),
                reached[block_name(sch, block)] + computes_math_function(sch, consumer),
            )
            if functions > _FUNCTIONS or not _takes_own_elements(sch, consumer, block):
                gates[block_name(sch, block)] = block
            elif functions > reached.get(name, -1):
                reached[name] = functions
                waiting.append(consumer)
    if not gates:
        return None
    gate = next(iter(gates.values()))
    return (
        gate
        if len(gates) == 1 and block_name(sch, gate) != block_name(sch, main)
        else sch.cache_write(main, 0, "global")
    )


def _takes_own_elements(sch: Schedule, consumer: SBlockRV, producer: SBlockRV) -> bool:
    """Return whether a block computes one element of each of its producer's, and only from that.

    TVM's `reverse_compute_at` computes a block wherever one of its operands is computed, and
    nowhere else: a block with more elements, such as a padding, would lack some, and one with
    fewer, such as a slice, would be written beyond its end. Of farm's own crop, which only leaves
    out what fills the last tiles, the tiles' bounds are known.
    """
    block, source = sch.get(consumer), sch.get(producer).writes[0].source
    extents = {axis.var: axis.dom.extent for axis in block.iter_vars}
    if has_reduction(sch, consumer):
        return False
    for indices in loads_of(block.body, source):
        taken = [index for index in indices if isinstance(index, tirx.Var)]
        missing = [
            variable for variable in extents if not any(variable.same_as(index) for index in taken)
        ]
        if any(not isinstance(index, tirx.Var | tirx.IntImm) for index in indices) or len(
            set(taken)
        ) < len(taken):
            return False
        if any(
            is_dynamic(extents[variable]) or int(extents[variable]) != 1 for variable in missing
        ):
            return False
        places = zip(indices, source.shape, strict=True)
        if block_name(sch, consumer) != CROP and not all(
            shapes_are_equal([extents.get(index, 1)], [extent]) for index, extent in places
        ):
            return False
    return True


def loads_of(statement: tirx.Stmt, buffer: Any) -> list[Sequence[Any]]:
    """Return the indices at which a statement reads a buffer."""
    found: list[Sequence[Any]] = []

    def collect(load: TensorLoad) -> None:
        if load.source.same_as(buffer):
            found.append(load.indices)

    tvm_ffi.structural_walk(statement, [(TensorLoad, collect)])
    return found


def _fuse_bias_into_init(sch: Schedule, main: SBlockRV) -> None:
    """Initialise the sums with the bias if the only consumer adds one element by element.

    Not for the sums of an instruction: the block would no longer match its tensor intrinsic. Nor if
    another block computes what is added: it could not be inlined into the beginning of a sum.
    """
    consumers, block = sch.get_consumers(main), sch.get(main)
    if len(consumers) != 1 or not _is_sum(block) or block.annotations.get(INSTRUCTION):
        return
    if len(sch.get_producers(consumers[0])) > 1:
        return
    added, sums = sch.get(consumers[0]), block.writes[0].source
    places = [axis.var for axis in added.iter_vars]
    reads = loads_of(added.body, sums)
    of_own = (
        len(reads) == 1
        and len(reads[0]) == len(places)
        and all(map(tirx.Var.same_as, places, reads[0]))
    )
    value = getattr(added.body, "value", None)
    of_same_shape = shapes_are_equal([axis.dom.extent for axis in added.iter_vars], sums.shape)
    if (
        of_own
        and of_same_shape
        and isinstance(value, tirx.Add)
        and any(sums.same_as(getattr(part, "source", None)) for part in (value.a, value.b))
    ):
        sch.fuse_reduction_epilogue(main, consumers[0])


def _is_sum(block: SBlock) -> bool:
    """Return whether a block is a sum that starts with zero: TVM would fuse into any reduction."""
    begin, step = getattr(block.init, "value", None), getattr(block.body, "value", None)
    return (
        isinstance(begin, tirx.IntImm | tirx.FloatImm)
        and float(begin.value) == 0
        and isinstance(step, tirx.Add)
    )


def _follow(sch: Schedule, main: SBlockRV, last: SBlockRV, place: LoopRV, tile: Tile) -> None:
    """Compute the last block tile by tile, in whole vectors.

    If the channels do not fill whole vectors, the last vector of all is split, see vector_tails.
    """
    channels = int(sch.get(last).iter_vars[-1].dom.extent)
    sums = next(
        (
            read
            for read in sch.get(last).reads
            if read.source.same_as(sch.get(main).writes[0].source)
        ),
        None,
    )
    by_channels = contiguous_axis(sch, last, sums) == len(sch.get(last).iter_vars) - 1
    axes, row_axis = len(sch.get(last).iter_vars), _row_axis(sch, main, last)
    sch.reverse_compute_at(last, place, preserve_unit_loops=True)
    if row_axis != axes - 2:
        *leading, _ = sch.get_loops(last)[-axes:]
        row = leading.pop(row_axis)
        sch.reorder(*leading, row)
    *_, pixels, column = sch.get_loops(last)
    tailed = (
        by_channels
        and channels % tile.lanes > 0
        and loop_extent(sch, column) == min(channels, tile.block)
    )
    vectors, lanes = sch.split(
        column,
        [
            None,
            tile.lanes if tailed else largest_divisor(math.gcd(channels, tile.block), tile.lanes),
        ],
    )
    _unroll_vectorize(sch, [pixels, vectors], lanes)
    if tailed:
        sch.annotate(pixels, VECTOR_TAIL, channels)


def _row_axis(sch: Schedule, main: SBlockRV, last: SBlockRV) -> int:
    """Return the axis of the last block that counts the rows of a tile of the main block.

    It is the one before the last, unless the last block has the axes before the channels in another
    order.
    """
    axes = [axis.var for axis in sch.get(last).iter_vars]
    usual = len(axes) - 2
    for read in loads_of(sch.get(last).body, sch.get(main).writes[0].source):
        if len(read) == len(axes) > 2 and not axes[usual].same_as(read[-2]):
            places = [at for at, axis in enumerate(axes[:-1]) if axis.same_as(read[-2])]
            return places[0] if places else usual
    return usual


def _unroll_vectorize(sch: Schedule, loops: list[LoopRV], lanes: LoopRV | None) -> None:
    if lanes is not None:
        sch.vectorize(lanes)
    for loop in loops:
        sch.unroll(loop)


RULES = {
    CONVOLUTION: schedule_conv_dense,
    GROUPED_CONVOLUTION: schedule_conv_dense,
    DENSE: schedule_conv_dense,
    PRODUCT: schedule_conv_dense,
    CONVOLUTION_INT8: schedule_conv_dense,
    DENSE_INT8: schedule_conv_dense,
}
