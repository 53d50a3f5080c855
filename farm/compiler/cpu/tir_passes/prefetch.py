"""Prefetch the next block of a packed weight while a kernel works on the current one.

A block is used for many pixels, but its first use waits for memory, because the hardware prefetches
only a few cache lines ahead; one that is used for a single tile waits in each step. Each reduction
step prefetches its share of the next block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.ir.annotated_loops import copy_loop, rewrite_loops
from farm.compiler.ir.annotations import PREFETCH_NEXT_BLOCK, PREFETCH_NEXT_PANEL, PREFETCH_OPERANDS
from farm.compiler.ir.dynamic_extents import product_at_batch_one

_LINE = 16  # float32 values in a cache line
_LINE_OF_BYTES = 64
_AXES_OF_STEP_OF_BYTES = 4  # of a packed int8 weight, see `pack_weight`
_READ, _TO_L1, _TO_L2, _DATA = 0, 3, 2, 1  # arguments of llvm.prefetch

Ahead = Callable[[tirx.For, Sequence[tirx.For]], list[tirx.Stmt]]


def insert_prefetches(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with prefetches in its annotated loops; itself if it has none."""
    for annotation, ahead in (
        (PREFETCH_NEXT_BLOCK, _next_block),
        (PREFETCH_NEXT_PANEL, _next_panel),
        (PREFETCH_OPERANDS, _operands),
    ):
        function = rewrite_loops(function, annotation, partial(_prefetching, annotation, ahead))
    return function


def _prefetching(
    annotation: str, ahead: Ahead, loop: tirx.For, around: Sequence[tirx.For]
) -> tirx.For:
    kept = {name: value for name, value in loop.annotations.items() if name != annotation}
    body = loop.body.seq if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    return copy_loop(loop, [*ahead(loop, around), *body], kept)


def _next_block(loop: tirx.For, around: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """Return the prefetches of one step for the next block.

    The loops are: blocks of channels and rows, fused; tiles of a row; those of the reduction. If
    several blocks are used together, a loop over these is the first of the reduction's.
    """
    (fused, tiles, *reduced), weight = [*around, loop], _weight(loop.body)
    rows, of_bytes = int(loop.annotations[PREFETCH_NEXT_BLOCK]), str(weight.dtype) == "int8"
    step_axes, line = (_AXES_OF_STEP_OF_BYTES, _LINE_OF_BYTES) if of_bytes else (1, _LINE)
    block = math.prod(int(extent) for extent in weight.shape[-step_axes:])
    depth = math.prod(int(each.extent) for each in reduced)
    share = -(-block // (rows * int(tiles.extent)))
    step = (
        fused.loop_var % rows * tiles.extent + tiles.loop_var
    )  # restarts with each image, because their number may be open
    for each in reduced:
        step = step * each.extent + each.loop_var
    at_once = (
        int(reduced[0].extent) if len(reduced) > len(weight.shape) - 1 - step_axes else 1
    )  # blocks in use at the same time
    parts = int(weight.shape[0]) // at_once
    first = (fused.loop_var // (fused.extent // parts) + 1) * (depth * block) + step * share
    return [_fetch(weight, first + begin) for begin in range(0, share, line)]


def _next_panel(loop: tirx.For, around: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """Return the prefetches of one step for the next panel, [steps, block].

    A panel is used for each tile in the loop around.
    """
    tiles, realize, inside = around[-1], loop.body, [loop]
    while not isinstance(realize, SBlockRealize):
        inside.append(realize)
        realize = realize.body
    region = realize.block.reads[-1]
    block = int(region.source.shape[-1])
    variables = [axis.var for axis in realize.block.iter_vars]
    at = tirx.IndexMap(variables, [part.min for part in region.region], None).map_indices(
        list(realize.iter_values)
    )
    first = tirx.IndexMap([each.loop_var for each in inside], list(at), None).map_indices(
        [0] * len(inside)
    )
    share = -(-block // int(tiles.extent))
    step = (tiles.loop_var * loop.extent + loop.loop_var) * share + loop.extent * block
    return [_fetch(region.source, step + line, list(first)) for line in range(0, share, _LINE)]


def _operands(loop: tirx.For, _: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """Return prefetches of what the epilogue of a tile reads in addition to the tile.

    The epilogue is the last nest of the loop's body. Only tensors as large as the result count.
    """
    nest = loop.body.seq[-1]
    loops = []
    while isinstance(nest, tirx.For):
        loops.append(nest)
        nest = nest.body
    size = _size(nest.block.writes[0].source)
    inner = loops[:-1]
    variables = [tirx.Var(f"{each.loop_var.name}_ahead", each.loop_var.ty.dtype) for each in inner]
    fetches = []
    for region in nest.block.reads:
        if (
            region.source.scope() == "global"
            and len(region.source.shape) > 0  # a number is as large as a result of one element
            and _size(region.source) == size
            and not _written(loop.body.seq[0], region.source)
        ):
            part = [part.min for part in region.region]
            at = tirx.IndexMap([axis.var for axis in nest.block.iter_vars], part, None).map_indices(
                list(nest.iter_values)
            )
            at = tirx.IndexMap([each.loop_var for each in loops], list(at), None).map_indices(
                [*variables, 0]
            )
            fetches.append(_fetch(region.source, 0, list(at), _TO_L1))
    for variable, each in zip(reversed(variables), reversed(inner), strict=True):
        fetches = (
            [
                tirx.For(
                    variable, each.min, each.extent, each.kind, tirx.stmt_seq(*fetches), None, {}
                )
            ]
            if fetches
            else []
        )
    return fetches


def _size(buffer: tirx.Buffer) -> int:
    return product_at_batch_one(buffer.shape)


def _written(statement: tirx.Stmt, buffer: tirx.Buffer) -> bool:
    while isinstance(statement, tirx.For):
        statement = statement.body
    return any(region.source.same_as(buffer) for region in statement.block.writes)


def _weight(statement: tirx.Stmt) -> tirx.Buffer:
    while not isinstance(statement, SBlockRealize):
        statement = statement.body
    return statement.block.reads[-1].source


def _fetch(
    weight: tirx.Buffer, value: tirx.Expr, first: Sequence[tirx.Expr] = (), place: int = _TO_L2
) -> tirx.Stmt:
    """Return a prefetch of a line, `value` elements after `first` (default: the start)."""
    *outer, last = first or [0] * len(weight.shape)
    address = tirx.address_of(tirx.BufferLoad(weight, [*outer, last + value]))
    hints = (tirx.const(number, "int32") for number in (_READ, place, _DATA))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *hints))
