"""Compute the epilogue of a tile in whole vectors even if these do not divide the channels.

Only the last tile uses narrower vectors (powers of two, descending). TVM has no such primitive: it
would either predicate each lane or choose one vector width that divides the channel count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.ir.annotated_loops import copy_loop, rewrite_loops
from farm.compiler.ir.annotations import VECTOR_TAIL


def split_vector_tails(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with whole vectors and last channels split in annotated loops."""
    return rewrite_loops(function, VECTOR_TAIL, _cut)


def vector_starts_and_widths(width: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield the start and width of vectors of `width` lanes in total, the widest first.

    The widths are `lanes` and its halves.
    """
    begin = 0
    while width:
        while lanes > width:
            lanes //= 2
        yield begin, lanes
        begin, width = begin + lanes, width - lanes


def _cut(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.Stmt:
    """Split the loop over pixels, around those over vectors and lanes, into two cases.

    The first case has no predicate; the second is the remainder at the end. The start of the
    remainder is computed as for the other tiles: TVM then sees that a tile's sums fit the buffer of
    a tile. A tile may begin behind the last channel, if the block takes the first channels of a
    wider product only. Nothing is written there; TVM removes the condition where it always holds.
    """
    channels, vectors, lanes = int(loop.annotations[VECTOR_TAIL]), loop.body, loop.body.body
    realize, block = lanes.body, int(vectors.extent) * int(lanes.extent)
    asked = [part for part in _conjuncts(realize.predicate) if not _depends(part, lanes.loop_var)]
    whole = _around(
        loop, _around(vectors, _around(lanes, _block_at(realize, realize.iter_values, asked)))
    )
    (first,) = _at(vectors, lanes, realize.iter_values[-1:], 0, 0)
    end = []
    for at, width in vector_starts_and_widths(channels % block, int(lanes.extent)):
        lane = tirx.Var(
            lanes.loop_var.name, lanes.loop_var.ty.dtype
        )  # a new variable: TVM keeps one extent for each
        place = _block_at(
            realize,
            [*_at(vectors, lanes, realize.iter_values[:-1], 0, 0), first + at + lane],
            asked,
        )
        end.append(_around(loop, tirx.For(lane, lanes.min, width, lanes.kind, place)))
    tail = tirx.IfThenElse(first < channels, tirx.stmt_seq(*end), None)
    return tirx.IfThenElse(first + block <= channels, whole, tail) if channels > block else tail


def _at(
    vectors: tirx.For, lanes: tirx.For, values: Sequence[Any], vector: int, lane: int
) -> list[Any]:
    return list(
        tirx.IndexMap([vectors.loop_var, lanes.loop_var], list(values), None).map_indices(
            [vector, lane]
        )
    )


def _around(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    return copy_loop(
        loop,
        [body],
        {name: value for name, value in loop.annotations.items() if name != VECTOR_TAIL},
    )


def _block_at(realize: SBlockRealize, values: Sequence[Any], asked: Sequence[Any]) -> SBlockRealize:
    return SBlockRealize(
        list(values), tirx.all(*asked) if asked else tirx.const(True, "bool"), realize.block
    )


def _conjuncts(predicate: Any) -> list[Any]:
    return (
        [*_conjuncts(predicate.a), *_conjuncts(predicate.b)]
        if isinstance(predicate, tirx.And)
        else [predicate]
    )


def _depends(value: Any, variable: tirx.Var) -> bool:
    return any(one.same_as(variable) for one in tirx.analysis.undefined_vars(value))
