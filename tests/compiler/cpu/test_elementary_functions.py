"""Elementary functions of float32 beside those of numpy in float64, at the ends of their domains
and where their polynomials meet.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered
from tvm import relax

OP = relax.op


def gelu_by_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


# operator, exact function, ranges, greatest relative error, greatest absolute error
FUNCTIONS = {
    "log": (OP.log, np.log, [(0, 1e-36), (0.4, 2.2), (0, 3e38)], 3e-7, 0),
    "atan": (OP.atan, np.arctan, [(-0.5, 0.5), (-3, 3), (-1e6, 1e6)], 4e-7, 0),
    "asin": (OP.asin, np.arcsin, [(-1e-3, 1e-3), (-1, 1)], 5e-7, 0),
    "acos": (OP.acos, np.arccos, [(0.9999, 1), (-1, 1)], 4e-7, 1e-7),
    "gelu by tanh": (OP.nn.gelu_tanh, gelu_by_tanh, [(-12, 12), (-0.1, 0.1)], 3e-7, 1e-6),
    "softplus": (OP.nn.softplus, softplus, [(-80, 80), (-18, 1)], 6e-7, 1e-30),
    "round": (OP.round, np.round, [(-10, 10), (-1e9, 1e9)], 0, 0),
}
SPECIAL = [0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, 1e-40, 3e38, -2, 1.0000001]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_to_the_seventh_digit(name, cpu):
    operator, exact, ranges, relative, absolute = FUNCTIONS[name]
    numbers = np.random.default_rng(7)
    drawn = [numbers.uniform(low, high, 20_000) for low, high in ranges]
    x = np.concatenate([*drawn, SPECIAL]).astype("float32")
    [found] = compute({"x": x}, lambda emit, x: emit(operator(x)), cpu=cpu).outputs
    with np.errstate(all="ignore"):
        wanted = exact(x.astype("float64"))
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=absolute)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_arithmetic_within_the_kernel(name):
    """A call of the C library takes one number at a time."""
    operator = FUNCTIONS[name][0]
    low = lowered({"x": np.zeros(64, "float32")}, lambda emit, x: emit(operator(x)))
    called = ("log", "atan", "asin", "acos", "tanh", "exp", "nearbyint", "round")
    assert not any(f"T.{function}(" in str(low.module) for function in called)


@pytest.mark.parametrize(("beta", "threshold"), [(2.0, 10.0), (0.5, 20.0), (1.0, 1000.0)])
def test_softplus_has_a_slope_and_a_threshold(beta, threshold):
    x = np.linspace(-60, 200, 5001).astype("float32")
    [found] = compute({"x": x}, lambda emit, x: emit(OP.nn.softplus(x, beta, threshold))).outputs
    wide = x.astype("float64")
    wanted = np.where(beta * wide > threshold, wide, np.logaddexp(0, beta * wide) / beta)
    np.testing.assert_allclose(found, wanted, rtol=6e-7, atol=1e-30)
