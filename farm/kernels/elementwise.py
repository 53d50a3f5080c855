"""Emit elementwise functions of types that TVM has no lowering for, by those of other types."""

from __future__ import annotations

from tvm import relax


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


_ARC_FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan")
EMIT = {
    **{f"relax.{name}": emit_in_float32 for name in _ARC_FUNCTIONS},
    "relax.sign": emit_unsigned_sign,
}
