"""Cumulative sums and products along each axis are numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import compute
from tvm import relax

numbers = np.random.default_rng(9)


@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("kind", ["float32", "int64", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((50, 33), 0), ((3, 20, 4, 5), 1), ((2, 9, 3), 1), ((4, 70), -1), ((1, 8), 0)],
)
def test_each_result_is_the_one_before_and_an_element(shape, axis, kind, is_exclusive):
    x = numbers.integers(-3, 4, shape).astype(kind)

    def body(emit, x):
        return [
            emit(relax.op.cumsum(x, axis, exclusive=is_exclusive)),
            emit(relax.op.cumprod(x, axis, exclusive=is_exclusive)),
        ]

    for found, function, start in zip(
        compute({"x": x}, body).outputs, (np.cumsum, np.cumprod), (0, 1), strict=True
    ):
        wanted = function(x, axis, dtype=kind)
        if is_exclusive:
            wanted = np.roll(wanted, 1, axis)
            wanted[(*[slice(None)] * (axis % x.ndim), 0)] = start
        np.testing.assert_array_equal(found, wanted)


def test_an_axis_that_is_not_the_last_has_its_own_kernel():
    x = numbers.standard_normal((30, 64)).astype("float32")
    answer = compute({"x": x}, lambda emit, x: emit(relax.op.cumsum(x, 0)))
    assert "scan" in str(answer.lowered.module)
