"""Beta, binomial, Student's t and normal distribution functions, without SciPy."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

_TINY = 1e-300
_TERMS = 10_000  # limit of terms of the continued fraction, which needs about sqrt(max(a, b))
_NORMAL = NormalDist()


def beta_regularized(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), the regularized incomplete beta function, to about 12 digits.

    It is the continued fraction of https://dlmf.nist.gov/8.17#v, evaluated by Lentz's method.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction converges slowly; use the symmetry
        return 1.0 - beta_regularized(1 - x, b, a)
    front = (
        math.exp(
            a * math.log(x)
            + b * math.log1p(-x)
            + math.lgamma(a + b)
            - math.lgamma(a)
            - math.lgamma(b)
        )
        / a
    )
    c, d = 1.0, 1.0 / _apart(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _apart(1 + term * d)
            c = _apart(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value


def _apart(value: float) -> float:
    """Return the value, or `_TINY` if it is too close to zero to divide by."""
    return value if abs(value) > _TINY else _TINY


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return the probability of at most k successes in n trials."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else beta_regularized(1 - p, n - k, k + 1)


def binomial_quantile(probability: float, n: int, p: float) -> int:
    """Return the smallest k whose `binomial_cdf` is at least `probability`."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if binomial_cdf(middle, n, p) >= probability else (middle + 1, high)
        )
    return low


@functools.lru_cache(maxsize=256)  # all pairs of a comparison have the same arguments
def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t with `freedom` degrees of freedom.

    `probability` is in (0.5, 1).
    """
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if _student_cdf(middle, freedom) >= probability else (middle, high)
        )
    return high


def _student_cdf(t: float, freedom: float) -> float:
    return 1 - beta_regularized(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def normal_cdf(z: float) -> float:
    """Return the standard normal distribution function at z."""
    return math.erfc(-z / math.sqrt(2)) / 2


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return _NORMAL.inv_cdf(probability)
