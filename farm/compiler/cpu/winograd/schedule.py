"""Schedule Winograd's convolution: transforms next to their use, products in register tiles."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.cpu.conv_dense_compute import CROP, PADDING
from farm.compiler.cpu.conv_dense_schedule import (
    find_grouped_inputs_block,
    find_or_create_dominating_consumer,
    inline_producers,
    loads_of,
    schedule_grouped_loads,
    split_reduction_into_groups,
)
from farm.compiler.cpu.general_schedule import (
    PRODUCT_CYCLES,
    parallelize_if_long_enough,
    vectorize_widest,
)
from farm.compiler.cpu.kernel_config import CHANNELS
from farm.compiler.cpu.register_tiles import STEPS_PER_GROUP, Tile, largest_divisor
from farm.compiler.cpu.winograd.compute import (
    ROWS_IN,
    ROWS_OUT,
    TILES_IN,
    TILES_OUT,
    WINOGRAD,
    channel_blocks_per_product,
    minimum_unshared_buffer_bytes,
    register_scope,
)
from farm.compiler.ir.annotations import (
    ORDER,
    OUTPUTS,
    PHASE_CHANNELS,
    PHASES,
    PREFETCH_NEXT_PANEL,
    TILE,
    FenceKind,
    annotate_fence,
)
from farm.compiler.ir.blocks import block_name
from farm.compiler.ir.dynamic_extents import value_at_batch_one
from farm.compiler.target.cpu_model import CpuModel

# float32 values in a cache line: this many channels of a row are transformed before the next row.
_LINE = 16


def schedule_winograd(sch: Schedule, cpu: CpuModel) -> None:
    """Compute a band of tiles at a time.

    The input of the band is transformed, then for each block of channels the products and the
    output's transform are computed. In the order PIXELS, bands are divided among threads. In the
    order CHANNELS, the whole input is transformed first, and blocks of channels are divided: each
    block of the weight is then read once.
    """
    main, rows_out, tiles_out = (sch.get_sblock(name) for name in (WINOGRAD, ROWS_OUT, TILES_OUT))
    tile = Tile(*(int(value) for value in sch.get(main).annotations[TILE]))
    by_channels = sch.get(main).annotations[ORDER] == CHANNELS
    tile_h, tile_w = (int(count) for count in sch.get(main).annotations[OUTPUTS])
    _, _, tiles, side_h, side_w, _ = _extents(sch, sch.get_sblock(TILES_IN))
    columns = _extents(sch, tiles_out)[2] // tile_w
    blocks, points = _extents(sch, main)[-1] // tile.block, side_h * side_w
    at_once = (
        channel_blocks_per_product(cpu, blocks, tiles, points, tile.block) if by_channels else 1
    )
    registers = register_scope(cpu)
    last, products = _last(sch, cpu), sch.cache_write(main, 0, registers)

    n, y, x, c = sch.get_loops(tiles_out)
    band, row, tile_y = sch.split(y, [None, tiles // columns, tile_h])
    column, tile_x = sch.split(x, [None, tile_w])
    block, vector, lane = sch.split(c, [None, at_once * tile.vectors, tile.lanes])
    in_parts = not cpu.has_memory_operands and tile_h > 2
    # A part of a tile's rows takes fewer registers: half of them, or one if their number is odd.
    part = []
    if in_parts:
        tile_y, *part = sch.split(tile_y, [1, None] if tile_h % 2 else [None, 2])
    within = [row, column, vector, *part, tile_y, tile_x, lane]
    if by_channels:
        sch.reorder(block, n, band, *within)
        shared, place = block, band
    else:
        sch.reorder(n, band, block, *within)
        shared, place = sch.fuse(n, band), block
    parallelize_if_long_enough(
        sch, shared, [main], cpu, PRODUCT_CYCLES
    )  # first: TVM does not accept a loop around a crop as parallel
    _unrolled(sch, [tile_x], lane)
    grouped_loads = find_grouped_inputs_block(sch, main) is not None
    by_columns = in_parts or grouped_loads
    sch.compute_at(
        rows_out, [vector, *part][-1] if by_columns else tile_y, preserve_unit_loops=True
    )
    *_, down, across, lane = sch.get_loops(rows_out)
    if by_columns:  # a column's values are loaded once for all their uses
        sch.reorder(across, down, lane)
    _unrolled(sch, [across, down] if by_columns else [across], lane)

    _schedule_products(sch, cpu, main, products, place, tile, at_once)
    transformed = _schedule_input(sch, cpu, None if by_channels else shared, columns)
    if grouped_loads and _fills_tiles(sch, tile):
        _pack(sch, transformed, tile.pixels)
    _follow(sch, last, tile_y, tile)
    for transform in (rows_out, tiles_out):
        sch.set_scope(transform, 0, registers)
    sch.unroll(tile_y)
    for loop in part:
        sch.unroll(loop)
        annotate_fence(sch, loop, FenceKind.RELOAD_EACH_ITERATION)


def _extents(sch: Schedule, block: SBlockRV) -> list[int]:
    """Return the shape of what a block writes, at a batch of one."""
    return [value_at_batch_one(extent) for extent in sch.get(block).writes[0].source.shape]


def _last(sch: Schedule, cpu: CpuModel) -> SBlockRV:
    """Return the last block after the output's transform, with all blocks between them inlined.

    The blocks after it are scheduled by themselves. Raises if that is impossible.
    """
    tiles_out, crop = sch.get_sblock(TILES_OUT), sch.get_sblock(CROP)
    by_phases = PHASES in sch.get(crop).annotations
    before = find_or_create_dominating_consumer(sch, crop if by_phases else tiles_out)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    names = [block_name(sch, block) for block in blocks]
    *between, last = blocks[names.index(TILES_OUT) + 1 :]
    if before is None:
        for block in between:
            sch.compute_inline(block)
    else:
        inline_producers(sch, before, between, last, cpu)
        last = before
    if by_phases:
        _iterate_phase_by_phase(sch, last)
    return last


def _iterate_phase_by_phase(sch: Schedule, last: SBlockRV) -> None:
    """Give a block the axes of the tiles: phase, row and column of a phase, channel."""
    tiles, block = sch.get(sch.get_sblock(TILES_OUT)).writes[0].source, sch.get(last)
    # All loads are at the same place: the block takes its own elements only.
    indices, *_ = loads_of(block.body, tiles)
    axes = [axis.var for axis in block.iter_vars]
    sch.transform_block_layout(last, tirx.IndexMap(axes, list(indices), None))


def _follow(sch: Schedule, last: SBlockRV, place: LoopRV, tile: Tile) -> None:
    """Crop, and compute the epilogue, a row of a tile at a time."""
    channels = int(sch.get(last).writes[0].source.shape[-1])
    sch.reverse_compute_at(last, place, preserve_unit_loops=True)
    *_, pixels, column = sch.get_loops(last)
    vectors, lanes = sch.split(column, [None, math.gcd(channels, tile.lanes)])
    _unrolled(sch, [pixels, vectors], lanes)


def _schedule_products(
    sch: Schedule,
    cpu: CpuModel,
    main: SBlockRV,
    products: SBlockRV,
    place: LoopRV,
    tile: Tile,
    at_once: int,
) -> None:
    """Compute, for each point of a tile, a matrix product by register tiles.

    `at_once` blocks of channels are multiplied at each point before the next point.
    """
    sch.compute_at(products, place, preserve_unit_loops=True)
    *_, t, i, j, c = sch.get_loops(products)
    tiles, pixel = sch.split(t, [None, tile.pixels])
    *block, vector, lane = sch.split(
        c, [*([None] if at_once > 1 else []), tile.vectors, tile.lanes]
    )
    sch.reorder(i, j, *block, tiles, pixel, vector, lane)
    _unrolled(sch, [pixel, vector], lane)
    sch.compute_at(main, tiles, preserve_unit_loops=True)
    *_, pixel, i, j, c, reduced = sch.get_loops(main)
    vector, lane = sch.split(c, [tile.vectors, tile.lanes])
    inputs, steps = find_grouped_inputs_block(sch, main), [reduced]
    if inputs is not None:
        steps = split_reduction_into_groups(sch, [reduced])
    sch.reorder(i, j, *steps, pixel, vector, lane)
    _unrolled(sch, [pixel, vector], lane)
    if inputs is not None:
        schedule_grouped_loads(sch, main, inputs, steps[-2:], tile)
    reduced = steps[0]
    if cpu.gains_by_prefetch:
        sch.annotate(reduced, PREFETCH_NEXT_PANEL, 1)
    *_, pixel, vector, lane = sch.get_loops(sch.decompose_reduction(main, reduced))
    _unrolled(sch, [pixel, vector], lane)


def _fills_tiles(sch: Schedule, tile: Tile) -> bool:
    """Return whether the tiles of a band are whole register tiles."""
    return _extents(sch, sch.get_sblock(TILES_IN))[2] % tile.pixels == 0


def _pack(sch: Schedule, transformed: SBlockRV, pixels: int) -> None:
    """Store transformed inputs in the order in which register tiles read them.

    That is group by group of reduction steps.
    """

    def place(
        n: tirx.Var, b: tirx.Var, t: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var
    ) -> list[tirx.Expr]:
        return [n, b, i, j, t // pixels, c // STEPS_PER_GROUP, t % pixels, c % STEPS_PER_GROUP]

    sch.transform_layout(transformed, ("write", 0), place)


def _schedule_input(sch: Schedule, cpu: CpuModel, place: LoopRV | None, columns: int) -> SBlockRV:
    """Transform the input row by row of tiles, for a cache line of channels: down, then across.

    `place` is the loop to compute it at; None computes all of it before. Returns the block that
    writes the transformed inputs.
    """
    padding, rows_in, tiles_in = (sch.get_sblock(name) for name in (PADDING, ROWS_IN, TILES_IN))
    *_, side_h, side_w, depth = _extents(sch, tiles_in)
    one_axis = 1 in (side_h, side_w)
    if one_axis:  # one of the two transforms does all, the other copies
        sch.compute_inline(rows_in)
    rows = None if one_axis else sch.cache_write(rows_in, 0, register_scope(cpu))
    tiles = sch.cache_write(tiles_in, 0, register_scope(cpu))
    if place is not None:
        sch.compute_at(tiles, place, preserve_unit_loops=True)
    *outer, t, i, j, c = sch.get_loops(tiles)
    lanes = largest_divisor(depth, cpu.lanes)
    row, column = sch.split(t, [None, columns])
    chunk, vector, lane = sch.split(
        c, [None, _vectors(sch, rows, depth // lanes, lanes, cpu), lanes]
    )
    sch.reorder(row, chunk, column, vector, i, j, lane)
    if place is None:
        chunk = sch.fuse(*outer, row, chunk)
    if side_w == 1:
        _in_registers(sch, tiles_in, vector, [i, j], lane)
    else:
        _in_registers(sch, tiles_in, i, [j], lane)
    if rows is not None:
        sch.compute_at(rows, chunk, preserve_unit_loops=True)
        *_, i, x, c = sch.get_loops(rows)
        vector, lane = sch.split(c, [None, lanes])
        sch.reorder(x, vector, i, lane)
        _in_registers(sch, rows_in, vector, [i], lane)
    if place is not None:
        sch.compute_at(padding, place, preserve_unit_loops=True)
    else:
        n, y, *_ = sch.get_loops(padding)
        parallelize_if_long_enough(sch, sch.fuse(n, y), [padding], cpu)
        parallelize_if_long_enough(sch, chunk, [tiles], cpu)
    channels = sch.get_loops(padding)[-1]
    phase_channels = int(sch.get(padding).annotations.get(PHASE_CHANNELS, depth))
    if phase_channels < depth and depth % phase_channels == 0:
        # All lanes of a vector are of one phase then, and have one condition.
        phase, channels = sch.split(channels, [None, phase_channels])
        sch.unroll(phase)
    vectorize_widest(sch, channels, cpu)
    return tiles


def _vectors(sch: Schedule, rows: SBlockRV | None, vectors: int, lanes: int, cpu: CpuModel) -> int:
    """Return how many of the vectors of channels are transformed together.

    They fill whole cache lines, and the buffer that `rows` writes is not so small that it would be
    shared.
    """
    unshared = 1
    if rows is not None:
        *_, side, width, _ = _extents(sch, rows)
        unshared = -(-minimum_unshared_buffer_bytes(cpu) // (4 * side * width * lanes))
    least = min(vectors, max(1, _LINE // lanes, unshared))
    return next(count for count in range(least, vectors + 1) if vectors % count == 0)


def _in_registers(
    sch: Schedule, block: SBlockRV, place: LoopRV, loops: list[LoopRV], lanes: LoopRV
) -> None:
    """Compute all values of a line before the first is stored.

    LLVM eliminates their common subexpressions only if no store lies between.
    """
    _unrolled(sch, loops, lanes)
    sch.compute_at(block, place, preserve_unit_loops=True)
    *_, i, j, _ = sch.get_loops(block)
    _unrolled(sch, [i, j], sch.get_loops(block)[-1])


def _unrolled(sch: Schedule, loops: list[LoopRV], lanes: LoopRV) -> None:
    sch.vectorize(lanes)
    for loop in loops:
        sch.unroll(loop)
