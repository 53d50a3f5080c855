"""Put rows whose keys are equal, but for rounding, into the order of the reference.

Detectors return rows (boxes, classes, scores) by descending score. Two rows whose scores differ by
less than two engines' rounding may be returned in either order, and both answers are right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_ROWS = 4096
_ROUNDING = 1e-6  # of the largest number
_ROW_AXES = (0, 1)  # rows are counted along the first axis, or along the one after the batch


def reorder_tied_rows(
    outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]], tolerance: float
) -> list[NDArray[Any]]:
    """Return the outputs with tied rows in the order that is nearest to the reference's.

    Outputs that begin with the same axes have their rows in common. A key is a column of
    floating-point numbers that does not rise in the reference; rows are tied if their keys differ,
    from each to the next, by at most twice `tolerance` times the largest key. Of several keys the
    one counts that leaves the fewest rows tied. All other rows stay where they are.
    """
    result = list(outputs)
    for axis in _ROW_AXES:
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
            if _is_comparable(ours, theirs) and 1 < _extent(ours, axis) <= _MOST_ROWS:
                groups.setdefault(ours.shape[: axis + 1], []).append(index)
        for shape, members in groups.items():
            _reorder(result, reference, members, shape, tolerance)
    return result


def has_tied_rows(reference: Sequence[NDArray[Any]], tolerance: float) -> bool:
    """Return whether rows of the reference's outputs are tied, as `reorder_tied_rows` says it."""
    return any(
        len(group) > 1
        for value in reference
        if value.dtype.kind == "f" and value.size
        for axis in _ROW_AXES
        if 1 < _extent(value, axis) <= _MOST_ROWS
        for rows in value.reshape(-1, value.shape[axis], _columns(value, value.shape[: axis + 1]))
        for column in rows.T
        if (column[:-1] >= column[1:]).all() and column[0] > 0
        for group in _tie_groups(column[column > 0].astype(float), tolerance)
    )


def has_tied_numbers(values: NDArray[Any]) -> bool:
    """Return whether neighbours along the last axis differ by less than two engines' rounding."""
    if values.dtype.kind != "f" or values.ndim == 0 or values.size == 0:
        return False
    wide = values.astype(float)
    steps = abs(wide[..., 1:] - wide[..., :-1])
    return bool((steps <= _ROUNDING * abs(wide).max()).any())


def _is_comparable(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.dtype.kind in "fiu"


def _extent(value: NDArray[Any], axis: int) -> int:
    return value.shape[axis] if value.ndim > axis else 0


def _reorder(
    outputs: list[NDArray[Any]],
    reference: Sequence[NDArray[Any]],
    members: Sequence[int],
    shape: tuple[int, ...],
    tolerance: float,
) -> None:
    """Reorder the rows of those outputs that begin with the axes `shape`, in place of the list."""
    import numpy as np

    rows = shape[-1]
    flat = {
        index: (
            outputs[index].reshape(-1, rows, max(1, _columns(outputs[index], shape))).copy(),
            reference[index].reshape(-1, rows, max(1, _columns(outputs[index], shape))),
        )
        for index in members
        if outputs[index].size
    }
    changed = False
    for batch in range(int(np.prod(shape[:-1], dtype=np.int64))):
        ours = np.concatenate([one[batch].astype(np.float64) for one, _ in flat.values()], axis=1)
        theirs = np.concatenate([one[batch].astype(np.float64) for _, one in flat.values()], axis=1)
        keys = [
            column.astype(np.float64)
            for _, one in flat.values()
            if one.dtype.kind == "f"
            for column in one[batch].T
        ]
        order = _order(ours, theirs, keys, tolerance)
        if order is not None:
            changed = True
            for one, _ in flat.values():
                one[batch] = one[batch][order]
    if changed:
        for index, (one, _) in flat.items():
            outputs[index] = one.reshape(outputs[index].shape)


def _columns(value: NDArray[Any], shape: tuple[int, ...]) -> int:
    return math.prod(value.shape[len(shape) :])


def _order(
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    keys: Sequence[NDArray[np.float64]],
    tolerance: float,
) -> NDArray[np.int64] | None:
    """Return the order of our rows that is nearest to theirs; None if no key is sorted."""
    import numpy as np

    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    sorted_keys = [key for key in keys if (np.diff(key) <= 0).all() and key[0] > key[-1]]
    if not sorted_keys:
        return None
    scale = np.maximum(np.abs(theirs).max(axis=0), np.finfo(np.float64).tiny)
    order = np.arange(len(ours))
    for group in max((_tie_groups(key, tolerance) for key in sorted_keys), key=len):
        if len(group) > 1:
            order[group] = _nearest(ours[group] / scale, theirs[group] / scale) + group[0]
    return order


def _tie_groups(key: NDArray[np.float64], tolerance: float) -> list[NDArray[np.int64]]:
    """Return the row numbers of a sorted key in groups, each of which is tied."""
    import numpy as np

    steps = -np.diff(key) > 2 * tolerance * np.abs(key).max(initial=0)
    return np.split(np.arange(len(key)), np.flatnonzero(steps) + 1)


def _nearest(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each of their rows, which of ours is nearest and not taken by one before it."""
    import numpy as np

    free = np.ones(len(ours), bool)
    chosen = np.empty(len(ours), np.int64)
    for row, wanted in enumerate(theirs):
        distance = np.where(free, np.abs(ours - wanted).max(axis=1), np.inf)
        chosen[row] = int(distance.argmin())
        free[chosen[row]] = False
    return chosen
