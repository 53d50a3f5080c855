"""Emit argmax and argmin that return an element's index where all are the type's extreme.

TVM's reductions start at that number with the index -1, and keep this index among equal numbers.
"""

from __future__ import annotations

from tvm import relax


def emit_arg_reduction(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Emit a relax.argmax or relax.argmin whose index is 0 where TVM's is -1."""
    index = builder.emit(call)
    return relax.op.maximum(index, relax.const(0, str(index.ty.dtype)))


EMIT = {"relax.argmax": emit_arg_reduction, "relax.argmin": emit_arg_reduction}
