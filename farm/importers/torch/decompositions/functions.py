"""Mathematical functions of each element.

Numbers of float16 and integers are computed in float32, as torch does on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

# A Chebyshev series for log(exp(x^2) erfc(x) / t), t = 2 / (2 + x), from the lowest power. Its
# relative error is at most 1.2e-7 for x >= 0 (Press et al., Numerical Recipes, 6.2).
_ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)
# M. Giles, Approximating the erfinv function (GPU Computing Gems, 2010), single precision: the
# coefficients near the centre, and those of the tails, from the highest power.
_ERFINV_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
_TAIL_BEGINS, _MIDDLE_OF_TAIL, _MIDDLE_OF_CENTRE = 5.0, 3.0, 2.5
_SHIFT = 8  # from which on Stirling's series has all digits of float32, and 11 of float64
# B(2k) / (2k (2k - 1)) and B(2k) / 2k, of Bernoulli's numbers
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)


def _in_single(x: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    """Return a value to compute with, and the type of the result."""
    if not x.is_floating_point():
        return x.float(), torch.get_default_dtype()
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x), x.dtype


def _promoted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    dtype = torch.result_type(x, y)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return x.to(wide), y.to(wide), dtype


def _polynomial(coefficients: tuple[float, ...], x: torch.Tensor) -> torch.Tensor:
    """Return a polynomial whose coefficients begin with that of the highest power."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _cosh(x: torch.Tensor) -> torch.Tensor:
    """Compute the hyperbolic cosine by exponential functions."""
    value, dtype = _in_single(x)
    return ((value.exp() + (-value).exp()) * 0.5).to(dtype)


def _sinh(x: torch.Tensor) -> torch.Tensor:
    """Compute the hyperbolic sine by exponential functions, and near zero by its series."""
    value, dtype = _in_single(x)
    square = value * value
    series = value * (1 + square / 6 * (1 + square / 20 * (1 + square / 42 * (1 + square / 72))))
    made = torch.where(square < 0.25, series, (value.exp() - (-value).exp()) * 0.5)
    return made.to(dtype)


def _erfc(x: torch.Tensor) -> torch.Tensor:
    """Compute the complementary error function, in its tails with their relative accuracy."""
    value, dtype = _in_single(x)
    size = value.abs()
    t = 2.0 / (2.0 + size)
    tail = t * torch.exp(-size * size + _polynomial(_ERFC[::-1], t))
    tail = torch.where(size > 30.0, torch.zeros_like(tail), tail)  # NaN of infinity
    far = torch.where(value < 0, 2.0 - tail, tail)
    return torch.where(size < 1.0, 1.0 - torch.erf(value), far).to(dtype)


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    """Compute the inverse of the error function by Giles' polynomials."""
    value, dtype = _in_single(x)
    w = -torch.log((1.0 - value) * (1.0 + value))
    centre = _polynomial(_ERFINV_CENTRE, w - _MIDDLE_OF_CENTRE)
    tail = _polynomial(_ERFINV_TAIL, w.sqrt() - _MIDDLE_OF_TAIL)
    made = torch.where(w < _TAIL_BEGINS, centre, tail) * value
    return torch.where(value.abs() == 1.0, value * math.inf, made).to(dtype)


def _exp2(x: torch.Tensor) -> torch.Tensor:
    """Compute a power of two."""
    value, dtype = _in_single(x)
    return torch.pow(2.0, value).to(dtype)


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """Multiply by a power of two."""
    return x * torch.pow(2.0, exponent)


def _hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the length of a vector of two coordinates, without overflow of their squares."""
    left, right, dtype = _promoted(x, y)
    longest, other = torch.maximum(left.abs(), right.abs()), torch.minimum(left.abs(), right.abs())
    ratio = other / torch.where(longest == 0, torch.ones_like(longest), longest)
    made = longest * torch.sqrt(1.0 + ratio * ratio)
    made = torch.where(
        torch.isnan(left) | torch.isnan(right), torch.full_like(made, math.nan), made
    )
    infinite = torch.isinf(left) | torch.isinf(right)
    return torch.where(infinite, torch.full_like(made, math.inf), made).to(dtype)


def _signbit(x: torch.Tensor) -> torch.Tensor:
    """Return whether a number is negative; -0.0 is."""
    if not x.is_floating_point():
        return x < 0
    return (x < 0) | ((x == 0) & (1.0 / x < 0))


def _copysign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the absolute value of one number with the sign of another."""
    size = _absolute(x, torch.result_type(x, y))
    return torch.where(_signbit(y), -size, size)


