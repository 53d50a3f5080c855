"""Emit scatters of whole rows, such as the messages of a graph's edges.

TVM starts all threads anew for each row, to share its columns. Here a thread writes its own columns
of all rows, in the order of the indices: a sum has the same bits with any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

_LEAST_ELEMENTS = 16384  # that several threads share
_MOST_PARTS = 8
_LEAST_COLUMNS = 32  # of a part
REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


@dataclass(frozen=True, slots=True)
class Scatter:
    """Describe a scatter, which writes rows at `points` places of a tensor of a shape and a type.

    A place has an index along each of the first `axes` axes of the tensor; the others are the
    columns of a row. Extents are numbers, or expressions of TVM if they are open. `fill` is the
    number that the tensor is full of, if it is known: it is not read then. `is_counted`: the number
    of valid places is only known at run time.
    """

    shape: tuple[Any, ...]
    axes: int
    points: Any
    dtype: str
    reduction: str
    fill: int | float | None = None
    is_counted: bool = False

    @property
    def rows(self) -> Any:
        """Return the number of rows of the tensor."""
        return math.prod(self.shape[: self.axes])

    @property
    def columns(self) -> Any:
        """Return the number of elements of a row."""
        return math.prod(self.shape[self.axes :])

    @property
    def parts(self) -> int:
        """Return how many parts the columns have, which threads share."""
        if any(isinstance(extent, tirx.Expr) for extent in (*self.shape, self.points)):
            return 1
        if (self.rows + self.points) * self.columns < _LEAST_ELEMENTS:
            return 1
        parts: int = min(_MOST_PARTS, self.columns // _LEAST_COLUMNS)
        return max(1, parts)


def emit_scatter_nd(
    builder: relax.BlockBuilder, call: relax.Call, fill: int | float | None
) -> relax.Expr | None:
    """Emit the kernel of a relax.scatter_nd; return None where TVM has to compute it.

    `fill` is the number that the tensor is full of, None if that is not known. A row whose index is
    outside of the tensor is left out.
    """
    shapes = [_shape(argument) for argument in call.args]
    if not all(shapes) or any(extent == 0 for shape in shapes for extent in shape):
        return None
    data, (*places, axes), _ = shapes
    if not isinstance(axes, int):
        return None
    scatter = Scatter(
        *(data, axes, math.prod(places), str(call.args[0].ty.dtype)),
        reduction=str(call.attrs.reduction),
        fill=fill,
    )
    read = call.args if fill is None else call.args[1:]
    body = partial(_scatter_rows, scatter=scatter)
    return builder.call_te(body, *read, primfunc_name_hint="scatter_nd")


def _shape(value: relax.Expr) -> tuple[Any, ...]:
    """Return the extents of a tensor, those that are known as int; none of an unknown shape."""
    extents = getattr(getattr(value.ty, "shape", None), "values", None) or ()
    return tuple(int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in extents)


def emit_scatter_rows(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    count: relax.Expr,
    rows: relax.Expr,
    *,
    adds: bool = False,
) -> relax.Expr:
    """Emit the kernel that replaces rows of a tensor, those at `indices`, int64 [n], by `rows`.

    With `adds`, it adds them, in their order. The first `count` of the indices are valid. An index
    outside of the tensor is left out.
    """
    scatter = Scatter(
        _shape(data),
        1,
        int(rows.ty.shape[0]),
        str(data.ty.dtype),
        "add" if adds else "update",
        is_counted=True,
    )
    return builder.call_te(
        partial(_scatter_rows, scatter=scatter),
        *(data, indices, rows, count),
        primfunc_name_hint="add_rows" if adds else "scatter_rows",
    )


def _scatter_rows(*given: te.Tensor, scatter: Scatter) -> te.Tensor:
    """Scatter rows [points, columns] at places [points, axes].

    `given` are the tensor, unless it is full of one number, the places, the rows, and the count of
    valid places, if there is one. All are read and written as rows, whatever their axes are.
    """
    columns = scatter.columns
    reduce = REDUCTIONS[scatter.reduction]

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        buffers, result = [T.buffer_proxy(one) for one in inputs], T.buffer_proxy(outputs[0])
        old = buffers.pop(0) if scatter.fill is None else None
        places, new = buffers[:2]
        points = scatter.points
        if scatter.is_counted:
            points = tirx.min(buffers[2][0], tirx.const(points, "int64"))
        parts = scatter.parts
        width = columns if parts == 1 else -(-columns // parts)
        with IRBuilder() as program, ExitStack() as loops:
            part = loops.enter_context(T.parallel(0, parts) if parts > 1 else T.serial(0, 1))
            begin = part * width
            taken = (
                width if parts == 1 or columns % width == 0 else tirx.min(width, columns - begin)
            )
            with T.serial(0, scatter.rows) as row, T.serial(0, taken) as column:
                at = row * columns + begin + column
                result[at] = tirx.const(scatter.fill, scatter.dtype) if old is None else old[at]
            with T.serial(0, points) as point:
                place = [
                    tirx.Cast("int64", places[point * scatter.axes + axis])
                    for axis in range(scatter.axes)
                ]
                bounds = list(zip(place, scatter.shape, strict=False))
                is_inside = tirx.all(
                    *(index >= 0 for index in place), *(index < bound for index, bound in bounds)
                )
                row = place[0]
                for index, bound in bounds[1:]:
                    row = row * bound + index
                with T.If(is_inside), T.Then(), T.serial(0, taken) as column:
                    at = row * columns + begin + column
                    result[at] = reduce(result[at], new[point * columns + begin + column])
        return program.get()

    return te.extern([scatter.shape], list(given), body, name="scatter_rows", dtype=[scatter.dtype])
