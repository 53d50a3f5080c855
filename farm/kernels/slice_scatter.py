"""Emit scatters that write a slice of a tensor, such as `x[:, 1:, ::2] = updates`.

Each element of the result is computed once, from the tensor or from the updates. The kernel has no
indices, and TVM fuses it with the operators before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

Array = np.ndarray[Any, Any]
# These need the tensor's element once. A minimum needs it twice: the code of a chain of scatters,
# which are fused, would double with each.
REDUCTIONS = ("update", "add", "mul")


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """Describe a slice along one axis: `count` indices from `begin`, `step` apart.

    The step may be negative, as in Python.
    """

    begin: int
    step: int
    count: int

    def covers(self, extent: Any) -> bool:
        """Return whether the slice is the whole axis, from its first index to its last."""
        return self == AxisSlice(0, 1, int(extent))

    def contains(self, index: tirx.Expr) -> list[tirx.Expr]:
        """Return conditions that all hold for the indices of the slice, among those of the axis."""
        first, last = sorted((self.begin, self.begin + (self.count - 1) * self.step))
        within = [index >= first, index <= last]
        stride = abs(self.step)
        return within if stride == 1 else [*within, tirx.floormod(index - first, stride) == 0]

    def place_in(self, index: tirx.Expr) -> tirx.Expr:
        """Return the place in the slice of an index of the axis."""
        distance = index - self.begin if self.step > 0 else self.begin - index
        return tirx.floordiv(distance, abs(self.step))


def slices_of_indices(indices: Array, extents: Sequence[int]) -> tuple[AxisSlice, ...] | None:
    """Return the slices that indices, [..., axes], write; None if they are not such.

    The indices are in the order of the slices' elements. `extents` are those of the first axes of
    the tensor; an index may count from an axis' end.
    """
    points = indices.reshape(-1, len(extents)).astype(np.int64)
    slices = [_axis_slice(column, extent) for column, extent in zip(points.T, extents, strict=True)]
    found = tuple(one for one in slices if one is not None)
    counts = [one.count for one in found]
    if len(found) < len(slices) or np.prod(counts, dtype=np.int64) != len(points):
        return None
    grid = points.reshape(*counts, len(extents))
    for axis, (one, extent) in enumerate(zip(found, extents, strict=True)):
        expected = one.begin + one.step * np.arange(one.count)
        along = expected.reshape([-1 if other == axis else 1 for other in range(len(counts))])
        if (np.where(grid[..., axis] < 0, extent, 0) + grid[..., axis] != along).any():
            return None
    return found


def _axis_slice(indices: Array, extent: int) -> AxisSlice | None:
    """Return the slice that has all these indices and no other; None if there is none."""
    if not indices.size or indices.min() < -extent or indices.max() >= extent:
        return None
    indices = np.where(indices < 0, indices + extent, indices)
    is_written = np.zeros(extent, bool)
    is_written[indices] = True
    written = np.flatnonzero(is_written)
    steps = np.diff(written)
    if (steps != steps[:1]).any():
        return None
    step = int(steps[0]) if steps.size else 1
    begin, last = int(indices[0]), int(indices[-1])
    return AxisSlice(begin, step if begin <= last else -step, len(written))


def emit_slice_scatter(
    builder: relax.BlockBuilder,
    call: relax.Call,
    slices: Sequence[AxisSlice],
    fill: int | float | None,
) -> relax.Expr:
    """Emit the kernel of a relax.scatter_nd that writes `slices` along the tensor's first axes.

    `fill` is the number that the tensor is full of, None if that is not known.
    """
    data, _, updates = call.args
    shape = list(data.ty.shape)
    dtype, reduction = str(data.ty.dtype), str(call.attrs.reduction)
    counts = [one.count for one in slices]
    if [int(extent) for extent in call.args[1].ty.shape] != [*counts, len(slices)]:
        updates = builder.emit(relax.op.reshape(updates, [*counts, *shape[len(slices) :]]))

    def scatter(*given: te.Tensor) -> te.Tensor:
        written = given[-1]

        def element(*at: tirx.Var) -> tirx.Expr:
            old = tirx.const(fill, dtype) if fill is not None else given[0](*at)
            along = list(zip(slices, at, strict=False))
            conditions = [
                condition
                for axis, (one, index) in enumerate(along)
                if not one.covers(shape[axis])
                for condition in one.contains(index)
            ]
            places = [one.place_in(index) for one, index in along]
            new = written(*places, *at[len(slices) :])
            other = old if reduction == "update" else _neutral_element(reduction, dtype)
            chosen = tirx.if_then_else(tirx.all(*conditions), new, other) if conditions else new
            if reduction == "update":
                return chosen
            return old + chosen if reduction == "add" else old * chosen

        return te.compute(shape, element, name="slice_scatter")

    read = [data, updates] if fill is None else [updates]
    return builder.call_te(scatter, *read, primfunc_name_hint="slice_scatter")


def _neutral_element(reduction: str, dtype: str) -> tirx.Expr:
    """Return what leaves every number as it is when added or multiplied."""
    if reduction == "mul":
        return tirx.const(1, dtype)
    return tirx.const(-0.0 if "float" in dtype else 0, dtype)  # 0.0 would make -0.0 positive
