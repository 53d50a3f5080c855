"""The arithmetic between integers of one scale and those of another, the same to the bit on every machine.

A quantized tensor q stands for (q - zero) * scale; see "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (Jacob et al., CVPR 2018). Rounding is half to even, as ONNX's QuantizeLinear has it.

Compilers may contract a product and a sum after it into one instruction of one rounding, and do so where the machine has it. So that this
changes no bit, a product is either rounded to a whole number next, or exact: a factor of FACTOR_BITS bits times a number of 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

Array = np.ndarray[Any, Any]
BYTES = ("uint8", "int8")
MOST_PRODUCTS = 1 << 16  # of an unsigned and a signed byte, whose sum is sure to be an int32
FACTOR_BITS = 15  # with the 9 of q - zero, all 24 of a float32
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Scale:
    """What a quantized tensor stands for: of one scale and zero point, and its type, uint8 or int8."""

    scale: float
    zero: int
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        of_type = np.iinfo(self.dtype)
        return int(of_type.min), int(of_type.max)

    def bounds(self, low: float, high: float) -> tuple[int, int]:
        """The integers between which a tensor is that was cut off at these numbers."""
        first, last = self.limits
        return tuple(  # type: ignore[return-value]
            int(np.clip(np.rint(bound / self.scale) + self.zero, first, last)) if np.isfinite(bound) else limit
            for bound, limit in ((low, first), (high, last))
        )


@dataclass(frozen=True)
class Quantized:
    """A tensor of integers and what it stands for."""

    value: relax.Expr
    scale: Scale


@dataclass(frozen=True)
class Sums:
    """Sums of int32 that stand for (value + offset) * factor; offset (int32) has one axis that is not 1, factor (float64) that or none."""

    value: relax.Expr
    offset: Array
    factor: Array

    def plus(self, summand: Array) -> Sums | None:
        """With a constant added, as a whole number of steps: off by half a step, of which there are thousands in a step of the result.

        None where it is too large for that.
        """
        steps = np.rint(summand / self.factor) + self.offset
        return Sums(self.value, steps.astype(np.int32), self.factor) if (np.abs(steps) < _LARGEST / 2).all() else None


def real(builder: relax.BlockBuilder, sums: Sums) -> relax.Expr:
    """The numbers that sums stand for, float32."""
    return relax.op.multiply(_whole(builder, sums), _floats(sums.factor))


def of_sums(builder: relax.BlockBuilder, sums: Sums, to: Scale, low: float, high: float) -> relax.Expr:
    """Sums as integers of another scale, cut off at two numbers."""
    steps = builder.emit(relax.op.multiply(_whole(builder, sums), _floats(sums.factor / to.scale)))
    return rounded(builder, steps, to, low, high)


def of_terms(builder: relax.BlockBuilder, terms: Sequence[tuple[Quantized, float]], to: Scale, low: float, high: float) -> relax.Expr:
    """The sum of one or two quantized tensors, each times a sign, as integers of another scale."""
    products = [
        builder.emit(relax.op.multiply(steps(builder, one), relax.const(short(sign * one.scale.scale / to.scale), "float32")))
        for one, sign in terms
    ]
    total = products[0] if len(products) == 1 else builder.emit(relax.op.add(*products))
    return rounded(builder, total, to, low, high)


def of_product(builder: relax.BlockBuilder, left: Quantized, right: Quantized, to: Scale, low: float, high: float) -> relax.Expr:
    """The product of two quantized tensors, element by element: exact but for the last factor."""
    product = builder.emit(relax.op.multiply(steps(builder, left), steps(builder, right)))
    return scaled(builder, product, left.scale.scale * right.scale.scale, to, low, high)


def scaled(builder: relax.BlockBuilder, whole: relax.Expr, factor: float, to: Scale, low: float, high: float) -> relax.Expr:
    """Numbers times a factor as integers of a scale."""
    return rounded(builder, builder.emit(relax.op.multiply(whole, relax.const(factor / to.scale, "float32"))), to, low, high)


def rounded(builder: relax.BlockBuilder, steps: relax.Expr, to: Scale, low: float, high: float) -> relax.Expr:
    """Numbers of steps as integers of that scale."""
    first, last = (relax.const(float(bound), "float32") for bound in to.bounds(low, high))
    value = _with_zero(builder, builder.emit(relax.op.round(steps)), to)
    value = builder.emit(relax.op.maximum(first, value))
    return relax.op.astype(builder.emit(relax.op.minimum(last, value)), to.dtype)


def of_real(builder: relax.BlockBuilder, value: relax.Expr, to: Scale) -> relax.Expr:
    """Any float32 numbers as integers. What becomes of NaN is not said: there is no integer for it."""
    return rounded(builder, builder.emit(relax.op.divide(value, relax.const(to.scale, "float32"))), to, -np.inf, np.inf)


def steps(builder: relax.BlockBuilder, quantized: Quantized) -> relax.Expr:
    """q - zero as float32, exact."""
    value = builder.emit(relax.op.astype(quantized.value, "float32"))
    zero = quantized.scale.zero
    return builder.emit(relax.op.subtract(value, relax.const(float(zero), "float32"))) if zero else value


def short(factor: float) -> float:
    """A number rounded to FACTOR_BITS bits."""
    mantissa, exponent = np.frexp(factor)
    return float(np.ldexp(np.rint(np.ldexp(mantissa, FACTOR_BITS)), exponent - FACTOR_BITS))


def _whole(builder: relax.BlockBuilder, sums: Sums) -> relax.Expr:
    value = sums.value
    if sums.offset.any():
        value = builder.emit(relax.op.add(value, relax.const(sums.offset, "int32")))
    return builder.emit(relax.op.astype(value, "float32"))


def _with_zero(builder: relax.BlockBuilder, value: relax.Expr, to: Scale) -> relax.Expr:
    return builder.emit(relax.op.add(value, relax.const(float(to.zero), "float32"))) if to.zero else value


def _floats(factor: Array) -> relax.Expr:
    return relax.const(np.asarray(factor, np.float32), "float32")
