"""What rewriters of quantized models share, and those of biases, and of what is left of quantize and dequantize in the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler import requantize
from farm.compiler.folding import constant
from farm.compiler.requantize import BYTES, Quantized, Scale

Array = np.ndarray[Any, Any]
QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"


def is_quantized(module: tvm.IRModule) -> bool:
    """Whether a module quantizes, or reads what was quantized."""
    found: set[str] = set()
    relax.analysis.post_order_visit(module["main"], lambda node: found.add(getattr(getattr(node, "op", None), "name", "")))
    return not found.isdisjoint((QUANTIZE, DEQUANTIZE))


class Rewriter(PyExprMutator):  # type: ignore[misc]
    """What the rewriters share: looking behind variables."""

    def bound(self, expression: relax.Expr) -> relax.Expr:
        """What a variable was bound to; what is none, itself."""
        while isinstance(expression, relax.Var):
            found = self.lookup_binding(expression)
            if found is None:
                break
            expression = found
        return expression

    def called(self, expression: relax.Expr) -> tuple[str, Call | None]:
        """The name of an operator and its call; "" and None for what is no call of one."""
        call = self.bound(expression)
        return (call.op.name, call) if isinstance(call, Call) and hasattr(call.op, "name") else ("", None)

    def value(self, expression: relax.Expr) -> Array | None:
        return constant(self.bound(expression))

    def numbers(self, call: Call) -> tuple[Array, Array] | None:
        """Scale and zero point of a quantize or dequantize, where they are known."""
        scale, zero = self.value(call.args[1]), self.value(call.args[2])
        known = scale is not None and zero is not None and scale.dtype == np.float32 and np.isfinite(scale).all() and (scale > 0).all()
        return (scale, zero) if known else None  # type: ignore[return-value]

    def scale(self, call: Call, dtype: str) -> Scale | None:
        """That of a whole tensor of bytes."""
        numbers = self.numbers(call)
        if numbers is None or numbers[0].size != 1 or numbers[1].size != 1 or dtype not in BYTES:
            return None
        return Scale(float(numbers[0].reshape(())), int(numbers[1].reshape(())), dtype)

    def quantized(self, expression: relax.Expr) -> Quantized | None:
        """What a dequantized tensor was before."""
        name, call = self.called(expression)
        if name != DEQUANTIZE or self.value(call.args[0]) is not None or str(call.ty.dtype) != "float32":  # type: ignore[union-attr]
            return None
        scale = self.scale(call, str(call.args[0].ty.dtype))  # type: ignore[union-attr]
        return None if scale is None else Quantized(call.args[0], scale)  # type: ignore[union-attr]


@mutator
class Biases(Rewriter):
    """Dequantized constants of one axis or none, which are biases and no weights, as float32."""

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != DEQUANTIZE or str(call.ty.dtype) != "float32":
            return call
        value, numbers = self.value(call.args[0]), self.numbers(call)
        if value is None or numbers is None or value.ndim > 1:
            return call
        scale, zero = numbers
        return relax.const(((value.astype(np.int64) - zero.astype(np.int64)) * scale.astype(np.float64)).astype(np.float32), "float32")


@mutator
class Rest(Rewriter):
    """What is left of quantize and dequantize as arithmetic, which TVM's layout pass can take apart from its neighbours."""

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name == QUANTIZE and (to := self.scale(call, str(call.ty.dtype))) is not None and str(call.args[0].ty.dtype) == "float32":
            return requantize.of_real(self.builder_, call.args[0], to)
        if name != DEQUANTIZE or (numbers := self.numbers(call)) is None or str(call.ty.dtype) != "float32":
            return call
        if str(call.args[0].ty.dtype) not in (*BYTES, "int16", "uint16"):
            return call
        rank = int(call.args[0].ty.ndim)
        scale, zero = (_along(number.astype(np.float32), int(call.attrs.axis), rank) for number in numbers)
        value = self.builder_.emit(relax.op.astype(call.args[0], "float32"))
        if zero.any():
            value = self.builder_.emit(relax.op.subtract(value, relax.const(zero, "float32")))
        return relax.op.multiply(value, relax.const(scale, "float32"))


def _along(value: Array, axis: int, rank: int) -> Array:
    """One number, or one for each of an axis, in a shape that goes with a tensor of that rank."""
    return value.reshape(()) if value.size == 1 else value.reshape([-1 if place == axis % rank else 1 for place in range(rank)])
