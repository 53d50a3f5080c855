"""Skip, per output tile, the kernel taps of a convolution that only touch padding.

graph.trim_padding_taps removes taps that never touch a pixel. Many of the others do so only near an
edge: over 16 x 16 pixels a kernel of 3 x 3 with a dilation of 12 touches a pixel with a quarter of
its taps, and one without dilation over 7 x 7 pixels with four fifths.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.ir.annotated_loops import copy_loop, rewrite_loops
from farm.compiler.ir.annotations import SKIP_PADDING_TAPS


def insert_tap_conditions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with its annotated loops executed only if a tile touches a pixel."""
    return rewrite_loops(function, SKIP_PADDING_TAPS, _asked)


def _asked(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.Stmt:
    numbers = [int(number) for number in loop.annotations[SKIP_PADDING_TAPS]]
    inside, statement = [], loop.body
    while not isinstance(statement, SBlockRealize):
        if isinstance(statement, tirx.For):
            inside.append(statement)
        statement = statement.seq[-1] if isinstance(statement, tirx.SeqStmt) else statement.body
    variables = [each.loop_var for each in (loop, *inside)]
    corners = ([0] * len(variables), [0, *(int(each.extent) - 1 for each in inside)])
    first, last = (
        list(tirx.IndexMap(variables, list(statement.iter_values), None).map_indices(corner))
        for corner in corners
    )
    conditions = []
    for axis in (
        0,
        1,
    ):  # axes of the block: image, row, column, channel, row and column of the kernel
        extent, before, stride, apart = numbers[4 * axis : 4 * axis + 4]
        low, high = (
            corner[1 + axis] * stride + corner[4 + axis] * apart - before
            for corner in (first, last)
        )
        conditions += [low < extent, high >= 0]
    kept = {name: value for name, value in loop.annotations.items() if name != SKIP_PADDING_TAPS}
    return tirx.IfThenElse(tirx.all(*conditions), copy_loop(loop, [loop.body], kept), None)
