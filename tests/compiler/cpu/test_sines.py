"""Sines and cosines, which networks of coordinates and vocoders compute for each element."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered
from tvm import relax

FUNCTIONS = {"sin": (relax.op.sin, np.sin), "cos": (relax.op.cos, np.cos)}


def results(name, x, cpu="native"):
    operator, exact = FUNCTIONS[name]
    (ours,) = compute({"x": x}, lambda emit, x: emit(operator(x)), cpu=cpu).outputs
    return ours, exact(x.astype(np.float64))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_right_to_the_seventh_digit(name, cpu):
    """Of small and large arguments, and beside the zeros of both functions."""
    numbers = np.random.default_rng(0)
    ranges = [numbers.uniform(-bound, bound, 20_000) for bound in (1, 10, 1e3, 1e6, 1e8)]
    zeros = np.pi / 2 * np.arange(-2000, 2000)
    ours, exact = results(name, np.concatenate([*ranges, zeros]).astype(np.float32), cpu)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1.2e-7)


def test_a_sine_of_a_small_number_is_the_number():
    x = np.array([1e-40, -1e-30, 1e-12, 3e-5, -1e-4], np.float32)
    ours, exact = results("sin", x)
    np.testing.assert_allclose(ours, exact, rtol=2e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_nan_and_infinity_they_are_nan(name):
    ours, _ = results(name, np.array([np.nan, np.inf, -np.inf, 0.5], np.float32))
    assert np.isnan(ours).tolist() == [True, True, True, False]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_the_largest_numbers_they_are_from_minus_one_to_one(name):
    x = np.array([3e38, -3e38, 1e30, 7e15, -2e12, 1e10], np.float32)
    ours, _ = results(name, x)
    assert np.abs(ours).max() <= 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_64_bits_are_left_to_the_c_library(name):
    x = np.linspace(-5, 5, 101)
    ours, exact = results(name, x)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_are_arithmetic_within_the_kernel(name):
    operator, _ = FUNCTIONS[name]
    low = lowered({"x": np.zeros(64, np.float32)}, lambda emit, x: emit(operator(x)))
    assert f"T.{name}(" not in str(low.module)
