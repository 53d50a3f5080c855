"""The schedule of Winograd's convolution (see `winograd`): transforms next to their use, products in register tiles."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.choices import CHANNELS
from farm.compiler.core import Core
from farm.compiler.extents import at_one
from farm.compiler.fences import ANEW, FENCE
from farm.compiler.loops import ORDER, PADDING, TILE
from farm.compiler.prefetch import PANEL
from farm.compiler.rules import inputs_of, load_by_groups, split_in_groups
from farm.compiler.spread import in_parallel, name_of, vectorized
from farm.compiler.tiles import GROUP, Tile, divisor
from farm.compiler.winograd import ROWS_IN, ROWS_OUT, TILES_IN, TILES_OUT, WINOGRAD, least_bytes, together

_LINE = 16  # float32 values in a line of the cache: as many channels of a row are transformed before the next


def schedule_winograd(work: Schedule, core: Core) -> None:
    """A band of tiles at a time: its input transformed, then for each block of channels the products and the output's transform.

    By pixels, bands are shared out among threads. By channels, the whole input is transformed first, and blocks of channels are shared
    out: each block of the weight is then read once.
    """
    main, tiles_in, rows_out, tiles_out = (work.get_sblock(name) for name in (WINOGRAD, TILES_IN, ROWS_OUT, TILES_OUT))
    tile = Tile(*(int(value) for value in work.get(main).annotations[TILE]))
    by_channels = work.get(main).annotations[ORDER] == CHANNELS
    _, _, tiles, *_ = map(at_one, work.get(tiles_in).writes[0].source.shape)
    _, _, size, *_ = map(at_one, work.get(rows_out).writes[0].source.shape)
    columns = int(work.get(tiles_out).writes[0].source.shape[2]) // size
    blocks = int(work.get(main).writes[0].source.shape[-1]) // tile.block
    at_once = together(core, blocks, tiles, size, tile.block) if by_channels else 1
    last, products = _last(work), work.cache_write(main, 0, "global")

    n, y, x, c = work.get_loops(tiles_out)
    band, row, tile_y = work.split(y, [None, tiles // columns, size])
    column, tile_x = work.split(x, [None, size])
    block, vector, lane = work.split(c, [None, at_once * tile.vectors, tile.lanes])
    halves = not core.from_memory and size > 2  # fewer registers: what every second row of a tile takes from a column is apart
    half = []
    if halves:
        tile_y, *half = work.split(tile_y, [None, 2])
    within = [row, column, vector, *half, tile_y, tile_x, lane]
    if by_channels:
        work.reorder(block, n, band, *within)
        shared, place = block, band
    else:
        work.reorder(n, band, block, *within)
        shared, place = work.fuse(n, band), block
    in_parallel(work, shared, [main], core)  # first: a loop around a crop is found to be no parallel one
    _unrolled(work, [tile_x], lane)
    by_groups = inputs_of(work, main) is not None
    by_columns = halves or by_groups
    work.compute_at(rows_out, [vector, *half][-1] if by_columns else tile_y, preserve_unit_loops=True)
    *_, down, across, lane = work.get_loops(rows_out)
    if by_columns:  # a column's values are loaded once, for all that they go into
        work.reorder(across, down, lane)
    _unrolled(work, [across, down] if by_columns else [across], lane)

    _schedule_products(work, core, main, products, place, tile, at_once)
    transformed = _schedule_input(work, core, None if by_channels else shared, columns)
    if by_groups and _fills_tiles(work, tile):
        _pack(work, transformed, tile.pixels)
    _follow(work, last, tile_y, tile)
    work.unroll(tile_y)
    for loop in half:
        work.unroll(loop)
        work.annotate(loop, FENCE, ANEW)


def _last(work: Schedule) -> SBlockRV:
    """The last block, with all that lies between it and the output's transform inlined. Raises where that cannot be done."""
    blocks = work.get_child_blocks(work.get_sblock("root"))
    names = [name_of(work, block) for block in blocks]
    *between, last = blocks[names.index(TILES_OUT) + 1 :]
    for block in between:
        work.compute_inline(block)
    return last


def _follow(work: Schedule, last: SBlockRV, place: LoopRV, tile: Tile) -> None:
    """Crop, and what follows, a row of a tile at a time."""
    channels = int(work.get(last).writes[0].source.shape[-1])
    work.reverse_compute_at(last, place, preserve_unit_loops=True)
    *_, pixels, column = work.get_loops(last)
    vectors, lanes = work.split(column, [None, math.gcd(channels, tile.lanes)])
    _unrolled(work, [pixels, vectors], lanes)


