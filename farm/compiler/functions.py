"""exp, sigmoid, tanh and erf of float32 as plain arithmetic, of which a whole vector is computed at once: the C library's take one number.

The reduction of exp and all of tanh are as in Moshier's Cephes library (https://netlib.org/cephes, expf and tanhf); erf is by Abramowitz
and Stegun, "Handbook of Mathematical Functions", 7.1.26 (absolute error 1.5e-7), and by its Taylor series where that is better. NaN gives
NaN, infinities their limits; exp is 0 where it would be a denormal number, which are slow. Errors are within a few units of the seventh
digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import te, tirx

Expr: TypeAlias = Any  # a tirx.Expr of float32, of which mypy knows nothing
_FLOAT, _INT = "float32", "int32"
_LOWEST, _HIGHEST = -87.3, 89.0  # beyond, exp is 0 and infinity
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_EXP = (0.008312519968, 0.04189015689, 0.1666711465, 0.4999923149)  # after 1 + r: least relative error, 1.1e-7, for |r| <= ln(2) / 2
_RECIPROCAL_SEED = 0x7EF311C7  # less the bits of a number: one over it to 12 %
_SIGMOID_LOWEST = -80.0  # below, sigmoid is 0
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH_SMALL = 0.625
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_TAYLOR = (-1 / 1320, 1 / 216, -1 / 42, 1 / 10, -1 / 3)
_ERF_ONE = 10.0  # from here on, erf is 1
_ERF_SMALL, _ERF_SLOPE, _TWO_OVER_ROOT_PI, _ROOT_HALF = 0.5, 0.3275911, 1.1283791670955126, 0.7071067811865476


def exp(x: Expr) -> Expr:
    """2^n times a polynomial of the rest; 2^n in two factors, so that neither leaves the range of normal numbers."""

    def value(x: Expr) -> Expr:
        within = _let(tirx.max(_f(_LOWEST), tirx.min(_f(_HIGHEST), x)), _exp_within)
        return tirx.Select(x < _f(_LOWEST), _f(0), within)

    return _let(x, value)


def silu(x: Expr) -> Expr:
    return _let(x, lambda x: x * sigmoid(x))


def gelu(x: Expr) -> Expr:
    return _let(x, lambda x: _f(0.5) * x * (_f(1) + erf(x * _f(_ROOT_HALF))))


def sigmoid(x: Expr) -> Expr:
    def value(x: Expr) -> Expr:
        power = _let(tirx.max(_f(_LOWEST), tirx.min(_f(-_SIGMOID_LOWEST), -x)), _exp_normal)
        return tirx.Select(x < _f(_SIGMOID_LOWEST), _f(0), _reciprocal(_f(1) + power))

    return _let(x, value)


def tanh(x: Expr) -> Expr:
    def value(x: Expr) -> Expr:
        small = x + x * _let(x * x, lambda square: square * _polynomial(_TANH, square))
        large = _f(1) - _f(2) / (exp(x + x) + _f(1))
        return tirx.Select(tirx.abs(x) < _f(_TANH_SMALL), small, large)

    return _let(x, value)


def erf(x: Expr) -> Expr:
    def value(x: Expr) -> Expr:
        small = _let(x * x, lambda square: x * _f(_TWO_OVER_ROOT_PI) * (_f(1) + square * _polynomial(_ERF_TAYLOR, square)))
        t = _reciprocal(_f(1) + _f(_ERF_SLOPE) * tirx.min(_f(_ERF_ONE), tirx.abs(x)))
        power = _let(tirx.max(_f(_LOWEST), -x * x), _exp_normal)
        size = _f(1) - _let(t, lambda t: t * _polynomial(_ERF, t)) * power
        large = _let(size, lambda size: tirx.Select(x < _f(0), -size, size))
        return tirx.Select(tirx.abs(x) < _f(_ERF_SMALL), small, large)

    return _let(x, value)


def elementwise(function: Callable[[Expr], Expr]) -> Callable[[te.Tensor], te.Tensor]:
    """A function of numbers as one of tensors."""
    return lambda data: te.compute(data.shape, lambda *at: function(data[at]), name=function.__name__)


def bounded(intrinsic: str, bound: float) -> Callable[[te.Tensor], te.Tensor]:
    """LLVM's "maximum" or "minimum" of each element and a number; NaN stays NaN. One instruction on ARM, where TVM's own take three."""
    name = f"llvm.{intrinsic}"
    return lambda data: te.compute(data.shape, lambda *at: tirx.call_llvm_pure_intrin(_FLOAT, name, data[at], _f(bound)), name=intrinsic)


def _exp_within(x: Expr) -> Expr:
    def value(n: Expr) -> Expr:
        mantissa = _let(_rest(x, n), _mantissa)
        return _let(n >> tirx.const(1, _INT), lambda half: mantissa * _power_of_two(half) * _power_of_two(n - half))

    return _let(_steps(x), value)


def _exp_normal(x: Expr) -> Expr:
    """For x from -87.3 to 88, whose 2^n is a normal number in one factor."""
    return _let(_steps(x), lambda n: _let(_rest(x, n), _mantissa) * _power_of_two(n))


def _steps(x: Expr) -> Expr:
    return tirx.Cast(_INT, x * _f(_LOG2_E) + _f(150.5)) - tirx.const(150, _INT)  # to the nearest: the argument of Cast is positive


def _rest(x: Expr, n: Expr) -> Expr:
    whole = tirx.Cast(_FLOAT, n)
    return x - whole * _f(_LN2_HIGH) - whole * _f(_LN2_LOW)


def _mantissa(r: Expr) -> Expr:
    return _f(1) + r + r * r * _polynomial(_EXP, r)


def _reciprocal(x: Expr) -> Expr:
    """For x from 1 to 1e35, by three of Newton's steps: divisions of vectors are slow, and some cores have none."""

    def value(x: Expr) -> Expr:
        seed = tirx.reinterpret(_FLOAT, tirx.const(_RECIPROCAL_SEED, _INT) - tirx.reinterpret(_INT, x))
        return _newton(x, seed, 3)

    return _let(x, value)


def _newton(x: Expr, inverse: Expr, steps: int) -> Expr:
    return _let(inverse, lambda y: _newton(x, y * (_f(2) - x * y), steps - 1)) if steps else inverse


def _power_of_two(n: Expr) -> Expr:
    return tirx.reinterpret(_FLOAT, (n + tirx.const(127, _INT)) << tirx.const(23, _INT))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Horner's scheme, the highest power first."""
    value = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _f(coefficient)
    return value


def _let(value: Expr, body: Callable[[tirx.Var], Expr]) -> Expr:
    """A name for a value that is used several times: written out, expressions would double with every function around another."""
    variable = tirx.Var("v", str(value.ty.dtype) if hasattr(value, "ty") else str(value.dtype))
    return tirx.Let(variable, value, body(variable))


def _f(value: float) -> Expr:
    return tirx.const(value, _FLOAT)
