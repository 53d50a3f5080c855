"""Weights fetched ahead: while a kernel works on one block of a packed weight, it asks for the next one, a little in every step.

A block is used for many pixels, but its first use waits for memory, as a core asks by itself only for what is a few cache lines ahead.
TVM's schedules have no such step, so that it is put into the loops of a scheduled function: a loop to have it is annotated by the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

PREFETCH = "farm.prefetch"  # annotation of the innermost loop of a reduction: how many rows one block of the weight serves, of one image
_LINE = 16  # float32 values in a cache line
_READ, _TO_L2, _DATA = 0, 2, 1  # arguments of llvm.prefetch


def with_prefetches(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loop prefetching, if it has one."""
    body = _visited(function.body, [])
    return function if body is None else function.with_body(body)


def _visited(statement: tirx.Stmt, around: Sequence[tirx.For]) -> tirx.Stmt | None:
    """The statement with the annotated loop in it replaced; None if there is none."""
    if isinstance(statement, tirx.For):
        if PREFETCH in statement.annotations:
            first = tirx.SeqStmt([*_next_block(statement, around), statement.body])
            return _loop(statement, first, {name: value for name, value in statement.annotations.items() if name != PREFETCH})
        body = _visited(statement.body, [*around, statement])
        return None if body is None else _loop(statement, body, dict(statement.annotations))
    if isinstance(statement, tirx.SeqStmt):
        parts = [_visited(part, around) for part in statement.seq]
        return tirx.SeqStmt([new or old for new, old in zip(parts, statement.seq, strict=True)]) if any(parts) else None
    if isinstance(statement, SBlockRealize) and not statement.block.iter_vars:  # the root
        block = statement.block
        body = _visited(block.body, around)
        return None if body is None else SBlockRealize(statement.iter_values, statement.predicate, _block(block, body))
    return None


def _block(block: SBlock, body: tirx.Stmt) -> SBlock:
    rest = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
    return SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body, *rest)


def _loop(loop: tirx.For, body: tirx.Stmt, annotations: dict[str, object]) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, annotations, loop.step)


def _next_block(loop: tirx.For, around: Sequence[tirx.For]) -> list[tirx.Stmt]:
    """One step's share of the next block. The loops are: blocks of channels and rows, fused; tiles of a row; those of the sum."""
    (fused, tiles, *reduced), weight = [*around, loop], _weight(loop.body)
    rows, block = int(loop.annotations[PREFETCH]), int(weight.shape[-1])
    depth = math.prod(int(each.extent) for each in reduced)
    share = -(-block // (rows * int(tiles.extent)))
    step = fused.loop_var % rows * tiles.extent + tiles.loop_var  # begins anew with each image, as their number may be open
    for each in reduced:
        step = step * each.extent + each.loop_var
    first = (fused.loop_var // (fused.extent // int(weight.shape[0])) + 1) * (depth * block) + step * share
    return [_fetch(weight, first + line) for line in range(0, share, _LINE)]


def _weight(statement: tirx.Stmt) -> tirx.Buffer:
    while not isinstance(statement, SBlockRealize):
        statement = statement.body
    return statement.block.reads[-1].source


def _fetch(weight: tirx.Buffer, value: tirx.Expr) -> tirx.Stmt:
    address = tirx.address_of(tirx.BufferLoad(weight, [*[0] * (len(weight.shape) - 1), value]))
    hints = (tirx.const(number, "int32") for number in (_READ, _TO_L2, _DATA))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *hints))
