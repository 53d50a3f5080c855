"""Round to integers within bounds in few instructions, with the same result on all CPUs.

Quantized models do this after each operator. The pattern is minimum(high, maximum(low, round(x) +
zero)), with or without a cast to an integer. Integer bounds can be applied first. The bounded value
is small and is rounded, half to even, by adding 1.5 * 2^23: float32 holds only integers there. On
CPUs with FMA, LLVM would contract that addition with a multiplication before it, and round once
instead of twice; the bounds in between prevent that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.graph.quantization.quantized_arithmetic import BYTES
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.relax_rewriter import op_name, rewriter_pass
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.vector_math import ROUNDING_SHIFT, let

_LIMIT = 2**22  # of whole numbers that are found so
_BITS = {"uint8": (0, 255), "int8": (-128, 127)}

Expr = Any


def round_clamp_compute(
    core: CpuModel, low: float, high: float, zero: float, dtype: str, data: te.Tensor
) -> te.Tensor:
    """Return round(x) + zero within integer bounds.

    The result is float32, or an 8-bit integer whose range contains the bounds.
    """

    def value(*at: te.Var) -> Expr:
        within = _extremum(
            core, "minimum", high - zero, _extremum(core, "maximum", low - zero, data[at])
        )
        shift = tirx.const(ROUNDING_SHIFT, "float32")
        shifted = within + shift
        if dtype == "float32":
            whole = let(shifted, lambda shifted: shifted - shift)
            return whole + tirx.const(zero, "float32") if zero else whole
        bits = tirx.reinterpret(
            "int32", shifted
        )  # the last byte of the sum's bits is that of the number
        return tirx.Cast(dtype, bits + tirx.const(int(zero), "int32") if zero else bits)

    return te.compute(data.shape, value, name="rounded")


def _extremum(core: CpuModel, name: str, bound: float, value: Expr) -> Expr:
    limit = tirx.const(bound, "float32")
    if core.has_nan_propagating_minmax:
        return tirx.call_llvm_pure_intrin("float32", f"llvm.{name}", value, limit)
    return tirx.max(limit, value) if name == "maximum" else tirx.min(limit, value)


def round_clamp_pass(core: CpuModel) -> tvm.transform.Pass:
    """Return a pass that rewrites the pattern."""
    return rewriter_pass("farm.Rounding", partial(_Rounder, core=core))


@mutator
class _Rounder(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, core: CpuModel) -> None:
        super().__init__(module)
        self._core = core
        self._given: dict[relax.Var, relax.Expr] = {}
        relax.analysis.post_order_visit(module["main"], self._note)

    def _note(self, node: Any) -> None:
        if isinstance(node, relax.SeqExpr):
            self._given.update(
                {
                    one.var: one.value
                    for block in node.blocks
                    for one in block.bindings
                    if isinstance(one, relax.VarBinding)
                }
            )

    def visit_call_(self, call: Call) -> relax.Expr:
        dtype = str(getattr(call.ty, "dtype", ""))
        bounded = (
            self._bound(call.args[0])
            if op_name(call) == "relax.astype" and dtype in BYTES
            else call
        )
        found = self._rounded(bounded) if dtype in ("float32", *BYTES) else None
        if found is None or (dtype in BYTES and not _fits(found, dtype)):
            return super().visit_call_(call)
        source, low, high, zero = found
        body = partial(round_clamp_compute, self._core, low, high, zero, dtype)
        return self.builder_.call_te(body, self.visit_expr(source), primfunc_name_hint="rounded")

    def _rounded(self, expression: relax.Expr) -> tuple[relax.Expr, float, float, float] | None:
        """Match the pattern: return the rounded value, the bounds and the zero point, or None."""
        upper = self._with_number(expression, "relax.minimum")
        lower = self._with_number(upper[0], "relax.maximum") if upper else None
        if upper is None or lower is None:
            return None
        source, zero = self._with_number(lower[0], "relax.add") or (lower[0], 0.0)
        source = self._bound(source)
        numbers = (lower[1], upper[1], zero)
        if op_name(source) != "relax.round" or not all(
            number.is_integer() and abs(number) < _LIMIT / 2 for number in numbers
        ):
            return None
        return source.args[0], *numbers

    def _with_number(
        self, expression: relax.Expr, operator: str
    ) -> tuple[relax.Expr, float] | None:
        """Match an operator on a tensor and a number: return both, or None."""
        call = self._bound(expression)
        if op_name(call) != operator or str(call.ty.dtype) != "float32":
            return None
        for number, other in ((0, 1), (1, 0)):
            value = constant_value(call.args[number])
            if value is not None and value.size == 1 and str(call.args[other].ty) == str(call.ty):
                return call.args[other], float(np.asarray(value).item())
        return None

    def _bound(self, expression: relax.Expr) -> relax.Expr:
        return (
            self._given.get(expression, expression)
            if isinstance(expression, relax.Var)
            else expression
        )


def _fits(found: tuple[relax.Expr, float, float, float], dtype: str) -> bool:
    least, most = _BITS[dtype]
    return least <= found[1] and found[2] <= most
