"""Convert torch's indexing by tensors, `x[i, :, j]` and `x[i, :, j] = v`, and embeddings.

It is numpy's (see "Advanced indexing" in NumPy's manual). TVM 0.27's importer does not count
negative indices from the end, treats tensors combined with a `:` as independent selections, and
writes only numbers, and only where all axes have tensors. It takes the extent 0 of an embedding's
rows for "as before". A mask selects as many elements as it has ones, so the result's shape is
unknown: a mask is supported only for writes of a value that is the same for all selected elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from tvm import relax, tirx

Extent: TypeAlias = Any  # an int, or a tirx expression if it is open


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    return {
        "select.int": _select,
        "index.Tensor": _index,
        "index_put.default": _put,
        "embedding.default": _embedding,
    }


class _Places(NamedTuple):
    """The positions that index tensors select, in a tensor whose indexed axes come first."""

    axes: list[int]  # the indexed axes
    order: list[int]  # permutation of all axes with the indexed ones first
    shape: list[Extent]  # the broadcast shape of the indices
    points: relax.Expr  # [*shape, len(axes)], int64, none below zero

    @property
    def moved(self) -> list[int]:
        """Return the permutation from [*shape, *other axes] to torch's order of axes.

        `shape` takes the place of the indexed axes if these are consecutive; otherwise it comes
        first.
        """
        rank, others = len(self.shape), len(self.order) - len(self.axes)
        before = self.axes[0] if self.axes == list(range(self.axes[0], self.axes[-1] + 1)) else 0
        return [*range(rank, rank + before), *range(rank), *range(rank + before, rank + others)]


def _embedding(node: Any, importer: Any) -> relax.Expr:
    """Convert `embedding(table, rows)`, for any shape of the rows, one without elements too."""
    table, rows = (importer.env[argument] for argument in node.args[:2])
    emit = importer.block_builder.emit
    if rows.ty.ndim:
        return emit(relax.op.take(table, rows, 0))
    row = emit(relax.op.take(table, emit(relax.op.reshape(rows, [1])), 0))
    return emit(relax.op.squeeze(row, 0))


def _select(node: Any, importer: Any) -> relax.Expr:
    """Convert `x.select(axis, index)` with a number, or with that of a tensor: `x[:, i]`."""
    data, axis, index = importer.env[node.args[0]], node.args[1], node.args[2]
    emit = importer.block_builder.emit
    if isinstance(index, torch.fx.Node):
        if index.target is not torch.ops.aten._local_scalar_dense.default:
            raise NotImplementedError("an index that is computed from values of tensors")
        one = emit(relax.op.reshape(importer.env[index.args[0]], []))
        one = emit(_from_the_start(emit, one, _length(data, axis)))
        return emit(relax.op.take(data, one, axis))
    if isinstance(index, int) and index < 0:
        index += _length(data, axis)
    return emit(relax.op.take(data, relax.const(index, "int64"), axis))


def _index(node: Any, importer: Any) -> relax.Expr:
    """Convert `x[indices]`; raise NotImplementedError for a mask."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    given = _given(node, importer)
    if any(_is_mask(index) for index in given.values()):
        raise NotImplementedError("a mask that selects elements: how many, no shape tells")
    if len(given) == 1 or _each_for_itself(given):
        for axis, index in given.items():
            line = index if len(given) == 1 else emit(relax.op.reshape(index, [-1]))
            data = emit(
                relax.op.take(data, emit(_from_the_start(emit, line, _length(data, axis))), axis)
            )
        return data
    places = _places(data, given, emit)
    found = emit(relax.op.gather_nd(_permuted(data, places.order, emit), places.points))
    found = _permuted(found, places.moved, emit)
    if all(int(index.ty.ndim) == 0 for index in given.values()):
        found = emit(relax.op.squeeze(found, [places.moved.index(0)]))
    return found


def _put(node: Any, importer: Any) -> relax.Expr:
    """Convert `x[indices] = values`, or the addition to x[indices]."""
    emit = importer.block_builder.emit
    data, values = importer.env[node.args[0]], importer.env[node.args[2]]
    adds = bool(node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False))
    given = _given(node, importer)
    if any(_is_mask(index) for index in given.values()):
        return _put_through(data, given, values, adds, emit)
    places = _places(data, given, emit)
    shape = [*places.shape, *(data.ty.shape[axis] for axis in places.order[len(places.axes) :])]
    values = emit(relax.op.broadcast_to(values, [shape[axis] for axis in places.moved]))
    values = _permuted(values, _inverse(places.moved), emit)
    written = emit(
        relax.op.scatter_nd(
            _permuted(data, places.order, emit), places.points, values, "add" if adds else "update"
        )
    )
    return _permuted(written, _inverse(places.order), emit)


