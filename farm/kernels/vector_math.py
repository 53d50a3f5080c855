"""Compute exp, sigmoid, tanh and erf of float32 in arithmetic that LLVM vectorizes.

The C library's functions take one number at a time. The reduction of exp and all of tanh are as in
Moshier's Cephes library (https://netlib.org/cephes, expf and tanhf). erf is by Abramowitz and
Stegun, "Handbook of Mathematical Functions", 7.1.26 (absolute error 1.5e-7), and by its Taylor
series where that is more precise. NaN gives NaN, infinities give the limits. exp is 0 where the
result would be denormal, because denormal numbers are slow. Errors are within a few units of the
seventh digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import te, tirx

Expr: TypeAlias = Any  # a tirx expression of float32; mypy has no type information for it
_FLOAT, _INT = "float32", "int32"
_LOWEST, _HIGHEST = -87.3, 89.0  # exp is 0 below and infinity above
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
# Coefficients after 1 + r, with the least relative error, 1.1e-7, for |r| <= ln(2) / 2.
_EXP = (0.008312519968, 0.04189015689, 0.1666711465, 0.4999923149)
_RECIPROCAL_SEED = 0x7EF311C7  # minus the bits of x: the bits of 1 / x, to 12 %
_SIGMOID_LOWEST = -80.0  # sigmoid is 0 below
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
_TANH_SMALL = 0.625
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_TAYLOR = (-1 / 1320, 1 / 216, -1 / 42, 1 / 10, -1 / 3)
_ERF_ONE = 10.0  # erf is 1 from here on
_ERF_SMALL, _ERF_SLOPE, _TWO_OVER_ROOT_PI, _ROOT_HALF = (
    0.5,
    0.3275911,
    1.1283791670955126,
    0.7071067811865476,
)


def exp(x: Expr) -> Expr:
    """Return e^x as 2^n times a polynomial of the remainder.

    2^n is applied in two factors, so that neither leaves the range of normal numbers.
    """

    def value(x: Expr) -> Expr:
        within = _let(tirx.max(_f(_LOWEST), tirx.min(_f(_HIGHEST), x)), _exp_within)
        return tirx.Select(x < _f(_LOWEST), _f(0), within)

    return _let(x, value)


def silu(x: Expr) -> Expr:
    """Return x * sigmoid(x)."""
    return _let(x, lambda x: x * sigmoid(x))


def gelu(x: Expr) -> Expr:
    """Return 0.5 * x * (1 + erf(x / sqrt(2)))."""
    return _let(x, lambda x: _f(0.5) * x * (_f(1) + erf(x * _f(_ROOT_HALF))))


def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + e^-x)."""

    def value(x: Expr) -> Expr:
        power = _let(tirx.max(_f(_LOWEST), tirx.min(_f(-_SIGMOID_LOWEST), -x)), _exp_normal)
        return tirx.Select(x < _f(_SIGMOID_LOWEST), _f(0), _reciprocal(_f(1) + power))

    return _let(x, value)


def tanh(x: Expr) -> Expr:
    """Return tanh x: a polynomial below 0.625, 1 - 2 / (e^2x + 1) above."""

    def value(x: Expr) -> Expr:
        small = x + x * _let(x * x, lambda square: square * _polynomial(_TANH, square))
        large = _f(1) - _f(2) / (exp(x + x) + _f(1))
        return tirx.Select(tirx.abs(x) < _f(_TANH_SMALL), small, large)

    return _let(x, value)


def erf(x: Expr) -> Expr:
    """Return the error function of x: its Taylor series below 0.5, formula 7.1.26 above."""

    def value(x: Expr) -> Expr:
        small = _let(
            x * x,
            lambda square: (
                x * _f(_TWO_OVER_ROOT_PI) * (_f(1) + square * _polynomial(_ERF_TAYLOR, square))
            ),
        )
        t = _reciprocal(_f(1) + _f(_ERF_SLOPE) * tirx.min(_f(_ERF_ONE), tirx.abs(x)))
        power = _let(tirx.max(_f(_LOWEST), -x * x), _exp_normal)
        size = _f(1) - _let(t, lambda t: t * _polynomial(_ERF, t)) * power
        large = _let(size, lambda size: tirx.Select(x < _f(0), -size, size))
        return tirx.Select(tirx.abs(x) < _f(_ERF_SMALL), small, large)

    return _let(x, value)


