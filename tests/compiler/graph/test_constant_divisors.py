"""Which divisions by constants are multiplications by reciprocals: those of rounded numbers."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import compute
from tvm import relax

OP = relax.op
numbers = np.random.default_rng(9)
X = numbers.standard_normal((6, 32)).astype("float32")
W = {"w": numbers.standard_normal((32, 48)).astype("float32")}


def number(value):
    return relax.const(np.float32(value))


def hard_swish(emit, x):
    """Return x * clip(x + 3, 0, 6) / 6, as ONNX's operator is imported."""
    gate = emit(OP.clip(emit(OP.add(x, number(3))), 0, 6))
    return emit(OP.divide(emit(OP.multiply(x, gate)), number(6)))


def names(answer):
    return " ".join(kernel.name for kernel in answer.kernels)


def test_a_hard_swish_after_a_product_has_no_division_and_is_right():
    answer = compute({"x": X}, lambda emit, x, w: hard_swish(emit, emit(OP.matmul(x, w))), W)
    assert "divide" not in names(answer)
    product = X.astype("float64") @ W["w"]
    exact = product * np.clip(product + 3, 0, 6) / 6
    np.testing.assert_allclose(answer.outputs[0], exact, rtol=1e-5, atol=1e-5)


def test_numbers_that_may_be_exact_are_divided():
    counts = np.arange(6 * 32, dtype="float32").reshape(6, 32)
    answer = compute({"x": counts}, lambda emit, x: emit(OP.floor(emit(OP.divide(x, number(49))))))
    assert "divide" in names(answer)
    assert answer.outputs[0].tolist() == np.floor(counts / np.float32(49)).tolist()


def test_what_is_rounded_after_a_product_is_divided():
    def steps(emit, x, w):
        whole = emit(OP.round(emit(OP.matmul(x, w))))
        return emit(OP.floor(emit(OP.divide(whole, number(7)))))

    answer = compute({"x": X}, steps, W)
    assert "divide" in names(answer)


@pytest.mark.parametrize("divisor", [np.inf, np.nan, 1e-39, -np.inf, 3e38])
def test_divisors_without_a_normal_reciprocal_stay(divisor):
    answer = compute({"x": X}, lambda emit, x: emit(OP.divide(emit(OP.exp(x)), number(divisor))))
    assert "divide" in names(answer)
    with np.errstate(all="ignore"):
        exact = np.exp(X) / np.float32(divisor)
    np.testing.assert_allclose(answer.outputs[0], exact, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("divisor", [0.0, -0.0])
def test_a_division_by_zero_gives_infinities_and_nan(divisor, dtype):
    x = np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 3e38], dtype)
    zero = relax.const(np.array(divisor, dtype), dtype)
    answer = compute({"x": x}, lambda emit, x: emit(OP.divide(x, zero)))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(answer.outputs[0], x / np.array(divisor, dtype))