def _put_through(
    data: relax.Expr, given: Mapping[int, relax.Expr], values: relax.Expr, adds: bool, emit: Any
) -> relax.Expr:
    """Convert a write through a mask over the first axes."""
    (axis, mask), *others = given.items()
    behind = int(data.ty.ndim) - int(mask.ty.ndim)
    extents = [extent for extent in values.ty.shape if not _is_one(extent)]
    if others or axis != 0 or len(extents) > behind:
        raise NotImplementedError(
            "a write through a mask of values of their own for each element, or beside other "
            "indices"
        )
    values = emit(relax.op.reshape(values, list(values.ty.shape)[-behind:] if behind else []))
    if behind:
        mask = emit(relax.op.expand_dims(mask, list(range(int(mask.ty.ndim), int(data.ty.ndim)))))
    return emit(relax.op.where(mask, emit(relax.op.add(data, values)) if adds else values, data))


def _given(node: Any, importer: Any) -> dict[int, relax.Expr]:
    """Return the index tensors by axis."""
    return {
        axis: importer.env[index] for axis, index in enumerate(node.args[1]) if index is not None
    }


def _is_mask(index: relax.Expr) -> bool:
    """Return whether an index is a mask."""
    return str(index.ty.dtype) in ("bool", "uint8")


def _each_for_itself(given: Mapping[int, relax.Expr]) -> bool:
    """Return whether each tensor indexes an axis of its own, as in `x[:, i[:, None], j]`.

    That is: each is a line along its own axis, in the order of the axes, e.g. rows and columns.
    """
    axes, count = list(given), len(given)
    if max(int(index.ty.ndim) for index in given.values()) < count:
        return False  # of single elements, `x[i, j]`
    shapes = [[1] * (count - int(index.ty.ndim)) + list(index.ty.shape) for index in given.values()]
    lines = all(
        len(shape) == count and all(_is_one(shape[at]) for at in range(count) if at != own)
        for own, shape in enumerate(shapes)
    )
    return lines and axes == list(range(axes[0], axes[0] + count))


def _places(data: relax.Expr, given: Mapping[int, relax.Expr], emit: Any) -> _Places:
    """Return the positions that the indices select."""
    axes, rank = list(given), max(1, *(int(index.ty.ndim) for index in given.values()))
    shape = list(
        _broadcast(
            [[1] * (rank - int(index.ty.ndim)) + list(index.ty.shape) for index in given.values()]
        )
    )
    parts = []
    for axis, index in given.items():
        index = emit(
            _from_the_start(emit, emit(relax.op.astype(index, "int64")), _length(data, axis))
        )
        parts.append(emit(relax.op.expand_dims(emit(relax.op.broadcast_to(index, shape)), [rank])))
    points = parts[0] if len(parts) == 1 else emit(relax.op.concat(parts, rank))
    return _Places(
        axes,
        [*axes, *(axis for axis in range(int(data.ty.ndim)) if axis not in given)],
        shape,
        points,
    )


def _broadcast(shapes: Sequence[Sequence[Extent]]) -> Iterator[Extent]:
    """Yield the extents of the broadcast of shapes of equal rank."""
    for extents in zip(*shapes, strict=True):
        yield next((extent for extent in extents if not _is_one(extent)), 1)


def _is_one(extent: Extent) -> bool:
    """Return whether an extent is known to be 1."""
    return isinstance(extent, int | tirx.IntImm) and int(extent) == 1


def _permuted(data: relax.Expr, order: list[int], emit: Any) -> relax.Expr:
    """Return the data with its axes permuted; unchanged if the order is the same."""
    return data if order == sorted(order) else emit(relax.op.permute_dims(data, order))


def _inverse(order: Sequence[int]) -> list[int]:
    """Return the inverse of a permutation."""
    return sorted(range(len(order)), key=order.__getitem__)


def _from_the_start(emit: Any, index: relax.Expr, length: int) -> relax.Expr:
    """Return the indices with `length` added to negative ones."""
    zero, size = (relax.const(number, str(index.ty.dtype)) for number in (0, length))
    return relax.op.where(emit(relax.op.less(index, zero)), emit(relax.op.add(index, size)), index)


def _length(data: relax.Expr, axis: int) -> int:
    """Return the extent of an axis; raise NotImplementedError if it is open."""
    length = data.ty.shape[axis]
    if not isinstance(length, tirx.IntImm):
        raise NotImplementedError(f"an index into an axis of open length ({length})")
    return int(length)