def _schedule_products(work: Schedule, core: Core, main: SBlockRV, products: SBlockRV, place: LoopRV, tile: Tile, at_once: int) -> None:
    """For each point of a tile, a product of matrices by register tiles, those of so many blocks of channels at once."""
    work.compute_at(products, place, preserve_unit_loops=True)
    *_, t, i, j, c = work.get_loops(products)
    tiles, pixel = work.split(t, [None, tile.pixels])
    *block, vector, lane = work.split(c, [*([None] if at_once > 1 else []), tile.vectors, tile.lanes])
    work.reorder(i, j, *block, tiles, pixel, vector, lane)
    _unrolled(work, [pixel, vector], lane)
    work.compute_at(main, tiles, preserve_unit_loops=True)
    *_, pixel, i, j, c, reduced = work.get_loops(main)
    vector, lane = work.split(c, [tile.vectors, tile.lanes])
    inputs, steps = inputs_of(work, main), [reduced]
    if inputs is not None:
        steps = split_in_groups(work, [reduced])
    work.reorder(i, j, *steps, pixel, vector, lane)
    _unrolled(work, [pixel, vector], lane)
    if inputs is not None:
        load_by_groups(work, main, inputs, steps[-2:], tile)
    reduced = steps[0]
    if core.prefetches:
        work.annotate(reduced, PANEL, 1)
    *_, pixel, vector, lane = work.get_loops(work.decompose_reduction(main, reduced))
    _unrolled(work, [pixel, vector], lane)


def _fills_tiles(work: Schedule, tile: Tile) -> bool:
    """Whether the tiles of a band are whole register tiles."""
    _, _, tiles, *_ = map(at_one, work.get(work.get_sblock(TILES_IN)).writes[0].source.shape)
    return tiles % tile.pixels == 0


def _pack(work: Schedule, transformed: SBlockRV, pixels: int) -> None:
    """Have transformed inputs lie in the order in which the products of register tiles take them, group by group of steps."""

    def place(n: tirx.Var, b: tirx.Var, t: tirx.Var, i: tirx.Var, j: tirx.Var, c: tirx.Var) -> list[tirx.Expr]:
        return [n, b, i, j, t // pixels, c // GROUP, t % pixels, c % GROUP]

    work.transform_layout(transformed, ("write", 0), place)


def _schedule_input(work: Schedule, core: Core, place: LoopRV | None, columns: int) -> SBlockRV:
    """Row by row of tiles, for a cache line of channels: down for the whole row, then across. At `place`, or all of it before.

    Returns the block that writes the transformed inputs.
    """
    padding, rows_in, tiles_in = (work.get_sblock(name) for name in (PADDING, ROWS_IN, TILES_IN))
    rows, tiles = work.cache_write(rows_in, 0, "global"), work.cache_write(tiles_in, 0, "global")
    if place is not None:
        work.compute_at(tiles, place, preserve_unit_loops=True)
    *outer, t, i, j, c = work.get_loops(tiles)
    depth = int(work.get(tiles).writes[0].source.shape[-1])
    lanes = divisor(depth, core.lanes)
    row, column = work.split(t, [None, columns])
    chunk, vector, lane = work.split(c, [None, _vectors(work, rows, lanes, core), lanes])
    work.reorder(row, chunk, column, vector, i, j, lane)
    if place is None:
        chunk = work.fuse(*outer, row, chunk)
    _in_registers(work, tiles_in, i, [j], lane)
    work.compute_at(rows, chunk, preserve_unit_loops=True)
    *_, i, x, c = work.get_loops(rows)
    vector, lane = work.split(c, [None, lanes])
    work.reorder(x, vector, i, lane)
    _in_registers(work, rows_in, vector, [i], lane)
    if place is not None:
        work.compute_at(padding, place, preserve_unit_loops=True)
    else:
        n, y, *_ = work.get_loops(padding)
        in_parallel(work, work.fuse(n, y), [padding], core)
        in_parallel(work, chunk, [tiles], core)
    vectorized(work, work.get_loops(padding)[-1], core)
    return tiles


def _vectors(work: Schedule, rows: SBlockRV, lanes: int, core: Core) -> int:
    """Vectors of channels that are transformed together: whole lines of the cache, and no buffer so small that a register tile gets it."""
    *_, side, width, depth = map(at_one, work.get(rows).writes[0].source.shape)
    vectors = depth // lanes
    least = min(vectors, max(1, _LINE // lanes, -(-least_bytes(core) // (4 * side * width * lanes))))
    return next(count for count in range(least, vectors + 1) if vectors % count == 0)


def _in_registers(work: Schedule, block: SBlockRV, place: LoopRV, loops: list[LoopRV], lanes: LoopRV) -> None:
    """Compute all values of a line before the first is stored: LLVM computes what they share once only if no store lies between."""
    _unrolled(work, loops, lanes)
    work.compute_at(block, place, preserve_unit_loops=True)
    *_, i, j, _ = work.get_loops(block)
    _unrolled(work, [i, j], work.get_loops(block)[-1])


def _unrolled(work: Schedule, loops: list[LoopRV], lanes: LoopRV) -> None:
    work.vectorize(lanes)
    for loop in loops:
        work.unroll(loop)
