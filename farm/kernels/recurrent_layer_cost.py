"""Recognise the kernel of recurrent layers and count its operations.

The importers write that kernel with its loops, registers and vectors, and the compiler does not
schedule it.
"""

from __future__ import annotations

import math

from tvm import tirx

NAME = "recurrence"  # name of the kernel's outermost block
# Numbers of axes of the input gates [T, B, D, N, G, L] and of the recurrent weights [D, N, H, G,
# L].
_SHARES, _WEIGHTS = 6, 5


def is_recurrence(kernel: tirx.PrimFunc) -> bool:
    """Return whether the kernel is that of a recurrent layer."""
    block = getattr(kernel.body, "block", None)
    return block is not None and block.name_hint == NAME


def operations(kernel: tirx.PrimFunc) -> int:
    """Return the arithmetic operations of all steps: two per weight, step and sequence."""
    shapes = [[int(extent) for extent in buffer.shape] for buffer in kernel.params]
    (steps, batch, *_), weights = (next(shape for shape in shapes if len(shape) == axes) for axes in (_SHARES, _WEIGHTS))
    return 2 * steps * batch * math.prod(weights)
