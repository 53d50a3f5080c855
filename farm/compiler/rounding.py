"""Rounding to whole numbers within bounds, as quantized models do after each operator: few instructions, and the same result on all cores.

The pattern is minimum(high, maximum(low, round(x) + zero)), cast to an integer or not. Bounds that are whole numbers can come first. What
is then small is rounded, half to even, by adding 1.5 * 2^23: whole numbers are all that float32 holds there. LLVM would make one operation
of that addition and a multiplication before it, on cores that have such, and round once instead of twice; the bounds stand in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.core import Core
from farm.compiler.folding import constant, rewriting
from farm.compiler.requantize import BYTES

_MAGIC = 1.5 * 2**23
_LIMIT = 2**22  # of whole numbers that are found so
_BITS = {"uint8": (0, 255), "int8": (-128, 127)}

Expr = Any


def rounded(core: Core, low: float, high: float, zero: float, dtype: str, data: te.Tensor) -> te.Tensor:
    """round(x) + zero within whole bounds, as float32, or as an integer of 8 bits, to which the bounds belong."""

    def value(*at: te.Var) -> Expr:
        within = _extremum(core, "minimum", high - zero, _extremum(core, "maximum", low - zero, data[at]))
        shifted = within + tirx.const(_MAGIC, "float32")
        if dtype == "float32":
            whole = shifted - tirx.const(_MAGIC, "float32")
            return whole + tirx.const(zero, "float32") if zero else whole
        bits = tirx.reinterpret("int32", shifted)  # the last byte of the sum's bits is that of the number
        return tirx.Cast(dtype, bits + tirx.const(int(zero), "int32") if zero else bits)

    return te.compute(data.shape, value, name="rounded")


def _extremum(core: Core, name: str, bound: float, value: Expr) -> Expr:
    limit = tirx.const(bound, "float32")
    if core.has_extrema:
        return tirx.call_llvm_pure_intrin("float32", f"llvm.{name}", value, limit)
    return tirx.max(limit, value) if name == "maximum" else tirx.min(limit, value)


def rounding(core: Core) -> tvm.transform.Pass:
    """A pass that finds the pattern and computes it so."""
    return rewriting("farm.Rounding", partial(_Rounder, core=core))


@mutator
class _Rounder(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, core: Core) -> None:
        super().__init__(module)
        self._core = core
        self._given: dict[relax.Var, relax.Expr] = {}
        relax.analysis.post_order_visit(module["main"], self._note)

    def _note(self, node: Any) -> None:
        if isinstance(node, relax.SeqExpr):
            self._given.update({one.var: one.value for block in node.blocks for one in block.bindings if isinstance(one, relax.VarBinding)})

    def visit_call_(self, call: Call) -> relax.Expr:
        dtype = str(getattr(call.ty, "dtype", ""))
        bounded = self._bound(call.args[0]) if _name(call) == "relax.astype" and dtype in BYTES else call
        found = self._rounded(bounded) if dtype in ("float32", *BYTES) else None
        if found is None or (dtype in BYTES and not _fits(found, dtype)):
            return super().visit_call_(call)
        source, low, high, zero = found
        body = partial(rounded, self._core, low, high, zero, dtype)
        return self.builder_.call_te(body, self.visit_expr(source), primfunc_name_hint="rounded")

    def _rounded(self, expression: relax.Expr) -> tuple[relax.Expr, float, float, float] | None:
        """Of the pattern: what is rounded, the bounds, and the zero point; None where it is not there."""
        upper = self._with_number(expression, "relax.minimum")
        lower = self._with_number(upper[0], "relax.maximum") if upper else None
        if upper is None or lower is None:
            return None
        source, zero = self._with_number(lower[0], "relax.add") or (lower[0], 0.0)
        source = self._bound(source)
        numbers = (lower[1], upper[1], zero)
        if _name(source) != "relax.round" or not all(number.is_integer() and abs(number) < _LIMIT / 2 for number in numbers):
            return None
        return source.args[0], *numbers

    def _with_number(self, expression: relax.Expr, operator: str) -> tuple[relax.Expr, float] | None:
        """The operands of an operator on a tensor and a number."""
        call = self._bound(expression)
        if _name(call) != operator or str(call.ty.dtype) != "float32":
            return None
        for number, other in ((0, 1), (1, 0)):
            value = constant(call.args[number])
            if value is not None and value.size == 1 and str(call.args[other].ty) == str(call.ty):
                return call.args[other], float(np.asarray(value).item())
        return None

    def _bound(self, expression: relax.Expr) -> relax.Expr:
        return self._given.get(expression, expression) if isinstance(expression, relax.Var) else expression


def _fits(found: tuple[relax.Expr, float, float, float], dtype: str) -> bool:
    least, most = _BITS[dtype]
    return least <= found[1] and found[2] <= most


def _name(expression: relax.Expr) -> str:
    return str(getattr(getattr(expression, "op", None), "name", ""))
