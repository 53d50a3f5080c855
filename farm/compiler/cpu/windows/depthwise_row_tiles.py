"""Schedule depthwise convolutions for in-order 64-bit ARM CPUs by tiles of several rows.

The sums of a tile's rows start and end one row after another. A row of the input is loaded once for
all rows of the output whose windows contain it, and the weights once for a tile. Only the sums of
as many rows as a window is high are in registers at a time: a row of results is stored as soon as
its last row of inputs is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV

from farm.compiler.cpu.conv_dense_schedule import (
    annotated_tile,
    find_grouped_inputs_block,
    schedule_grouped_loads,
)
from farm.compiler.cpu.general_schedule import parallelize_if_long_enough
from farm.compiler.cpu.register_tiles import largest_divisor
from farm.compiler.cpu.tir_passes import load_fences_llvm as llvm
from farm.compiler.cpu.tir_passes.load_fences import (
    emit_fence_call,
    extract_row_bounds_check,
    loops_and_inner_block,
    stored_vectors,
)
from farm.compiler.ir.annotated_loops import copy_loop, rewrite_loops
from farm.compiler.ir.annotations import (
    IMPORT_LLVM,
    INPUT_ROWS,
    OUTPUT_ROWS,
    PEEL_FIRST_AND_LAST,
    ROLL_ROWS,
    TILE_ROWS,
    find_loop_by_name,
    name_loop,
)
from farm.compiler.ir.blocks import loop_extent
from farm.compiler.target.cpu_model import CpuModel


def schedule_row_tiles(
    sch: Schedule, cpu: CpuModel, main: SBlockRV, follower: SBlockRV, strips: int, unrolled: int
) -> None:
    """Schedule tiles of several rows for one vector of channels, with the follower on each tile.

    `strips` of an image, or of parts of its channels, are divided among threads; a row of at most
    `unrolled` tiles is unrolled.
    """
    tile = annotated_tile(sch, main)
    n, y, x, c, *window = sch.get_loops(main)
    bands, rows = sch.split(y, [None, int(sch.get(main).annotations[TILE_ROWS])])
    channel_strips = largest_divisor(
        loop_extent(sch, c) // tile.lanes, -(-strips // loop_extent(sch, bands))
    )  # parts of the channels
    channel_strips, c = sch.split(c, [channel_strips, None])
    sch.reorder(n, bands, channel_strips, rows, x, c, *window)
    parallelize_if_long_enough(sch, sch.fuse(n, bands, channel_strips), [main], cpu)
    tile_rows_of_windows(sch, main, follower, unrolled)


def tile_rows_of_windows(sch: Schedule, main: SBlockRV, follower: SBlockRV, unrolled: int) -> None:
    """Tile the rows of the main block's last loop over rows, with the follower on each tile.

    That loop has as many iterations as a tile has rows. A row of at most `unrolled` tiles is
    unrolled.
    """
    tile = annotated_tile(sch, main)
    *_, rows, x, c, ry, rx = sch.get_loops(main)
    columns, pixels = sch.split(x, [None, tile.pixels])
    channels, lanes = sch.split(c, [None, tile.lanes])
    sch.reorder(columns, channels, ry, rx, rows, pixels, lanes)
    sch.reverse_compute_at(follower, channels, preserve_unit_loops=True)
    *_, result_rows, following, vector = sch.get_loops(follower)
    for loop in (rows, result_rows):
        name_loop(sch, loop, OUTPUT_ROWS)
    for loop in (pixels, following):
        sch.unroll(loop)
    sch.vectorize(vector)
    inputs = find_grouped_inputs_block(sch, main)
    schedule_grouped_loads(sch, main, inputs, [ry, rx], tile)
    *_, input_rows, _, _, _ = sch.get_loops(inputs)  # image, row, column, vector, lane
    name_loop(sch, input_rows, INPUT_ROWS)
    if loop_extent(sch, columns) <= unrolled:
        sch.unroll(columns)
    else:
        sch.annotate(columns, PEEL_FIRST_AND_LAST, 1)
    *_, first_rows, beginning, vector = sch.get_loops(sch.decompose_reduction(main, ry))
    name_loop(sch, first_rows, OUTPUT_ROWS)
    sch.unroll(beginning)
    sch.vectorize(vector)
    sch.annotate(channels, ROLL_ROWS, 1)


def order_loops_by_input_row(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with its ROLL_ROWS loops in the order of input rows.

    A function without such a loop is returned as it is.
    """
    return rewrite_loops(rewrite_loops(function, PEEL_FIRST_AND_LAST, _cut), ROLL_ROWS, _rolled)


