"""Recognise the kernel of recurrent layers and count its operations.

The importers write that kernel with its loops, registers and vectors, and the compiler does not
schedule it.
"""

from __future__ import annotations

import math

from tvm import tirx

from farm.kernels.recurrent import INPUT_GATES_AXES, NAME, WEIGHTS_AXES


def is_recurrent_layer(kernel: tirx.PrimFunc) -> bool:
    """Return whether the kernel is that of a recurrent layer."""
    block = getattr(kernel.body, "block", None)
    return block is not None and block.name_hint == NAME


def operation_count(kernel: tirx.PrimFunc) -> int:
    """Return the arithmetic operations of all steps: two per weight, step and sequence."""
    shapes = [[int(extent) for extent in buffer.shape] for buffer in kernel.params]
    (steps, batch, *_), weights = (
        next(shape for shape in shapes if len(shape) == axes)
        for axes in (INPUT_GATES_AXES, WEIGHTS_AXES)
    )
    return 2 * steps * batch * math.prod(weights)
