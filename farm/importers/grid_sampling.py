"""Prepare images for TVM's sampling at the places of a grid."""

from __future__ import annotations

from tvm import relax

from farm.importers.extents import is_open


def repeat_single_elements(builder: relax.BlockBuilder, image: relax.Expr) -> relax.Expr:
    """Return an image [N, C, ...] whose axes of one element have two, which are equal.

    With aligned corners, TVM reflects places by the distance between the first and the last element
    of an axis, and divides by it. Every place between equal elements has their value.
    """
    for axis in range(2, int(image.ty.ndim)):
        extent = image.ty.shape[axis]
        if not is_open(extent) and int(extent) == 1:
            image = builder.emit(relax.op.repeat(image, 2, axis))
    return image
