"""Read the shape of a tensor whose extents are all known."""

from __future__ import annotations

from tvm import relax, tirx


def fixed_extents(value: relax.Expr) -> tuple[int, ...] | None:
    """Return the extents of a tensor; None if one is open, or the shape is unknown."""
    extents = getattr(getattr(value.ty, "shape", None), "values", None)
    if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)
