"""Weights fetched ahead: while a kernel works on one block of a packed weight, it asks for the next one, a little in every step.

A block is used for many pixels, but its first use waits for memory, as a core asks by itself only for what is a few cache lines ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.annotated import changed, loop_with
from farm.compiler.extents import product_at_one

PREFETCH = "farm.prefetch"  # annotation of the innermost loop of a reduction: how many rows one block of the weight serves, of one image
PANEL = "farm.prefetch_panel"  # the same where the part of the weight that is in use is what one pass over that loop takes
FOLLOWED = "farm.prefetch_operands"  # annotation of the loop over tiles: what follows the sums of a tile takes other tensors beside them
_LINE = 16  # float32 values in a cache line
_READ, _TO_L1, _TO_L2, _DATA = 0, 3, 2, 1  # arguments of llvm.prefetch

Ahead = Callable[[tirx.For, Sequence[tirx.For]], list[tirx.Stmt]]


def with_prefetches(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loops prefetching, if it has any."""
    for annotation, ahead in ((PREFETCH, _next_block), (PANEL, _next_panel), (FOLLOWED, _operands)):
        function = changed(function, annotation, partial(_prefetching, annotation, ahead))
    return function


def _prefetching(annotation: str, ahead: Ahead, loop: tirx.For, around: Sequence[tirx.For]) -> tirx.For:
    kept = {name: value for name, value in loop.annotations.items() if name != annotation}
    body = loop.body.seq if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    return loop_with(loop, [*ahead(loop, around), *body], kept)


def _next_block(loop: tirx.For, around: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """One step's share of the next block. The loops are: blocks of channels and rows, fused; tiles of a row; those of the sum.

    Where several blocks are used together, a loop over these is the first of the sum's.
    """
    (fused, tiles, *reduced), weight = [*around, loop], _weight(loop.body)
    rows, block = int(loop.annotations[PREFETCH]), int(weight.shape[-1])
    depth = math.prod(int(each.extent) for each in reduced)
    share = -(-block // (rows * int(tiles.extent)))
    step = fused.loop_var % rows * tiles.extent + tiles.loop_var  # begins anew with each image, as their number may be open
    for each in reduced:
        step = step * each.extent + each.loop_var
    at_once = int(reduced[0].extent) if len(reduced) > len(weight.shape) - 2 else 1  # blocks that are used together
    parts = int(weight.shape[0]) // at_once
    first = (fused.loop_var // (fused.extent // parts) + 1) * (depth * block) + step * share
    return [_fetch(weight, first + line) for line in range(0, share, _LINE)]


def _next_panel(loop: tirx.For, around: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """One step's share of the panel after the one of these steps: [steps, block], used for each tile in the loop around."""
    tiles, realize, inside = around[-1], loop.body, [loop]
    while not isinstance(realize, SBlockRealize):
        inside.append(realize)
        realize = realize.body
    region = realize.block.reads[-1]
    block = int(region.source.shape[-1])
    variables = [axis.var for axis in realize.block.iter_vars]
    at = tirx.IndexMap(variables, [part.min for part in region.region], None).map_indices(list(realize.iter_values))
    first = tirx.IndexMap([each.loop_var for each in inside], list(at), None).map_indices([0] * len(inside))
    share = -(-block // int(tiles.extent))
    step = (tiles.loop_var * loop.extent + loop.loop_var) * share + loop.extent * block
    return [_fetch(region.source, step + line, list(first)) for line in range(0, share, _LINE)]


def _operands(loop: tirx.For, _: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """What the last nest of the loop's body reads for a tile, beside the tile itself, of tensors as large as the result."""
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
        if region.source.scope() == "global" and _size(region.source) == size and not _written(loop.body.seq[0], region.source):
            part = [part.min for part in region.region]
            at = tirx.IndexMap([axis.var for axis in nest.block.iter_vars], part, None).map_indices(list(nest.iter_values))
            at = tirx.IndexMap([each.loop_var for each in loops], list(at), None).map_indices([*variables, 0])
            fetches.append(_fetch(region.source, 0, list(at), _TO_L1))
    for variable, each in zip(reversed(variables), reversed(inner), strict=True):
        fetches = [tirx.For(variable, each.min, each.extent, each.kind, tirx.stmt_seq(*fetches), None, {})] if fetches else []
    return fetches


def _size(buffer: tirx.Buffer) -> int:
    return product_at_one(buffer.shape)


def _written(statement: tirx.Stmt, buffer: tirx.Buffer) -> bool:
    while isinstance(statement, tirx.For):
        statement = statement.body
    return any(region.source.same_as(buffer) for region in statement.block.writes)


def _weight(statement: tirx.Stmt) -> tirx.Buffer:
    while not isinstance(statement, SBlockRealize):
        statement = statement.body
    return statement.block.reads[-1].source


def _fetch(weight: tirx.Buffer, value: tirx.Expr, first: Sequence[tirx.Expr] = (), place: int = _TO_L2) -> tirx.Stmt:
    """Fetch a line that is so many values beyond the first, by default the first of all."""
    *outer, last = first or [0] * len(weight.shape)
    address = tirx.address_of(tirx.BufferLoad(weight, [*outer, last + value]))
    hints = (tirx.const(number, "int32") for number in (_READ, place, _DATA))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *hints))