def _copysign_of_number(x: torch.Tensor, y: float) -> torch.Tensor:
    """Return absolute values, all with one sign."""
    size = _absolute(x, torch.result_type(x, y))
    return -size if math.copysign(1.0, y) < 0 else size


def _absolute(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype if dtype.is_floating_point else torch.get_default_dtype()).abs()


def _fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the larger of two numbers; where one is NaN, the other."""
    return _of_numbers(torch.maximum, x, y)


def _fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the smaller of two numbers; where one is NaN, the other."""
    return _of_numbers(torch.minimum, x, y)


def _of_numbers(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
) -> torch.Tensor:
    dtype = torch.result_type(x, y)
    left, right = x.to(dtype), y.to(dtype)
    if not dtype.is_floating_point:
        return function(left, right)
    made = torch.where(torch.isnan(right), left, function(left, right))
    return torch.where(torch.isnan(left), right, made)


def _random_relu(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    _: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a leaky ReLU of the mean slope."""
    if training:
        raise NotImplementedError("rrelu in training, which is random")
    return torch.where(x < 0, x * ((lower + upper) / 2), x), noise.clone()


def _random_relu_alone(
    x: torch.Tensor, noise: torch.Tensor, *slopes: Any, **named: Any
) -> torch.Tensor:
    return _random_relu(x, noise, *slopes, **named)[0]


def _lgamma(x: torch.Tensor) -> torch.Tensor:
    """Compute the logarithm of the absolute gamma function: Stirling's series, and reflection."""
    value, dtype = _in_single(x)
    positive = torch.where(value < 0.5, 1.0 - value, value)
    product = positive
    for step in range(1, _SHIFT):
        product = product * (positive + step)
    far = positive + _SHIFT
    series = _polynomial(_STIRLING[::-1], 1.0 / (far * far)) / far
    made = (far - 0.5) * torch.log(far) - far + 0.5 * math.log(2 * math.pi) + series
    made = torch.where(positive > 1e4, _stirling(positive), made - torch.log(product))
    sine = torch.sin(math.pi * (value - torch.round(value)))
    reflected = math.log(math.pi) - torch.log(sine.abs()) - made
    made = torch.where(value < 0.5, reflected, made)
    infinite = torch.isinf(value) | ((value <= 0) & (value == torch.floor(value)))
    return torch.where(infinite, torch.full_like(made, math.inf), made).to(dtype)


def _stirling(x: torch.Tensor) -> torch.Tensor:
    return (x - 0.5) * torch.log(x) - x + 0.5 * math.log(2 * math.pi)


def _digamma(x: torch.Tensor) -> torch.Tensor:
    """Compute the derivative of lgamma: an asymptotic series, and reflection."""
    value, dtype = _in_single(x)
    positive = torch.where(value < 0.5, 1.0 - value, value)
    lost = 1.0 / positive
    for step in range(1, _SHIFT):
        lost = lost + 1.0 / (positive + step)
    far = positive + _SHIFT
    inverse = 1.0 / (far * far)
    made = torch.log(far) - 0.5 / far - inverse * _polynomial(_DIGAMMA[::-1], inverse) - lost
    angle = math.pi * (value - torch.round(value))
    made = torch.where(value < 0.5, made - math.pi * torch.cos(angle) / torch.sin(angle), made)
    pole = (value < 0) & (value == torch.floor(value))
    made = torch.where(pole, torch.full_like(made, math.nan), made)
    at_zero = torch.where(_signbit(value), math.inf, -math.inf)
    return torch.where(value == 0, at_zero.to(made.dtype), made).to(dtype)


DECOMPOSITIONS = {
    "cosh": _cosh,
    "sinh": _sinh,
    "erfc": _erfc,
    "special_erfc": _erfc,
    "erfinv": _erfinv,
    "exp2": _exp2,
    "ldexp.Tensor": _ldexp,
    "hypot": _hypot,
    "rrelu_with_noise": _random_relu_alone,
    "rrelu_with_noise_functional": _random_relu,
    "signbit": _signbit,
    "copysign.Tensor": _copysign,
    "copysign.Scalar": _copysign_of_number,
    "fmax": _fmax,
    "fmin": _fmin,
    "lgamma": _lgamma,
    "digamma": _digamma,
}
