"""Compute exp, sigmoid, tanh, erf, sin and cos of float32 in arithmetic that LLVM vectorizes.

The C library's functions take one number at a time. The reduction of exp is as in Moshier's Cephes
library (https://netlib.org/cephes, expf), and so are the polynomials of sin and cos (sinf). tanh
and erf are rational functions, found by tools/fit-rational-function, whose coefficients are all
positive, so that nothing cancels. NaN gives NaN, infinities give the limits of a function that has
them. exp is 0 where the result would be denormal, because denormal numbers are slow. Errors are
within a few units of the seventh digit; those of sin and cos are 1.2e-7 at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import te, tirx

Expr: TypeAlias = Any  # a tirx expression of float32; mypy has no type information for it
Quotient: TypeAlias = Callable[[Expr, Expr], Expr]  # of a dividend and a divisor from 1 to 1e35
_FLOAT, _INT, _DOUBLE = "float32", "int32", "float64"
_LOWEST, _HIGHEST = -87.3, 89.0  # exp is 0 below and infinity above
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
# Coefficients after 1 + r, with the least relative error, 1.1e-7, for |r| <= ln(2) / 2.
_EXP = (0.008312519968, 0.04189015689, 0.1666711465, 0.4999923149)
_RECIPROCAL_SEED = 0x7EF2C000  # minus the bits of x: the bits of 1 / x, to 5.2 %
_RECIPROCAL_STEP = 2.00135  # not 2, as in Newton's: the error is 0.14 % in either direction
_SIGMOID_LOWEST = -80.0  # sigmoid is 0 below
# 1.5 x 2^23: added to a number, it leaves the nearest integer in the lowest bits.
ROUNDING_SHIFT = 12582912.0
# x P(x^2) / Q(x^2), with a relative error of 2e-8 for erf up to 3.92 and for tanh up to 9.02. Above
# that it grows beyond 1 and is clamped; x is clamped at the bounds.
_ERF_NUMERATOR = (
    2.050021068e-6,
    0.0002848564957,
    0.003765000061,
    0.05274677879,
    0.1903937498,
    1.128379146,
)
_ERF_DENOMINATOR = (
    3.808966389e-5,
    0.00116236294,
    0.01496799146,
    0.1141036156,
    0.5020648132,
    1.0,
)
_ERF_BOUND = 4.3
_TANH_NUMERATOR = (
    1.331888326e-8,
    2.058346433e-5,
    0.003494039335,
    0.1337972413,
    0.9999999793,
)
_TANH_DENOMINATOR = (
    7.761976457e-7,
    0.0003283096425,
    0.02587109795,
    0.4671303948,
    1.0,
)
_TANH_BOUND = 10.0
_ROOT_HALF = 0.7071067811865476
_HALF_PI = 1.5707963267948966
# 1.5 x 2^52: what ROUNDING_SHIFT is for float64
_ROUNDING_SHIFT_64 = 6755399441055744.0
# sin x is x + x^3 P(x^2), and cos x is 1 - x^2 / 2 + x^4 P(x^2), for x up to pi / 4 and -pi / 4.
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def exp(x: Expr) -> Expr:
    """Return e^x as 2^n times a polynomial of the remainder.

    2^n is applied in two factors, so that neither leaves the range of normal numbers.
    """

    def value(x: Expr) -> Expr:
        within = let(tirx.max(_f(_LOWEST), tirx.min(_f(_HIGHEST), x)), _exp_within)
        return tirx.Select(x < _f(_LOWEST), _f(0), within)

    return let(x, value)


def exp_of_nonpositive(x: Expr) -> Expr:
    """Return e^x for x up to 0, as in a softmax, in fewer instructions than `exp`."""

    def value(x: Expr) -> Expr:
        within = let(tirx.max(_f(_LOWEST), x), _exp_normal)
        return tirx.Select(x < _f(_LOWEST), _f(0), within)

    return let(x, value)


def divide(dividend: Expr, divisor: Expr) -> Expr:
    """Return dividend / divisor by the CPU's division.

    It is faster than `multiply_by_reciprocal` on x86, which divides beside other arithmetic.
    """
    return dividend / divisor


def multiply_by_reciprocal(dividend: Expr, divisor: Expr) -> Expr:
    """Return dividend / divisor by a step of Newton's and one of Halley's, without a division.

    It is faster than `divide` where vector divisions are slow (64-bit ARM) or do not exist (32-bit
    ARM). The divisor is from 1 to 1e35.
    """

    def reciprocal(x: Expr) -> Expr:
        seed = tirx.reinterpret(
            _FLOAT, tirx.const(_RECIPROCAL_SEED, _INT) - tirx.reinterpret(_INT, x)
        )
        return let(
            let(seed, lambda y: y * (_f(_RECIPROCAL_STEP) - x * y)),
            lambda y: let(_f(1) - x * y, lambda rest: y + y * (rest + rest * rest)),
        )

    return dividend * let(divisor, reciprocal)


def silu(x: Expr, quotient: Quotient) -> Expr:
    """Return x / (1 + e^-x). Below -80 the result is that for -80, which is -1e-33."""

    def value(x: Expr) -> Expr:
        power = let(-tirx.min(_f(-_LOWEST), x), _exp_normal)
        return quotient(x, _f(1) + power)

    return let(tirx.max(_f(_SIGMOID_LOWEST), x), value)


def gelu(x: Expr, quotient: Quotient) -> Expr:
    """Return 0.5 * x * (1 + erf(x / sqrt(2)))."""
    return let(x, lambda x: _f(0.5) * x * (_f(1) + erf(x * _f(_ROOT_HALF), quotient)))


def sigmoid(x: Expr, quotient: Quotient) -> Expr:
    """Return 1 / (1 + e^-x)."""

    def value(x: Expr) -> Expr:
        power = let(tirx.max(_f(_LOWEST), tirx.min(_f(-_SIGMOID_LOWEST), -x)), _exp_normal)
        return tirx.Select(x < _f(_SIGMOID_LOWEST), _f(0), quotient(_f(1), _f(1) + power))

    return let(x, value)


def tanh(x: Expr, quotient: Quotient) -> Expr:
    """Return tanh x."""
    return _clamped_rational(x, _TANH_NUMERATOR, _TANH_DENOMINATOR, _TANH_BOUND, quotient)


def erf(x: Expr, quotient: Quotient) -> Expr:
    """Return the error function of x."""
    return _clamped_rational(x, _ERF_NUMERATOR, _ERF_DENOMINATOR, _ERF_BOUND, quotient)


def sin(x: Expr) -> Expr:
    """Return the sine of x, with the errors of `cos`."""
    return _sine(x, 0)


def cos(x: Expr) -> Expr:
    """Return the cosine of x.

    The remainder by pi / 2 is computed in float64: the error is below 1.2e-7 for x up to 1e9.
    Beyond, where two floats are further apart than a period, the result is any number from -1 to 1.
    """
    return _sine(x, 1)


def elementwise_tensor_function(
    function: Callable[[Expr], Expr], name: str
) -> Callable[[te.Tensor], te.Tensor]:
    """Return the function of tensors, called `name`, that applies `function` to each element."""
    return lambda data: te.compute(data.shape, lambda *at: function(data[at]), name=name)


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


def polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Evaluate a polynomial by Horner's scheme; the highest power's coefficient is first."""
    value = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _f(coefficient)
    return value


