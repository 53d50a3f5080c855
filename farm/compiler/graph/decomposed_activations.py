"""Recognise GELU and SiLU where they are written as several operators.

Exporters write 0.5 * x * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, "Gaussian Error Linear
Units") as operators, in several orders, and x * sigmoid(x) as two. As one operator each takes fewer
instructions, and its kernel has a name that says what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule, shape_of

_TOLERANCE = 1e-4  # of the constants: exporters write 1.4142, too
_DEEPEST = 3  # multiplies and divides within one another


@dataclass(frozen=True, slots=True)
class _Product:
    """A product: its constant, and its factors that are no constants."""

    scale: float
    factors: tuple[relax.Expr, ...]


@mutator
class DecomposedActivationRewriter(Rewriter):
    """Rewrites decomposed GELUs and SiLUs of float32 as TVM's operators."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.multiply": self._gelu_or_silu, "relax.divide": self._gelu}

    def _gelu_or_silu(self, call: Call) -> relax.Expr | None:
        silu = self._silu(call)
        return self._gelu(call) if silu is None else silu

    def _silu(self, call: Call) -> relax.Expr | None:
        if str(call.ty.dtype) != "float32":
            return None
        for x, other in (call.args, call.args[::-1]):
            sigmoid = self.called(other, "relax.sigmoid")
            if sigmoid is not None and sigmoid.args[0].same_as(x):
                return relax.op.nn.silu(x)
        return None

    def _gelu(self, call: Call) -> relax.Expr | None:
        if str(call.ty.dtype) != "float32":
            return None
        whole = self._product(call)
        if len(whole.factors) != 2 or not math.isclose(whole.scale, 0.5, rel_tol=_TOLERANCE):
            return None
        for x, other in (whole.factors, whole.factors[::-1]):
            if self._is_one_plus_erf(other, x) and shape_of(x) == shape_of(call):
                return relax.op.nn.gelu(x)
        return None

    def _is_one_plus_erf(self, expression: relax.Expr, x: relax.Expr) -> bool:
        added = self.called(expression, "relax.add")
        if added is None:
            return False
        for one, other in (added.args, added.args[::-1]):
            erf = self.called(other, "relax.erf")
            if erf is not None and self._scalar(one) == 1:
                inner = self._product(erf.args[0])
                return (
                    len(inner.factors) == 1
                    and bool(inner.factors[0].same_as(x))
                    and math.isclose(inner.scale, math.sqrt(0.5), rel_tol=_TOLERANCE)
                )
        return False

    def _product(self, expression: relax.Expr) -> _Product:
        scale, factors = 1.0, []
        for factor in self._factors(expression, _DEEPEST):
            if isinstance(factor, float):
                scale *= factor
            else:
                factors.append(factor)
        return _Product(scale, tuple(factors))

    def _factors(self, expression: relax.Expr, depth: int) -> Iterator[relax.Expr | float]:
        """Yield what an expression is the product of: numbers, and other expressions."""
        if (number := self._scalar(expression)) is not None:
            yield number
            return
        multiplied, divided = (
            self.called(expression, f"relax.{name}") for name in ("multiply", "divide")
        )
        if depth and multiplied is not None:
            for operand in multiplied.args:
                yield from self._factors(operand, depth - 1)
        elif depth and divided is not None and (divisor := self._scalar(divided.args[1])):
            yield from self._factors(divided.args[0], depth - 1)
            yield 1 / divisor
        else:
            yield expression

    def _scalar(self, expression: relax.Expr) -> float | None:
        """Return the value of a constant of one element; None for any other expression."""
        value = self.value(expression)
        return None if value is None or value.size != 1 else float(value.item())
