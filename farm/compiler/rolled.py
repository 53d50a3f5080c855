"""Depthwise convolutions for 64-bit ARM cores in order: a tile of several rows, whose sums begin and end one row after another.

A row of the input is loaded once, for all rows of the output that it is in the windows of, and the weights once for a tile. Only the sums
of as many rows as a window is high are in registers at a time: a row of results is stored as soon as its last row of inputs is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV

from farm.compiler import fence_functions as llvm
from farm.compiler.annotated import changed, loop_with
from farm.compiler.core import Core
from farm.compiler.fences import IMPORT, call, nest, row, touched
from farm.compiler.rules import inputs_of, load_by_groups, tile_of
from farm.compiler.spread import extent, in_parallel
from farm.compiler.tiles import divisor

ROWS = "rows"  # annotation of a main block whose tiles have several
CUT = "farm.cut"  # annotation of a loop over columns, of three iterations or more
ROLLED = "farm.rolled"  # annotation of the loop over channels
_ROWS = -3  # of the loops around sums and results, beside those of pixels and lanes
_INPUT_ROWS = 1  # of those around a copy of inputs


def roll(work: Schedule, core: Core, main: SBlockRV, follower: SBlockRV, strips: int, unrolled: int) -> None:
    """Tiles of several rows for one vector of channels, and the follower on each.

    `strips` of an image, or of shares of its channels, are for threads; so many tiles beside one another are `unrolled`.
    """
    tile = tile_of(work, main)
    n, y, x, c, ry, rx = work.get_loops(main)
    bands, rows = work.split(y, [None, int(work.get(main).annotations[ROWS])])
    columns, pixels = work.split(x, [None, tile.pixels])
    shares = divisor(extent(work, c) // tile.lanes, -(-strips // extent(work, bands)))  # of the channels
    shares, channels, lanes = work.split(c, [shares, None, tile.lanes])
    work.reorder(n, bands, shares, columns, channels, ry, rx, rows, pixels, lanes)
    in_parallel(work, work.fuse(n, bands, shares), [main], core)
    work.reverse_compute_at(follower, channels, preserve_unit_loops=True)
    *_, following, vector = work.get_loops(follower)
    for loop in (pixels, following):
        work.unroll(loop)
    work.vectorize(vector)
    load_by_groups(work, main, inputs_of(work, main), [ry, rx], tile)
    if extent(work, columns) <= unrolled:
        work.unroll(columns)
    else:
        work.annotate(columns, CUT, 1)
    *_, beginning, vector = work.get_loops(work.decompose_reduction(main, ry))
    work.unroll(beginning)
    work.vectorize(vector)
    work.annotate(channels, ROLLED, 1)


def with_rolled_rows(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loop by rows of the input; the function itself if it has no such loop."""
    return changed(changed(function, CUT, _cut), ROLLED, _rolled)


def _cut(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.For:
    """The first iteration, those between, and the last: TVM unrolls the loop over these, and knows which columns are in the image."""
    kind = loop.loop_var.ty.dtype
    part, inner, between = tirx.Var("part", kind), tirx.Var(loop.loop_var.name, kind), int(loop.extent) - 2
    place = tirx.min(part, 1) + tirx.max(part - 1, 0) * between + inner
    body = tvm_ffi.structural_map(loop.body, [(tirx.Var, lambda one: place if one.same_as(loop.loop_var) else one)], order="post")
    kept = {name: value for name, value in loop.annotations.items() if name != CUT}
    parts = tirx.For(inner, loop.min, 1 + part % 2 * (between - 1), loop.kind, body, loop.thread_binding, kept, loop.step)
    return tirx.For(part, tirx.const(0, kind), tirx.const(3, kind), tirx.ForKind.UNROLLED, parts)


def _rolled(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.For:
    """The loop's body are the sums' beginnings, a loop over the rows of a window with inputs, weights and products, and what follows."""
    begin, window, follow = loop.body.seq
    inputs, weights, products = window.body.seq
    rows, taps = int(nest(begin)[0][_ROWS].extent), int(window.extent)
    functions, body = {"border": llvm.BORDER}, list[tirx.Stmt]()
    for at in range(rows + taps - 1):  # rows of the input
        adding = range(max(0, at - taps + 1), min(at, rows - 1) + 1)
        tap = at - adding[0]
        if at < rows:
            body.append(_placed(begin, {_var(begin, _ROWS): at}))
        if at < taps:
            body.append(_placed(weights, {window.loop_var: at}))
        there, copy = row(_placed(inputs, {window.loop_var: tap, _var(inputs, _INPUT_ROWS): adding[0]}))
        first = touched(_placed(begin, {_var(begin, _ROWS): adding[0]}))
        sums = replace(first, count=first.count * len(adding))
        name = f"farm_fence_{sums.count}"
        functions[name] = llvm.fence(name, sums.count)
        fence = [call(name, sums), call("farm_border")]
        added = [_placed(products, {window.loop_var: at - each, _var(products, _ROWS): each}) for each in adding]
        step = [copy, *fence, *added, *fence]
        body += step if there is None else [tirx.IfThenElse(there, tirx.SeqStmt(step), None)]
        if tap == taps - 1:
            body.append(_placed(follow, {_var(follow, _ROWS): adding[0]}))
    kept = {name: value for name, value in loop.annotations.items() if name != ROLLED}
    return loop_with(loop, body, {**kept, IMPORT: "\n".join(functions.values())})


def _var(statement: tirx.Stmt, loop: int) -> tirx.Var:
    return nest(statement)[0][loop].loop_var


def _placed(statement: tirx.Stmt, fixed: Mapping[tirx.Var, int]) -> tirx.Stmt:
    """A nest of loops around one block, with some of the variables fixed, its own or others, and others of its own."""
    loops, realize = nest(statement)
    kept = [loop for loop in loops if not any(loop.loop_var.same_as(one) for one in fixed)]
    fresh = [tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype) for loop in kept]
    index = tirx.IndexMap([*fixed, *(loop.loop_var for loop in kept)], [*realize.iter_values, realize.predicate], None)
    *values, predicate = index.map_indices([*fixed.values(), *fresh])
    body: tirx.Stmt = SBlockRealize(values, predicate, realize.block)
    for loop, variable in zip(reversed(kept), reversed(fresh), strict=True):
        body = tirx.For(variable, loop.min, loop.extent, loop.kind, body, loop.thread_binding, dict(loop.annotations), loop.step)
    return body
