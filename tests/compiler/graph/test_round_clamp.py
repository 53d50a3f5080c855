"""Rounding within bounds with a zero point, to float32 and to 8-bit integers, is one step."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, const
from tvm import relax

X = np.random.default_rng(4).uniform(-300, 300, (3, 37)).astype("float32")
X[0, :6] = (0.5, 1.5, 2.5, -0.5, -1.5, 254.5)  # halves are rounded to even


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("zero", "low", "high", "dtype"),
    [
        (3.0, 0.0, 255.0, "float32"),
        (-7.0, -128.0, 127.0, "float32"),
        (0.0, -100.0, 90.0, "float32"),
        (11.0, 0.0, 255.0, "uint8"),
        (-7.0, -128.0, 127.0, "int8"),
        (0.0, 0.0, 255.0, "uint8"),
    ],
)
def test_the_zero_point_is_added_before_the_bounds(zero, low, high, dtype, cpu):
    def body(emit, x):
        moved = emit(relax.op.round(x))
        if zero:
            moved = emit(relax.op.add(moved, const(zero)))
        bounded = emit(relax.op.minimum(emit(relax.op.maximum(moved, const(low))), const(high)))
        return bounded if dtype == "float32" else emit(relax.op.astype(bounded, dtype))

    answer = compute({"x": X}, body, cpu=cpu)
    expected = np.clip(np.round(X) + zero, low, high).astype(dtype)
    np.testing.assert_array_equal(answer.outputs[0], expected)
    assert len(answer.kernels) == 1
