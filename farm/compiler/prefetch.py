"""Weights fetched ahead: while a kernel works on one block of a packed weight, it asks for the next one, a little in every step.

A block is used for many pixels, but its first use waits for memory, as a core asks by itself only for what is a few cache lines ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.annotated import changed, loop_with

PREFETCH = "farm.prefetch"  # annotation of the innermost loop of a reduction: how many rows one block of the weight serves, of one image
_LINE = 16  # float32 values in a cache line
_READ, _TO_L2, _DATA = 0, 2, 1  # arguments of llvm.prefetch


def with_prefetches(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loop prefetching, if it has one."""
    return changed(function, PREFETCH, _prefetching)


def _prefetching(loop: tirx.For, around: Sequence[tirx.For]) -> tirx.For:
    kept = {name: value for name, value in loop.annotations.items() if name != PREFETCH}
    return loop_with(loop, [*_next_block(loop, around), loop.body], kept)


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
