"""Emit elementwise functions of operands that TVM has no lowering for, by other functions."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.ir import GenericConst


def emit_in_float32(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit a function of a float16 tensor in float32; return None for other types."""
    data = call.args[0]
    if str(data.ty.dtype) != "float16":
        return None
    wide = builder.emit(relax.op.astype(data, "float32"))
    return relax.op.astype(builder.emit(relax.Call(call.op, [wide], call.attrs)), "float16")


def emit_unsigned_sign(_: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit the sign of unsigned integers, 0 or 1; return None for other types."""
    data = call.args[0]
    dtype = str(data.ty.dtype)
    return relax.op.minimum(data, relax.const(1, dtype)) if dtype.startswith("uint") else None


def emit_shift(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit a shift whose amount may be negative or at least the number of bits.

    The result is then that of a shift by all bits: copies of the sign for one to the right of a
    signed integer, and 0 for any other (ONNX BitShift-28; torch too). LLVM leaves such a shift
    undefined. Returns None where all amounts are known and within the type.
    """
    data, amount = call.args
    dtype = str(data.ty.dtype)
    limits = np.iinfo(dtype)
    if isinstance(amount, GenericConst):
        amounts = amount.value.numpy()
        if ((amounts >= 0) & (amounts < limits.bits)).all():
            return None
    zero, last, bits = (relax.const(number, dtype) for number in (0, limits.bits - 1, limits.bits))
    is_inside = builder.emit(relax.op.less(amount, bits))
    if limits.min < 0:
        is_positive = builder.emit(relax.op.greater_equal(amount, zero))
        is_inside = builder.emit(relax.op.logical_and(is_inside, is_positive))
    amount = builder.emit(relax.op.where(is_inside, amount, last))
    shifted = relax.Call(call.op, [data, amount], call.attrs)
    if limits.min < 0 and call.op.name == "relax.right_shift":
        return shifted
    return relax.op.where(is_inside, builder.emit(shifted), zero)


_ARC_FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan")
EMIT = {
    **{f"relax.{name}": emit_in_float32 for name in _ARC_FUNCTIONS},
    "relax.sign": emit_unsigned_sign,
    "relax.left_shift": emit_shift,
    "relax.right_shift": emit_shift,
}
