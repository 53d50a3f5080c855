"""exp, sigmoid, tanh and erf of float32 as plain arithmetic, of which a whole vector is computed at once: the C library's take one number.

Polynomials: exp and tanh as in Moshier's Cephes library (https://netlib.org/cephes, expf and tanhf); erf by Abramowitz and Stegun,
"Handbook of Mathematical Functions", 7.1.26 (absolute error 1.5e-7), and by its Taylor series where that is the better one. NaN gives NaN,
infinities their limits; exp is 0 where it would be a denormal number, which are slow. Errors are within a few units of the seventh digit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import te, tirx

Expr: TypeAlias = Any  # a tirx.Expr of float32, of which mypy knows nothing
_FLOAT, _INT = "float32", "int32"
_LOWEST, _HIGHEST = -87.3, 89.0  # beyond, exp is 0 and infinity
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH_SMALL = 0.625
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_TAYLOR = (-1 / 1320, 1 / 216, -1 / 42, 1 / 10, -1 / 3)
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
    return _f(1) / (_f(1) + exp(-x))


def tanh(x: Expr) -> Expr:
    def value(x: Expr) -> Expr:
        small = x + x * _let(x * x, lambda square: square * _polynomial(_TANH, square))
        large = _f(1) - _f(2) / (exp(x + x) + _f(1))
        return tirx.Select(tirx.abs(x) < _f(_TANH_SMALL), small, large)

    return _let(x, value)


def erf(x: Expr) -> Expr:
    def value(x: Expr) -> Expr:
        small = _let(x * x, lambda square: x * _f(_TWO_OVER_ROOT_PI) * (_f(1) + square * _polynomial(_ERF_TAYLOR, square)))
        t = _f(1) / (_f(1) + _f(_ERF_SLOPE) * tirx.abs(x))
        size = _f(1) - _let(t, lambda t: t * _polynomial(_ERF, t)) * exp(-x * x)
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
    steps = tirx.Cast(_INT, x * _f(_LOG2_E) + _f(150.5)) - tirx.const(150, _INT)  # to the nearest: the argument of Cast is positive

    def value(n: Expr) -> Expr:
        whole = tirx.Cast(_FLOAT, n)
        rest = x - whole * _f(_LN2_HIGH) - whole * _f(_LN2_LOW)
        mantissa = _let(rest, lambda r: _f(1) + r + r * r * _polynomial(_EXP, r))
        return _let(n >> tirx.const(1, _INT), lambda half: mantissa * _power_of_two(half) * _power_of_two(n - half))

    return _let(steps, value)


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
