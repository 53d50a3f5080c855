"""Round to integers within bounds in few instructions, with the same result on all CPUs.

Quantized models do this after each operator. The pattern is minimum(high, maximum(low, round(x) +
zero)), with or without a cast to an integer. Integer bounds can be applied first. The bounded value
is small and is rounded, half to even, by adding 1.5 * 2^23: float32 holds only integers there. On
CPUs with FMA, LLVM would contract that addition with a multiplication before it, and round once
instead of twice; the bounds in between prevent that. A CPU that narrows integers to bytes with
saturation needs no upper bound of 255, and converts to integers in one instruction.

A quantized tensor that is only dequantized, such as one that is added to another, is never a tensor
of bytes: the rounded float32 is taken as it is, without its zero point. Where two convolutions are
added, one of them gets a kernel with the sum. The other one writes bytes, and not float32, which is
four times as much.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.graph.quantization.quantized_arithmetic import BYTES
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import shapes_are_equal
from farm.compiler.ir.relax_rewriter import op_name, rewriter_pass
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.vector_math import ROUNDING_SHIFT, let

_LIMIT = 2**22  # of whole numbers that are found so
_BITS = {"uint8": (0, 255), "int8": (-128, 127)}
_ELEMENTWISE = ("relax.add", "relax.multiply", "relax.astype")
_SUMS = ("relax.nn.conv2d", "relax.matmul")

Expr = Any


@dataclass(frozen=True)
class _Dequantized:
    """(q - zero), as float32, of a tensor q of bytes."""

    quantized: relax.Var
    zero: float


@dataclass(frozen=True)
class _Rounded:
    """round(source) + zero within [low, high]."""

    source: relax.Expr
    low: float
    high: float
    zero: float

    def without(self, zero: float) -> _Rounded:
        """Return the same numbers less a zero point."""
        return _Rounded(self.source, self.low - zero, self.high - zero, self.zero - zero)

    def fits(self, dtype: str) -> bool:
        """Return whether an integer type has all of these numbers."""
        least, most = _BITS[dtype]
        return least <= self.low and self.high <= most


def round_clamp_compute(
    core: CpuModel, low: float, high: float, zero: float, dtype: str, data: te.Tensor
) -> te.Tensor:
    """Return round(x) + zero within integer bounds.

    The result is float32, or an 8-bit integer whose range contains the bounds.
    """
    saturates = core.narrows_with_saturation and dtype == "uint8" and high == _BITS["uint8"][1]

    def value(*at: te.Var) -> Expr:
        at_least = _extremum(core, "maximum", low - zero, data[at])
        if saturates:
            return _saturated(at_least, int(zero))
        within = _extremum(core, "minimum", high - zero, at_least)
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


def _saturated(value: Expr, zero: int) -> Expr:
    """Return a number that is at least -zero, rounded, plus zero, and at most 255.

    The conversion of a number that int32 does not hold is 2^31 as uint32, which is above 255, too.
    """
    whole = tirx.call_llvm_pure_intrin("int32", "llvm.lrint", value)
    bits = tirx.reinterpret("uint32", whole + tirx.const(zero, "int32") if zero else whole)
    return tirx.Cast("uint8", tirx.min(bits, tirx.const(_BITS["uint8"][1], "uint32")))


def _plus_dequantized_compute(
    zero: float, scale: float, data: te.Tensor, quantized: te.Tensor
) -> te.Tensor:
    """Return data + (quantized - zero) * scale; the product is exact, see quantized_arithmetic."""

    def value(*at: te.Var) -> Expr:
        whole = tirx.Cast("float32", quantized[*at])
        if zero:
            whole = whole - tirx.const(zero, "float32")
        return data[*at] + whole * tirx.const(scale, "float32")

    return te.compute(data.shape, value, name="plus_dequantized")


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
        self._uses: Counter[relax.Var] = Counter()
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
            self._uses.update([node.body] if isinstance(node.body, relax.Var) else [])
        elif isinstance(node, Call | relax.Tuple):
            read = node.args if isinstance(node, Call) else node.fields
            self._uses.update(one for one in read if isinstance(one, relax.Var))

    def visit_call_(self, call: Call) -> relax.Expr:
        dtype = str(getattr(call.ty, "dtype", ""))
        if dtype == "float32" and op_name(call) in ("relax.multiply", "relax.add"):
            is_product = op_name(call) == "relax.multiply"
            made = self._product(call) if is_product else self._sum_of_convolutions(call)
            return super().visit_call_(call) if made is None else made
        bounded = (
            self._bound(call.args[0])
            if op_name(call) == "relax.astype" and dtype in BYTES
            else call
        )
        found = self._rounded(bounded) if dtype in ("float32", *BYTES) else None
        if found is None or (dtype in BYTES and not found.fits(dtype)):
            return super().visit_call_(call)
        return self._emitted(found, dtype)

    def _emitted(self, found: _Rounded, dtype: str) -> relax.Expr:
        body = partial(round_clamp_compute, self._core, found.low, found.high, found.zero, dtype)
        return self.builder_.call_te(
            body, self.visit_expr(found.source), primfunc_name_hint="rounded"
        )

    def _product(self, call: Call) -> relax.Expr | None:
        """Return a product of what is quantized and dequantized at once, without the bytes."""
        factors = [self._without_bytes(argument) for argument in call.args]
        if not any(factors):
            return None
        left, right = (
            self.visit_expr(argument)
            if found is None
            else self.builder_.emit(self._emitted(found, "float32"))
            for argument, found in zip(call.args, factors, strict=True)
        )
        return relax.op.multiply(left, right)

    def _sum_of_convolutions(self, call: Call) -> relax.Expr | None:
        """Return the sum of two quantized convolutions; the second one is read as bytes."""
        products = [self._bound(argument) for argument in call.args]
        if any(op_name(product) != "relax.multiply" for product in products):
            return None
        first, second = (self._dequantized(product.args[0]) for product in products)
        scale = constant_value(products[1].args[1])
        if first is None or second is None or scale is None or scale.size != 1:
            return None
        summand, bytes_read = self._quantized_here(first), self._quantized_here(second)
        if summand is None or bytes_read is None or not _have_equal_shapes(*call.args):
            return None
        if not (self._is_of_sums(summand.source) and self._is_of_sums(bytes_read.source)):
            return None
        data = self.visit_expr(call.args[0])
        # TVM fuses the sum with the operand that is bound first
        quantized = self.builder_.emit(self._emitted(bytes_read, str(second.quantized.ty.dtype)))
        body = partial(_plus_dequantized_compute, second.zero, float(np.asarray(scale).item()))
        return self.builder_.call_te(body, data, quantized, primfunc_name_hint="add")

    def _without_bytes(self, expression: relax.Expr) -> _Rounded | None:
        """Return a dequantized tensor as numbers that are rounded; None if its bytes are read."""
        found = self._dequantized(expression)
        rounded = None if found is None else self._quantized_here(found)
        return None if found is None or rounded is None else rounded.without(found.zero)

    def _quantized_here(self, found: _Dequantized) -> _Rounded | None:
        """Return how a tensor is quantized that is dequantized once, and else not read."""
        cast = self._bound(found.quantized)
        if self._uses[found.quantized] != 1 or op_name(cast) != "relax.astype":
            return None
        rounded = self._rounded(self._bound(cast.args[0]))
        return rounded if rounded and rounded.fits(str(found.quantized.ty.dtype)) else None

    def _dequantized(self, expression: relax.Expr) -> _Dequantized | None:
        """Match q - zero, or q, as float32 that nothing else reads."""
        call, zero = self._bound(expression), 0.0
        if self._uses[expression] != 1:
            return None
        if op_name(call) == "relax.subtract":
            subtrahend = constant_value(call.args[1])
            if subtrahend is None or subtrahend.size != 1 or self._uses[call.args[0]] != 1:
                return None
            call, zero = self._bound(call.args[0]), float(np.asarray(subtrahend).item())
        is_float = str(getattr(call.ty, "dtype", "")) == "float32"
        if op_name(call) != "relax.astype" or not is_float or not zero.is_integer():
            return None
        quantized = call.args[0]
        if not isinstance(quantized, relax.Var) or str(quantized.ty.dtype) not in BYTES:
            return None
        return _Dequantized(quantized, zero)

    def _is_of_sums(self, expression: relax.Expr) -> bool:
        """Return whether a tensor is computed element by element from a convolution's sums."""
        call = self._bound(expression)
        while op_name(call) in _ELEMENTWISE and self._uses[expression] == 1:
            expression = call.args[0]
            call = self._bound(expression)
        return op_name(call) in _SUMS and self._uses[expression] == 1

    def _rounded(self, expression: relax.Expr) -> _Rounded | None:
        """Match the pattern."""
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
        return _Rounded(source.args[0], *numbers)

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


def _have_equal_shapes(one: relax.Expr, other: relax.Expr) -> bool:
    shapes = [expression.ty.shape for expression in (one, other)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    return shapes_are_equal(*(list(shape.values) for shape in shapes))