def _cut(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.For:
    """Split a loop into its first iteration, those between, and the last.

    TVM unrolls the loop over these parts, so that each part knows which columns are in the image.
    """
    kind = loop.loop_var.ty.dtype
    part, inner, between = (
        tirx.Var("part", kind),
        tirx.Var(loop.loop_var.name, kind),
        int(loop.extent) - 2,
    )
    place = tirx.min(part, 1) + tirx.max(part - 1, 0) * between + inner
    body = tvm_ffi.structural_map(
        loop.body,
        [(tirx.Var, lambda one: place if one.same_as(loop.loop_var) else one)],
        order="post",
    )
    kept = {name: value for name, value in loop.annotations.items() if name != PEEL_FIRST_AND_LAST}
    parts = tirx.For(
        inner,
        loop.min,
        1 + part % 2 * (between - 1),
        loop.kind,
        body,
        loop.thread_binding,
        kept,
        loop.step,
    )
    return tirx.For(part, tirx.const(0, kind), tirx.const(3, kind), tirx.ForKind.UNROLLED, parts)


def _rolled(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.For:
    """Return the loop in the order of input rows.

    Its body is the initialisation of the sums, a loop over the rows of a window with inputs,
    weights and products, and the follower.
    """
    begin, window, follow = loop.body.seq
    inputs, weights, products = window.body.seq
    rows, taps = (
        int(find_loop_by_name(loops_and_inner_block(begin)[0], OUTPUT_ROWS).extent),
        int(window.extent),
    )
    functions, body = {"border": llvm.BORDER}, list[tirx.Stmt]()
    for at in range(rows + taps - 1):  # rows of the input
        adding = range(max(0, at - taps + 1), min(at, rows - 1) + 1)
        tap = at - adding[0]
        if at < rows:
            body.append(_placed(begin, {_var(begin, OUTPUT_ROWS): at}))
        if at < taps:
            body.append(_placed(weights, {window.loop_var: at}))
        there, copy = extract_row_bounds_check(
            _placed(inputs, {window.loop_var: tap, _var(inputs, INPUT_ROWS): adding[0]})
        )
        first = stored_vectors(_placed(begin, {_var(begin, OUTPUT_ROWS): adding[0]}))
        sums = replace(first, count=first.count * len(adding))
        name = f"farm_fence_{sums.count}"
        functions[name] = llvm.fence_llvm_ir(name, sums.count)
        fence = [emit_fence_call(name, sums), emit_fence_call("farm_border")]
        added = [
            _placed(products, {window.loop_var: at - each, _var(products, OUTPUT_ROWS): each})
            for each in adding
        ]
        step = [copy, *fence, *added, *fence]
        body += step if there is None else [tirx.IfThenElse(there, tirx.SeqStmt(step), None)]
        if tap == taps - 1:
            body.append(_placed(follow, {_var(follow, OUTPUT_ROWS): adding[0]}))
    kept = {name: value for name, value in loop.annotations.items() if name != ROLL_ROWS}
    return copy_loop(loop, body, {**kept, IMPORT_LLVM: "\n".join(functions.values())})


def _var(statement: tirx.Stmt, name: str) -> tirx.Var:
    """Return the variable of a named loop of a nest."""
    return find_loop_by_name(loops_and_inner_block(statement)[0], name).loop_var


def _placed(statement: tirx.Stmt, fixed: Mapping[tirx.Var, int]) -> tirx.Stmt:
    """Return a nest of loops around one block with some of the variables fixed.

    The fixed variables may be of the nest or from outside. The loops that remain get new variables.
    """
    loops, realize = loops_and_inner_block(statement)
    kept = [loop for loop in loops if not any(loop.loop_var.same_as(one) for one in fixed)]
    fresh = [tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype) for loop in kept]
    index = tirx.IndexMap(
        [*fixed, *(loop.loop_var for loop in kept)], [*realize.iter_values, realize.predicate], None
    )
    *values, predicate = index.map_indices([*fixed.values(), *fresh])
    body: tirx.Stmt = SBlockRealize(values, predicate, realize.block)
    for loop, variable in zip(reversed(kept), reversed(fresh), strict=True):
        body = tirx.For(
            variable,
            loop.min,
            loop.extent,
            loop.kind,
            body,
            loop.thread_binding,
            dict(loop.annotations),
            loop.step,
        )
    return body
