"""Channels that do not fill whole vectors: what follows a tile is computed by whole vectors wherever these lie within the channels.

Only the tile at the end has narrower ones, a few of them, each half as wide as the one before or less. TVM has no such step of a schedule:
it would ask each lane whether it is there, or make all vectors as narrow as they divide the channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.annotated import changed, loop_with

TAIL = "farm.tail"  # annotation of the loop over a tile's pixels, in which are those over vectors and lanes: how many channels there are


def with_tails(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loops cut in two cases: whole vectors, and the end of the channels."""
    return changed(function, TAIL, _cut)


def pieces(width: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Begin and width of the vectors that together have `width` lanes, the widest first: `lanes` and its halves."""
    begin = 0
    while width:
        while lanes > width:
            lanes //= 2
        yield begin, lanes
        begin, width = begin + lanes, width - lanes


def _cut(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.Stmt:
    """The loop over pixels, in it those over vectors and over lanes: the same without asking, and what is left at the end.

    Where that begins is said as for the other tiles: TVM then sees that a tile's sums need no more room than a tile.
    """
    channels, vectors, lanes = int(loop.annotations[TAIL]), loop.body, loop.body.body
    realize, block = lanes.body, int(vectors.extent) * int(lanes.extent)
    asked = [part for part in _conjuncts(realize.predicate) if not _depends(part, lanes.loop_var)]
    whole = _around(loop, _around(vectors, _around(lanes, _block_at(realize, realize.iter_values, asked))))
    (first,) = _at(vectors, lanes, realize.iter_values[-1:], 0, 0)
    end = []
    for at, width in pieces(channels % block, int(lanes.extent)):
        lane = tirx.Var(lanes.loop_var.name, lanes.loop_var.ty.dtype)  # of its own: TVM keeps the extent of each
        place = _block_at(realize, [*_at(vectors, lanes, realize.iter_values[:-1], 0, 0), first + at + lane], asked)
        end.append(_around(loop, tirx.For(lane, lanes.min, width, lanes.kind, place)))
    return tirx.IfThenElse(first + block <= channels, whole, tirx.stmt_seq(*end)) if channels > block else tirx.stmt_seq(*end)


def _at(vectors: tirx.For, lanes: tirx.For, values: Sequence[Any], vector: int, lane: int) -> list[Any]:
    return list(tirx.IndexMap([vectors.loop_var, lanes.loop_var], list(values), None).map_indices([vector, lane]))


def _around(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    return loop_with(loop, [body], {name: value for name, value in loop.annotations.items() if name != TAIL})


def _block_at(realize: SBlockRealize, values: Sequence[Any], asked: Sequence[Any]) -> SBlockRealize:
    return SBlockRealize(list(values), tirx.all(*asked) if asked else tirx.const(True, "bool"), realize.block)


def _conjuncts(predicate: Any) -> list[Any]:
    return [*_conjuncts(predicate.a), *_conjuncts(predicate.b)] if isinstance(predicate, tirx.And) else [predicate]


def _depends(value: Any, variable: tirx.Var) -> bool:
    return any(one.same_as(variable) for one in tirx.analysis.undefined_vars(value))