def let(value: Expr, body: Callable[[tirx.Var], Expr]) -> Expr:
    """Bind a value that is used several times to a variable.

    Without it, nested functions would double the size of the expression at every level, and TVM
    would simplify x + 1 - 1 to x, which rounds x on purpose.
    """
    variable = tirx.Var("v", str(value.ty.dtype) if hasattr(value, "ty") else str(value.dtype))
    return tirx.Let(variable, value, body(variable))


def _sine(x: Expr, quarters: int) -> Expr:
    """Return the sine of x plus this number of quarters of a period.

    Without integers, which TVM would widen to the type of indices.
    """

    def by_square(rest: Expr, quarter: Expr, square: Expr) -> Expr:
        sine = rest + rest * square * polynomial(_SIN, square)
        cosine = _f(1) - square * _f(0.5) + square * square * polynomial(_COS, square)
        chosen = tirx.Select(tirx.abs(quarter - _f(2)).equal(_f(1)), cosine, sine)
        return let(chosen, lambda value: tirx.Select(quarter > _f(1.5), -value, value))

    def of_remainder(rest: Expr, quarter: Expr) -> Expr:
        return let(rest * rest, lambda square: by_square(rest, quarter, square))

    def of_whole(wide: Expr, whole: Expr) -> Expr:
        rest = (wide - whole * _d(_HALF_PI)).astype(_FLOAT)
        turns = let(whole + _d(quarters), lambda n: n - _d(4) * _nearest(n * _d(0.25) - _d(0.375)))
        return let(
            tirx.max(_f(-1), tirx.min(_f(1), rest)),
            lambda rest: let(turns.astype(_FLOAT), lambda quarter: of_remainder(rest, quarter)),
        )

    def of(wide: Expr) -> Expr:
        return let(_nearest(wide * _d(1 / _HALF_PI)), lambda whole: of_whole(wide, whole))

    return let(x.astype(_DOUBLE), of)


