"""Emit scatter_elements whose indices are shorter than the data along other axes.

TVM's kernel takes them to be as long as the data, and writes to other places than were meant.
"""

from __future__ import annotations

from tvm import relax, tirx


def emit_partial_scatter(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit a scatter into the part of the data that the indices cover, and join the rest.

    Return None if they cover all of it, which TVM's operator computes.
    """
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % len(data.ty.shape)
    covered = getattr(indices.ty.shape, "values", None)
    if covered is None or not all(isinstance(extent, tirx.IntImm) for extent in covered):
        return None
    short = [
        (place, int(some), int(every))
        for place, (some, every) in enumerate(zip(covered, data.ty.shape, strict=True))
        if place != axis and int(some) < int(every)
    ]
    if not short:
        return None
    parts = []
    for place, some, every in short:
        parts.append(_slice(builder, data, place, some, every))
        data = _slice(builder, data, place, 0, some)
    made = builder.emit(
        relax.op.scatter_elements(data, indices, updates, axis, str(call.attrs.reduction))
    )
    for (place, *_), rest in zip(reversed(short), reversed(parts), strict=True):
        made = builder.emit(relax.op.concat([made, rest], place))
    return made


def _slice(
    builder: relax.BlockBuilder, data: relax.Expr, axis: int, begin: int, end: int
) -> relax.Expr:
    return builder.emit(relax.op.strided_slice(data, [axis], [begin], [end]))


EMIT = {"relax.scatter_elements": emit_partial_scatter}
