"""Taps of a convolution that see nothing but padding are passed over, a tile at a time.

`taps` leaves out those that never meet a pixel. Of the others many do so only near an edge: over 16 x 16 pixels a kernel of 3 x 3 with a
dilation of 12 meets a pixel with a quarter of its taps, and one without dilation over 7 x 7 pixels with four fifths.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.annotated import changed, loop_with
from farm.compiler.choices import Workload

SEEN = "farm.seen"  # annotation of the innermost loop of a convolution's sum: see `notes`
_WORTH = 0.93  # of the taps: where more than that see pixels, to ask costs more than it gains


def share(workload: Workload, pixels: int) -> float:
    """The part of the taps that some pixel of a tile of so many neighbours sees; 1 where that is not asked."""
    rows = _share(workload, 0, 1)
    found = rows * _share(workload, 1, pixels)
    return found if found <= _WORTH else 1.0


def _share(workload: Workload, axis: int, together: int) -> float:
    outputs, taps, extent = workload.output(axis), workload.weight[axis], workload.data[1 + axis]
    stride, apart, before = workload.strides[axis], workload.dilation[axis], workload.padding[axis]
    tiles = [(first, min(first + together, outputs) - 1) for first in range(0, outputs, together)]
    seen = [
        first * stride - before + tap * apart < extent and last * stride - before + tap * apart >= 0
        for first, last in tiles
        for tap in range(taps)
    ]
    return sum(seen) / len(seen)


def notes(workload: Workload) -> list[int]:
    """For each axis what the annotation says: its extent, its padding at the beginning, stride and dilation."""
    given = zip(workload.data[1:3], workload.padding[:2], workload.strides, workload.dilation, strict=True)
    return [number for axis in given for number in axis]


def with_seen_taps(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loops done only where a tile sees a pixel."""
    return changed(function, SEEN, _asked)


def _asked(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.Stmt:
    numbers = [int(number) for number in loop.annotations[SEEN]]
    inside, statement = [], loop.body
    while not isinstance(statement, SBlockRealize):
        if isinstance(statement, tirx.For):
            inside.append(statement)
        statement = statement.seq[-1] if isinstance(statement, tirx.SeqStmt) else statement.body
    variables = [each.loop_var for each in (loop, *inside)]
    corners = ([0] * len(variables), [0, *(int(each.extent) - 1 for each in inside)])
    first, last = (list(tirx.IndexMap(variables, list(statement.iter_values), None).map_indices(corner)) for corner in corners)
    conditions = []
    for axis in (0, 1):  # of the values: image, row, column, channel, row and column of the kernel
        extent, before, stride, apart = numbers[4 * axis : 4 * axis + 4]
        low, high = (corner[1 + axis] * stride + corner[4 + axis] * apart - before for corner in (first, last))
        conditions += [low < extent, high >= 0]
    kept = {name: value for name, value in loop.annotations.items() if name != SEEN}
    return tirx.IfThenElse(tirx.all(*conditions), loop_with(loop, [loop.body], kept), None)