def _nearest(x: Expr) -> Expr:
    """Return the nearest integer of a float64 up to 2^51, as one."""
    return let(x + _d(_ROUNDING_SHIFT_64), lambda shifted: shifted - _d(_ROUNDING_SHIFT_64))


def _exp_within(x: Expr) -> Expr:
    """Return e^x for x from -87.3 to 89."""

    def value(shifted: Expr) -> Expr:
        mantissa = let(_rest(x, shifted), _mantissa)
        n = tirx.reinterpret(_INT, shifted) - tirx.reinterpret(_INT, _f(ROUNDING_SHIFT))
        return let(
            n,
            lambda n: let(
                n >> tirx.const(1, _INT),
                lambda half: mantissa * _power_of_two(half) * _power_of_two(n - half),
            ),
        )

    return let(_shifted_steps(x), value)


def _exp_normal(x: Expr) -> Expr:
    """Return e^x for x from -87.3 to 88, where 2^n is a normal number in one factor.

    n is added to the exponent of e^(x - n ln 2); the bits of ROUNDING_SHIFT are shifted out.
    """

    def value(shifted: Expr) -> Expr:
        power = tirx.reinterpret(_INT, shifted) << tirx.const(23, _INT)
        mantissa = let(_rest(x, shifted), _mantissa)
        return tirx.reinterpret(_FLOAT, tirx.reinterpret(_INT, mantissa) + power)

    return let(_shifted_steps(x), value)


def _shifted_steps(x: Expr) -> Expr:
    """Return n + ROUNDING_SHIFT for n = round(x / ln 2): n is in the lowest bits."""
    return x * _f(_LOG2_E) + _f(ROUNDING_SHIFT)


def _rest(x: Expr, shifted: Expr) -> Expr:
    """Return x - n * ln 2, with ln 2 in two parts for precision."""
    return let(shifted - _f(ROUNDING_SHIFT), lambda n: x - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW))


def _mantissa(r: Expr) -> Expr:
    """Return e^r for |r| <= ln(2) / 2."""
    return _f(1) + r + r * r * polynomial(_EXP, r)


def _power_of_two(n: Expr) -> Expr:
    """Return 2^n as float32 for an int32 n, by its exponent bits."""
    return tirx.reinterpret(_FLOAT, (n + tirx.const(127, _INT)) << tirx.const(23, _INT))


def _clamped_rational(
    x: Expr,
    numerator: Sequence[float],
    denominator: Sequence[float],
    bound: float,
    quotient: Quotient,
) -> Expr:
    """Return x * P(x^2) / Q(x^2) between -1 and 1; P / Q is above 1 at x = `bound`."""

    def rational(x: Expr) -> Expr:
        return let(
            x * x,
            lambda square: quotient(
                x * polynomial(numerator, square), polynomial(denominator, square)
            ),
        )

    within = let(tirx.max(_f(-bound), tirx.min(_f(bound), x)), rational)
    return tirx.max(_f(-1), tirx.min(_f(1), within))


def _f(value: float) -> Expr:
    return tirx.const(value, _FLOAT)


def _d(value: float) -> Expr:
    return tirx.const(value, _DOUBLE)
