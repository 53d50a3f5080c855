"""Clamp indices that are computed at run time into their tensor.

TVM does not check bounds: a bad index would read or write memory outside of the tensor, or crash
the agent. An out-of-range read returns NaN (floats) or the nearest element (integers). An
out-of-range write stores NaN at the nearest index (floats) or overwrites that element (integers).
ONNX and torch define both as errors; a kernel has no way to report one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, shape_of


class _Bounded(NamedTuple):
    indices: relax.Expr
    is_inside: relax.Expr  # of each index


@mutator
class IndexClamper(Rewriter):
    """Clamps non-constant indices along axes of known extent; TVM handles constant indices."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            "relax.take": self._rows,
            "relax.gather_elements": self._elements,
            "relax.gather_nd": self._points,
            "relax.index_tensor": self._indexed,
            "relax.scatter_elements": self._written,
            "relax.scatter_nd": self._points_written,
        }

    def _rows(self, call: Call) -> relax.Expr | None:
        if call.attrs.mode != "fast" or constant_value(call.args[1]) is not None:
            return None
        return relax.op.take(*call.args, call.attrs.axis, mode="nan" if _is_float(call) else "clip")

    def _elements(self, call: Call) -> relax.Expr | None:
        data, indices = call.args
        axis = int(call.attrs.axis)
        bounded = self._bounded(indices, _extents(data, [axis]))
        return bounded and self._of_inside(
            relax.op.gather_elements(data, bounded.indices, axis), bounded.is_inside
        )

    def _points(self, call: Call) -> relax.Expr | None:
        data, indices = call.args
        batch = int(call.attrs.batch_dims)
        bounded = self._points_bounded(data, indices, batch)
        if bounded is None:
            return None
        rest = int(data.ty.ndim) - batch - int(shape_of(indices)[-1])  # type: ignore[index]
        return self._of_inside(
            relax.op.gather_nd(data, bounded.indices, batch), self._spread(bounded.is_inside, rest)
        )

    def _indexed(self, call: Call) -> relax.Expr | None:
        data, given = call.args[0], self.bound(call.args[1])
        if not isinstance(given, relax.Tuple):
            return None
        extents = [_extents(data, [axis]) for axis in range(len(given.fields))]
        fields = [
            self._bounded(index, extent, signed=True)
            for index, extent in zip(given.fields, extents, strict=True)
        ]
        if not any(fields):
            return None
        indices = [
            count_from_start(self.builder_, field.indices, *extent) if field and extent else index
            for field, index, extent in zip(fields, given.fields, extents, strict=True)
        ]
        inside = reduce(
            lambda one, other: self._emit(relax.op.logical_and(one, other)),
            (field.is_inside for field in fields if field),
        )
        return self._of_inside(
            relax.op.index_tensor(data, indices),
            self._spread(inside, int(data.ty.ndim) - len(indices)),
        )

    def _written(self, call: Call) -> relax.Expr | None:
        data, indices, updates = call.args
        axis, reduction = int(call.attrs.axis), call.attrs.reduction
        bounded = self._bounded(indices, _extents(data, [axis]), signed=True)
        if bounded is None:
            return None
        updates = self._emit(self._of_inside(updates, bounded.is_inside))
        return relax.op.scatter_elements(data, bounded.indices, updates, axis, reduction)

    def _points_written(self, call: Call) -> relax.Expr | None:
        data, indices, updates = call.args
        bounded = self._points_bounded(data, indices, 0)
        if bounded is None:
            return None
        rest = int(data.ty.ndim) - int(shape_of(indices)[-1])  # type: ignore[index]
        updates = self._emit(self._of_inside(updates, self._spread(bounded.is_inside, rest)))
        return relax.op.scatter_nd(data, bounded.indices, updates, call.attrs.reduction)

    def _points_bounded(self, data: relax.Expr, indices: relax.Expr, batch: int) -> _Bounded | None:
        """Clamp points, whose coordinates are along the last axis of `indices`.

        A point is inside if all of its coordinates are.
        """
        shape = shape_of(indices)
        if shape is None or is_dynamic(shape[-1]):
            return None
        bounded = self._bounded(indices, _extents(data, range(batch, batch + int(shape[-1]))))
        if bounded is None:
            return None
        inside = self._emit(
            relax.op.min(self._emit(relax.op.astype(bounded.is_inside, "int32")), axis=-1)
        )
        return _Bounded(bounded.indices, self._emit(relax.op.astype(inside, "bool")))

    def _bounded(
        self, indices: relax.Expr, extents: Sequence[int] | None, signed: bool = False
    ) -> _Bounded | None:
        """Clamp indices to extents; None if that is not needed or not possible.

        `signed`: negative indices count from the end.
        """
        kind = str(indices.ty.dtype)
        if extents is None or constant_value(indices) is not None or kind not in ("int32", "int64"):
            return None
        highest = np.array(extents, kind) - 1
        bounds = (-highest - 1 if signed else 0 * highest, highest)
        low, high = (relax.const(bound if len(extents) > 1 else bound[0], kind) for bound in bounds)
        inside = self._emit(relax.op.minimum(self._emit(relax.op.maximum(indices, low)), high))
        return _Bounded(inside, self._emit(relax.op.equal(indices, inside)))

    def _of_inside(self, values: relax.Expr, is_inside: relax.Expr) -> relax.Expr:
        values = self._emit(values)
        if not _is_float(values):
            return values
        return relax.op.where(is_inside, values, relax.const(np.nan, str(values.ty.dtype)))

    def _spread(self, is_inside: relax.Expr, axes: int) -> relax.Expr:
        """Append this number of axes of extent 1."""
        rank = int(is_inside.ty.ndim)
        return (
            self._emit(relax.op.expand_dims(is_inside, list(range(rank, rank + axes))))
            if axes
            else is_inside
        )

    def _emit(self, value: relax.Expr) -> relax.Expr:
        return self.builder_.emit(value)


def count_from_start(builder: relax.BlockBuilder, indices: relax.Expr, extent: int) -> relax.Expr:
    """Emit indices whose negative ones have become those that count from the start.

    TVM takes a negative index as it is, and reads what lies before the tensor.
    """
    zero, size = (relax.const(number, str(indices.ty.dtype)) for number in (0, extent))
    is_negative = builder.emit(relax.op.less(indices, zero))
    from_start = builder.emit(relax.op.add(indices, size))
    return builder.emit(relax.op.where(is_negative, from_start, indices))


def _extents(data: relax.Expr, axes: Sequence[int]) -> list[int] | None:
    shape = shape_of(data)
    if shape is None or any(is_dynamic(shape[axis]) for axis in axes):
        return None
    return [int(shape[axis]) for axis in axes]


def _is_float(value: relax.Expr) -> bool:
    return str(value.ty.dtype).startswith(("float", "bfloat"))
