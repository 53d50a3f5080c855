"""Converters of ONNX operators that TVM 0.27 has wrong, or has no code for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter


class IsInf(OnnxOpConverter):  # type: ignore[misc]
    """TVM's ignores which infinities count."""

    @classmethod
    def _impl_v10(cls, _builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any) -> relax.Expr:
        data, zero = inputs[0], relax.const(0, str(inputs[0].ty.dtype))
        positive, negative = (attributes.get(f"detect_{sign}", 1) for sign in ("positive", "negative"))
        infinite = relax.op.isinf(data)
        if positive and negative:
            return infinite
        side = relax.op.greater(data, zero) if positive else relax.op.less(data, zero)
        return relax.op.logical_and(infinite, side) if positive or negative else relax.op.logical_and(infinite, relax.const(False, "bool"))


class _Hyperbolic(OnnxOpConverter):  # type: ignore[misc]
    """TVM has the operator, and no code for it."""

    sign = 1.0

    @classmethod
    def _impl_v9(cls, _builder: relax.BlockBuilder, inputs: Sequence[Any], _: dict[str, Any], __: Any) -> relax.Expr:
        dtype = str(inputs[0].ty.dtype)
        grows, falls = relax.op.exp(inputs[0]), relax.op.exp(relax.op.negative(inputs[0]))
        half, sign = relax.const(0.5, dtype), relax.const(cls.sign, dtype)
        return relax.op.multiply(half, relax.op.add(grows, relax.op.multiply(sign, falls)))


class Cosh(_Hyperbolic):
    pass


class Sinh(_Hyperbolic):
    sign = -1.0


CONVERTERS = {"IsInf": IsInf, "Cosh": Cosh, "Sinh": Sinh}