def elementwise_tensor_function(
    function: Callable[[Expr], Expr],
) -> Callable[[te.Tensor], te.Tensor]:
    """Return the function of tensors that applies `function` to each element."""
    return lambda data: te.compute(
        data.shape, lambda *at: function(data[at]), name=function.__name__
    )


def one_sided_clamp_compute(intrinsic: str, bound: float) -> Callable[[te.Tensor], te.Tensor]:
    """Return a function of tensors that applies LLVM's "maximum" or "minimum" with `bound`.

    NaN stays NaN. On ARM this is one instruction, where TVM's own functions take three.
    """
    name = f"llvm.{intrinsic}"
    return lambda data: te.compute(
        data.shape,
        lambda *at: tirx.call_llvm_pure_intrin(_FLOAT, name, data[at], _f(bound)),
        name=intrinsic,
    )


def _exp_within(x: Expr) -> Expr:
    """Return e^x for x from -87.3 to 89."""

    def value(n: Expr) -> Expr:
        mantissa = _let(_rest(x, n), _mantissa)
        return _let(
            n >> tirx.const(1, _INT),
            lambda half: mantissa * _power_of_two(half) * _power_of_two(n - half),
        )

    return _let(_steps(x), value)


def _exp_normal(x: Expr) -> Expr:
    """Return e^x for x from -87.3 to 88, where 2^n is a normal number in one factor."""
    return _let(_steps(x), lambda n: _let(_rest(x, n), _mantissa) * _power_of_two(n))


def _steps(x: Expr) -> Expr:
    """Return n = round(x / ln 2) as int32."""
    # Rounds to the nearest: the argument of Cast is positive.
    return tirx.Cast(_INT, x * _f(_LOG2_E) + _f(150.5)) - tirx.const(150, _INT)


def _rest(x: Expr, n: Expr) -> Expr:
    """Return x - n * ln 2, with ln 2 in two parts for precision."""
    whole = tirx.Cast(_FLOAT, n)
    return x - whole * _f(_LN2_HIGH) - whole * _f(_LN2_LOW)


def _mantissa(r: Expr) -> Expr:
    """Return e^r for |r| <= ln(2) / 2."""
    return _f(1) + r + r * r * _polynomial(_EXP, r)


def _reciprocal(x: Expr) -> Expr:
    """Return 1 / x for x from 1 to 1e35, by three Newton steps.

    Vector divisions are slow, and some cores have none.
    """

    def value(x: Expr) -> Expr:
        seed = tirx.reinterpret(
            _FLOAT, tirx.const(_RECIPROCAL_SEED, _INT) - tirx.reinterpret(_INT, x)
        )
        return _newton(x, seed, 3)

    return _let(x, value)


def _newton(x: Expr, inverse: Expr, steps: int) -> Expr:
    """Return the approximation `inverse` of 1 / x after the given number of Newton steps."""
    return _let(inverse, lambda y: _newton(x, y * (_f(2) - x * y), steps - 1)) if steps else inverse


def _power_of_two(n: Expr) -> Expr:
    """Return 2^n as float32 for an int32 n, by its exponent bits."""
    return tirx.reinterpret(_FLOAT, (n + tirx.const(127, _INT)) << tirx.const(23, _INT))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Evaluate a polynomial by Horner's scheme; the highest power's coefficient is first."""
    value = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _f(coefficient)
    return value


def _let(value: Expr, body: Callable[[tirx.Var], Expr]) -> Expr:
    """Bind a value that is used several times to a variable.

    Without it, nested functions would double the size of the expression at every level.
    """
    variable = tirx.Var("v", str(value.ty.dtype) if hasattr(value, "ty") else str(value.dtype))
    return tirx.Let(variable, value, body(variable))


def _f(value: float) -> Expr:
    return tirx.const(value, _FLOAT)
