"""Rescale integers from one quantization to another, with the same bits on every machine.

A quantized tensor q represents (q - zero) * scale; see "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference" (Jacob et al., CVPR 2018). Rounding is
half to even, as in ONNX's QuantizeLinear.

Compilers may contract a product and the following sum into one fused instruction with a single
rounding, and do so if the CPU has one. To get the same bits anyway, a product is either rounded to
an integer next, or exact: a factor of FACTOR_BITS bits times a number of 9 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

Array = np.ndarray[Any, Any]
BYTES = ("uint8", "int8")
MOST_PRODUCTS = 1 << 16  # of an unsigned and a signed byte: their sum always fits into an int32
FACTOR_BITS = 15  # with the 9 bits of q - zero, the 24 bits of a float32
_LARGEST = 1 << 31


@dataclass(frozen=True)
class QuantizationParameters:
    """The quantization of a tensor: one scale, one zero point, and a type, uint8 or int8."""

    scale: float
    zero: int
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        """Return the least and the greatest integer of the type."""
        of_type = np.iinfo(self.dtype)
        return int(of_type.min), int(of_type.max)

    def bounds(self, low: float, high: float) -> tuple[int, int]:
        """Return the integers that bound a tensor which was clamped to [low, high]."""
        first, last = self.limits
        return tuple(  # type: ignore[return-value]
            int(np.clip(np.rint(bound / self.scale) + self.zero, first, last))
            if np.isfinite(bound)
            else limit
            for bound, limit in ((low, first), (high, last))
        )


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of integers and its quantization."""

    value: relax.Expr
    scale: QuantizationParameters


@dataclass(frozen=True)
class ScaledAccumulators:
    """Sums of int32 that represent (value + offset) * factor.

    One axis of `offset` (int32) is longer than 1; of `factor` (float64), the same one or none.
    """

    value: relax.Expr
    offset: Array
    factor: Array

    def plus(self, summand: Array) -> ScaledAccumulators | None:
        """Add a constant, rounded to a whole number of steps.

        Return None if it is too large for that.

        The error is at most half a step; a step of the result has thousands of these steps.
        """
        steps = np.rint(summand / self.factor) + self.offset
        return (
            ScaledAccumulators(self.value, steps.astype(np.int32), self.factor)
            if (np.abs(steps) < _LARGEST / 2).all()
            else None
        )


def dequantize_accumulators(builder: relax.BlockBuilder, sums: ScaledAccumulators) -> relax.Expr:
    """Return the numbers that sums represent, as float32."""
    return relax.op.multiply(_whole(builder, sums), _floats(sums.factor))


def requantize_accumulators(
    builder: relax.BlockBuilder,
    sums: ScaledAccumulators,
    to: QuantizationParameters,
    low: float,
    high: float,
) -> relax.Expr:
    """Return sums as integers of another scale, clamped to [low, high]."""
    steps = builder.emit(relax.op.multiply(_whole(builder, sums), _floats(sums.factor / to.scale)))
    return round_and_clamp(builder, steps, to, low, high)


def add_and_requantize(
    builder: relax.BlockBuilder,
    terms: Sequence[tuple[QuantizedTensor, float]],
    to: QuantizationParameters,
    low: float,
    high: float,
) -> relax.Expr:
    """Return the signed sum of one or two quantized tensors as integers of another scale."""
    products = [
        builder.emit(
            relax.op.multiply(
                subtract_zero_point(builder, one),
                relax.const(round_mantissa(sign * one.scale.scale / to.scale), "float32"),
            )
        )
        for one, sign in terms
    ]
    total = products[0] if len(products) == 1 else builder.emit(relax.op.add(*products))
    return round_and_clamp(builder, total, to, low, high)


def multiply_and_requantize(
    builder: relax.BlockBuilder,
    left: QuantizedTensor,
    right: QuantizedTensor,
    to: QuantizationParameters,
    low: float,
    high: float,
) -> relax.Expr:
    """Multiply two quantized tensors elementwise. Only the last factor rounds."""
    product = builder.emit(
        relax.op.multiply(subtract_zero_point(builder, left), subtract_zero_point(builder, right))
    )
    return scale_and_requantize(
        builder, product, left.scale.scale * right.scale.scale, to, low, high
    )


def scale_and_requantize(
    builder: relax.BlockBuilder,
    whole: relax.Expr,
    factor: float,
    to: QuantizationParameters,
    low: float,
    high: float,
) -> relax.Expr:
    """Return numbers times a factor as integers of a scale, clamped to [low, high]."""
    return round_and_clamp(
        builder,
        builder.emit(relax.op.multiply(whole, relax.const(factor / to.scale, "float32"))),
        to,
        low,
        high,
    )


def round_and_clamp(
    builder: relax.BlockBuilder,
    steps: relax.Expr,
    to: QuantizationParameters,
    low: float,
    high: float,
) -> relax.Expr:
    """Round numbers, in steps of a scale, to integers of that scale, clamped to [low, high]."""
    first, last = (relax.const(float(bound), "float32") for bound in to.bounds(low, high))
    value = _with_zero(builder, builder.emit(relax.op.round(steps)), to)
    value = builder.emit(relax.op.maximum(first, value))
    return relax.op.astype(builder.emit(relax.op.minimum(last, value)), to.dtype)


def quantize_float32(
    builder: relax.BlockBuilder, value: relax.Expr, to: QuantizationParameters
) -> relax.Expr:
    """Quantize float32 numbers.

    The result for NaN is undefined, because no integer represents it.
    """
    return round_and_clamp(
        builder,
        builder.emit(relax.op.divide(value, relax.const(to.scale, "float32"))),
        to,
        -np.inf,
        np.inf,
    )


def subtract_zero_point(builder: relax.BlockBuilder, quantized: QuantizedTensor) -> relax.Expr:
    """Return q - zero as float32, which is exact."""
    value = builder.emit(relax.op.astype(quantized.value, "float32"))
    zero = quantized.scale.zero
    return (
        builder.emit(relax.op.subtract(value, relax.const(float(zero), "float32")))
        if zero
        else value
    )


def round_mantissa(factor: float) -> float:
    """Round a number to FACTOR_BITS bits of mantissa."""
    mantissa, exponent = np.frexp(factor)
    return float(np.ldexp(np.rint(np.ldexp(mantissa, FACTOR_BITS)), exponent - FACTOR_BITS))


def _whole(builder: relax.BlockBuilder, sums: ScaledAccumulators) -> relax.Expr:
    value = sums.value
    if sums.offset.any():
        value = builder.emit(relax.op.add(value, relax.const(sums.offset, "int32")))
    return builder.emit(relax.op.astype(value, "float32"))


def _with_zero(
    builder: relax.BlockBuilder, value: relax.Expr, to: QuantizationParameters
) -> relax.Expr:
    return (
        builder.emit(relax.op.add(value, relax.const(float(to.zero), "float32")))
        if to.zero
        else value
    )


def _floats(factor: Array) -> relax.Expr:
    return relax.const(np.asarray(factor, np.float32), "float32")
