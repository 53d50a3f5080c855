"""Compute elementary functions of float32 in arithmetic that LLVM vectorizes.

The C library's functions take one number at a time. The reduction of exp is as in Moshier's Cephes
library (https://netlib.org/cephes, expf), and so are the polynomials of sin and cos (sinf). log,
atan, asin and acos are computed as there (logf, atanf, asinf). tanh and erf are rational functions,
found by tools/fit-rational-function, whose coefficients are all positive, so that nothing cancels.
NaN gives NaN, infinities give the limits of a function that has them. exp is 0 where the result
would be denormal, because denormal numbers are slow. Errors are within a few units of the seventh
digit; those of sin and cos are 1.2e-7 at most, those of GELU by tanh 1e-6. sin, atan and asin take
-0 for 0.
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

# log(1 + r) less r - r^2 / 2, divided by r^3, from sqrt(1/2) - 1 to sqrt(2) - 1.
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_ROOT_HALF_BITS = 0x3F3504F3
_LEAST_NORMAL, _DENORMAL_STEPS = 1.17549435e-38, 23  # powers of two, which make a denormal normal
# The arc tangent less x, divided by x^3, to tan(pi / 8).
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_TAN_EIGHTH, _TAN_THREE_EIGHTHS = 0.4142135623730950, 2.414213562373095
# The arc sine less x, divided by x^3, to 1/2.
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_SOFTPLUS_IS_LINEAR = 40.0
_GELU_TANH = (0.7978845608028654, 0.044715)  # sqrt(2 / pi), and the factor of x^3


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


def gelu_tanh(x: Expr, quotient: Quotient) -> Expr:
    """Return GELU's approximation, 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""
    factor, cubic = _GELU_TANH

    def value(x: Expr) -> Expr:
        inner = _f(factor) * (x + _f(cubic) * (x * x * x))
        return _f(0.5) * x * (_f(1) + tanh(inner, quotient))

    return let(x, value)


def log(x: Expr) -> Expr:
    """Return the natural logarithm of x: minus infinity of 0, NaN of less."""

    def of_parts(mantissa: Expr, exponent: Expr) -> Expr:
        def value(r: Expr) -> Expr:
            square = r * r
            small = r * square * polynomial(_LOG, r) + exponent * _f(_LN2_LOW)
            return r + (small - _f(0.5) * square) + exponent * _f(_LN2_HIGH)

        return let(mantissa - _f(1), value)

    def of_normal(normal: Expr, steps: Expr) -> Expr:
        bits = tirx.reinterpret(_INT, normal)
        n = (bits - tirx.const(_ROOT_HALF_BITS, _INT)) >> tirx.const(23, _INT)

        def value(n: Expr) -> Expr:
            mantissa = tirx.reinterpret(_FLOAT, bits - (n << tirx.const(23, _INT)))
            shifted = tirx.reinterpret(_FLOAT, n + tirx.reinterpret(_INT, _f(ROUNDING_SHIFT)))
            exponent = let(shifted, lambda shifted: shifted - _f(ROUNDING_SHIFT) - steps)
            return let(exponent, lambda exponent: of_parts(mantissa, exponent))

        return let(n, value)

    def of(x: Expr) -> Expr:
        is_small = x < _f(_LEAST_NORMAL)
        normal = tirx.Select(is_small, x * _f(2.0**_DENORMAL_STEPS), x)
        steps = tirx.Select(is_small, _f(_DENORMAL_STEPS), _f(0))
        finite = let(normal, lambda normal: let(steps, lambda steps: of_normal(normal, steps)))
        at_ends = tirx.Select(x < _f(float("inf")), finite, x)  # infinity and NaN stay
        below = tirx.Select(x < _f(0), _f(float("nan")), at_ends)
        return tirx.Select(x.equal(_f(0)), _f(float("-inf")), below)

    return let(x, of)


