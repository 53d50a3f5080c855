"""Read scales and zero points of quantized models, and rewrite their biases and leftovers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.quantization import quantized_arithmetic
from farm.compiler.graph.quantization.quantized_arithmetic import (
    BYTES,
    QuantizationParameters,
    QuantizedTensor,
)
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name

Array = np.ndarray[Any, Any]
QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"


def has_qdq(module: tvm.IRModule) -> bool:
    """Return whether a module contains quantize or dequantize."""
    found: set[str] = set()
    relax.analysis.post_order_visit(module["main"], lambda node: found.add(op_name(node)))
    return not found.isdisjoint((QUANTIZE, DEQUANTIZE))


class QdqRewriterBase(Rewriter):
    """Rewriter of quantized graphs: reads scales and zero points of quantize and dequantize."""

    def numbers(self, call: Call) -> tuple[Array, Array] | None:
        """Return scale and zero point of a quantize or dequantize.

        None if they are not constant.
        """
        scale, zero = self.value(call.args[1]), self.value(call.args[2])
        known = (
            scale is not None
            and zero is not None
            and scale.dtype == np.float32
            and np.isfinite(scale).all()
            and (scale > 0).all()
        )
        return (scale, zero) if known else None  # type: ignore[return-value]

    def scale(self, call: Call, dtype: str) -> QuantizationParameters | None:
        """Return the scale of an 8-bit tensor that has one for all elements; None otherwise."""
        numbers = self.numbers(call)
        if numbers is None or numbers[0].size != 1 or numbers[1].size != 1 or dtype not in BYTES:
            return None
        return QuantizationParameters(
            float(numbers[0].reshape(())), int(numbers[1].reshape(())), dtype
        )

    def quantized(self, expression: relax.Expr) -> QuantizedTensor | None:
        """Return the integers and the scale of a dequantized tensor; None for any other tensor."""
        call = self.called(expression, DEQUANTIZE)
        if call is None or self.value(call.args[0]) is not None or str(call.ty.dtype) != "float32":
            return None
        scale = self.scale(call, str(call.args[0].ty.dtype))
        return None if scale is None else QuantizedTensor(call.args[0], scale)


@mutator
class BiasDequantizer(QdqRewriterBase):
    """Rewrites dequantized constants of rank 0 or 1, which are biases, as float32 constants."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {DEQUANTIZE: self._bias}

    def _bias(self, call: Call) -> relax.Expr | None:
        value, numbers = self.value(call.args[0]), self.numbers(call)
        if value is None or numbers is None or value.ndim > 1 or str(call.ty.dtype) != "float32":
            return None
        scale, zero = numbers
        return relax.const(
            ((value.astype(np.int64) - zero.astype(np.int64)) * scale.astype(np.float64)).astype(
                np.float32
            ),
            "float32",
        )


@mutator
class RemainingQdqLowerer(QdqRewriterBase):
    """Rewrites remaining quantize and dequantize as arithmetic, which TVM's layout pass handles."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {QUANTIZE: self._quantize, DEQUANTIZE: self._dequantize}

    def _quantize(self, call: Call) -> relax.Expr | None:
        to = self.scale(call, str(call.ty.dtype))
        if to is None or str(call.args[0].ty.dtype) != "float32":
            return None
        return quantized_arithmetic.quantize_float32(self.builder_, call.args[0], to)

    def _dequantize(self, call: Call) -> relax.Expr | None:
        numbers = self.numbers(call)
        if numbers is None or str(call.ty.dtype) != "float32":
            return None
        if str(call.args[0].ty.dtype) not in (*BYTES, "int16", "uint16"):
            return None
        rank = int(call.args[0].ty.ndim)
        scale, zero = (
            _along(number.astype(np.float32), int(call.attrs.axis), rank) for number in numbers
        )
        value = self.builder_.emit(relax.op.astype(call.args[0], "float32"))
        if zero.any():
            value = self.builder_.emit(relax.op.subtract(value, relax.const(zero, "float32")))
        return relax.op.multiply(value, relax.const(scale, "float32"))


def _along(value: Array, axis: int, rank: int) -> Array:
    """Reshape a scalar, or a vector along an axis, to broadcast with a tensor of a rank."""
    return (
        value.reshape(())
        if value.size == 1
        else value.reshape([-1 if place == axis % rank else 1 for place in range(rank)])
    )
