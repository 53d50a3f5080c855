"""Multiply by the reciprocal of a constant instead of dividing by it, where rounding is no matter.

Vectors are divided slowly, and on 32-bit ARM number by number. The product may differ from the
quotient in its last bit, which would matter to numbers that are exact: an index, a count, or what
is rounded to a step of quantization. So the dividend has to come from a convolution, a product of
matrices, a norm, a mean or a function, through operators on its elements only.

A division by zero is the product with infinity, to the bit. TVM compiles no division by a zero that
it knows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import ELEMENTWISE, Rewriter, Rule, op_name

_ROUNDED = frozenset(
    f"relax.{name}"
    for name in (
        *("matmul", "mean", "variance", "exp", "rsqrt", "erf", "tanh", "sigmoid"),
        *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.batch_norm", "nn.layer_norm"),
        *("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
        *("nn.avg_pool2d", "nn.adaptive_avg_pool2d", "nn.softmax", "nn.gelu", "nn.silu"),
    )
)
_EXACT = frozenset(("relax.round", "relax.floor", "relax.ceil"))
_VIEWS = frozenset(("relax.reshape", "relax.permute_dims", "relax.squeeze", "relax.expand_dims"))
_CARRY_ROUNDING = ELEMENTWISE - _EXACT | _VIEWS
_DEEPEST = 8  # operators between a division and what rounds
_LEAST, _LARGEST = 1e-30, 1e30  # divisors whose reciprocals are normal numbers


@mutator
class ConstantDivisorRewriter(Rewriter):
    """Rewrites divisions of rounded float32 numbers by constants as multiplications."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.divide": self._multiplied}

    def _multiplied(self, call: Call) -> relax.Expr | None:
        divisor = self.value(call.args[1])
        dtype = str(call.ty.dtype)
        if divisor is None or not dtype.startswith("float"):
            return None
        if divisor.ndim == 0 and divisor == 0:
            infinity = np.copysign(np.inf, divisor).astype(divisor.dtype)
            return relax.op.multiply(call.args[0], relax.const(infinity, dtype))
        if dtype != "float32":
            return None
        size = np.abs(divisor)
        if not (np.all(size >= _LEAST) and np.all(size <= _LARGEST)):
            return None
        if not self._is_rounded(call.args[0], _DEEPEST):
            return None
        reciprocal = (1 / divisor.astype(np.float64)).astype(np.float32)
        return relax.op.multiply(call.args[0], relax.const(reciprocal, "float32"))

    def _is_rounded(self, expression: relax.Expr, depth: int) -> bool:
        bound = self.bound(expression)
        if isinstance(bound, relax.TupleGetItem):  # of a batch norm
            bound = self.bound(bound.tuple_value)
        if op_name(bound) in _ROUNDED:
            return True
        return (
            depth > 0
            and op_name(bound) in _CARRY_ROUNDING
            and any(self._is_rounded(argument, depth - 1) for argument in bound.args)
        )