def softplus(x: Expr, beta: float, threshold: float) -> Expr:
    """Return log(1 + e^(beta x)) / beta, or x where beta x is above the threshold.

    The logarithm of 1 + u is that of the rounded sum, times u by what of it the sum has kept.
    """

    def of_power(power: Expr) -> Expr:
        def value(total: Expr) -> Expr:
            kept = let(total - _f(1), lambda kept: tirx.Select(kept > _f(0), power / kept, _f(0)))
            return tirx.Select(total > _f(1), log(total) * kept, power)

        return let(_f(1) + power, value)

    # above it both ends are equal in float32, and the power would become infinite
    linear = min(threshold, _SOFTPLUS_IS_LINEAR)

    def of(scaled: Expr, x: Expr) -> Expr:
        power = exp(tirx.min(_f(linear), scaled))
        soft = let(power, of_power)
        return tirx.Select(scaled > _f(linear), x, soft * _f(1 / beta))

    return let(x, lambda x: let(x * _f(beta), lambda scaled: of(scaled, x)))


def atan(x: Expr) -> Expr:
    """Return the arc tangent of x, from -pi / 2 to pi / 2."""

    def of_size(size: Expr) -> Expr:
        is_large, is_middle = size > _f(_TAN_THREE_EIGHTHS), size > _f(_TAN_EIGHTH)
        dividend = tirx.Select(is_large, _f(-1), tirx.Select(is_middle, size - _f(1), size))
        divisor = tirx.Select(is_large, size, tirx.Select(is_middle, size + _f(1), _f(1)))
        start = tirx.Select(is_large, _f(_HALF_PI), tirx.Select(is_middle, _f(_HALF_PI / 2), _f(0)))

        def value(rest: Expr) -> Expr:
            square = rest * rest
            return start + (rest + rest * square * polynomial(_ATAN, square))

        return let(dividend / divisor, value)

    return let(x, lambda x: _with_sign(x, let(tirx.abs(x), of_size)))


def asin(x: Expr) -> Expr:
    """Return the arc sine of x: NaN beyond -1 and 1."""

    def of_size(size: Expr) -> Expr:
        is_large = size > _f(0.5)
        value = _asin_of_half(size, is_large)
        return let(value, lambda value: tirx.Select(is_large, _f(_HALF_PI) - _f(2) * value, value))

    return let(x, lambda x: _with_sign(x, let(tirx.abs(x), of_size)))


def acos(x: Expr) -> Expr:
    """Return the arc cosine of x: NaN beyond -1 and 1."""

    def of(x: Expr, size: Expr) -> Expr:
        is_large = size > _f(0.5)

        def value(small: Expr) -> Expr:
            near_ends = tirx.Select(x < _f(0), _f(2 * _HALF_PI) - _f(2) * small, _f(2) * small)
            return tirx.Select(is_large, near_ends, _f(_HALF_PI) - _with_sign(x, small))

        return let(_asin_of_half(size, is_large), value)

    return let(x, lambda x: let(tirx.abs(x), lambda size: of(x, size)))


def _asin_of_half(size: Expr, is_large: Expr) -> Expr:
    """Return the arc sine of a number up to 1/2, or of sqrt((1 - size) / 2) for a larger one."""
    half = _f(0.5) * (_f(1) - size)
    square = tirx.Select(is_large, half, size * size)

    def value(square: Expr) -> Expr:
        root = tirx.Select(is_large, tirx.sqrt(square), size)
        return let(root, lambda root: root + root * square * polynomial(_ASIN, square))

    return let(square, value)


def _with_sign(x: Expr, size: Expr) -> Expr:
    """Return `size` with the sign of x."""
    return let(size, lambda size: tirx.Select(x < _f(0), -size, size))


def round_to_even(x: Expr) -> Expr:
    """Return the nearest integer, of two the even one. TVM's own is computed one by one."""
    return tirx.call_llvm_pure_intrin(_FLOAT, "llvm.rint", x)


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
