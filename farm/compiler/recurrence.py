"""Recurrent layers: their kernel comes from the importers with its loops, registers and vectors in place, and is left as it is."""

from __future__ import annotations

import math

from tvm import tirx

NAME = "recurrence"  # of its outermost block
_SHARES, _WEIGHTS = 6, 5  # axes of the inputs' share of the gates [steps, batch, ...] and of the recurrent weights


def is_recurrence(kernel: tirx.PrimFunc) -> bool:
    block = getattr(kernel.body, "block", None)
    return block is not None and block.name_hint == NAME


def operations(kernel: tirx.PrimFunc) -> int:
    """Arithmetic of all steps: two for each weight, step and sequence."""
    shapes = [[int(extent) for extent in buffer.shape] for buffer in kernel.params]
    (steps, batch, *_), weights = (next(shape for shape in shapes if len(shape) == axes) for axes in (_SHARES, _WEIGHTS))
    return 2 * steps * batch * math.prod(weights)
