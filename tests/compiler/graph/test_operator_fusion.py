"""Kernels that read fields of several tuples: fused, and never mixed up."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import Array, compute
from tvm import relax

from farm.compiler.graph import operator_fusion

OP = relax.op
numbers = np.random.default_rng(4)


def inputs(count: int) -> dict[str, Array]:
    return {
        f"x{index}": numbers.standard_normal((4, 6)).astype("float32") for index in range(count)
    }


def sum_of_thirds(emit, *tensors):
    """Add up the first two thirds of each tensor, in one kernel, and the rows of the last."""
    pieces = [emit(OP.split(tensor, 3, 1)) for tensor in tensors]
    thirds = [emit(piece[index]) for piece in pieces for index in range(2)]
    rows = [emit(OP.sum(emit(piece[2]), 0)) for piece in pieces]
    total = thirds[0]
    for third in thirds[1:]:
        total = emit(OP.add(total, third))
    return [total, *rows]


def expected_sums(given: dict[str, Array]) -> list[Array]:
    pieces = [np.split(tensor, 3, 1) for tensor in given.values()]
    return [sum(third for piece in pieces for third in piece[:2]), *(p[2].sum(0) for p in pieces)]


@pytest.mark.parametrize("count", [2, 5, 9, 16])
def test_a_kernel_may_read_several_tuples(count):
    """TVM takes them apart in an order of addresses; with 16, that was wrong each time."""
    given = inputs(count)
    for _ in range(4):
        answer = compute(given, sum_of_thirds)
        assert [kernel.name for kernel in answer.kernels] == [
            "fused" + "_add" * (2 * count - 1),
            "split",
            "sum",
        ]
        for found, expected in zip(answer.outputs, expected_sums(given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_where_no_order_helps_fields_are_not_fused(monkeypatch):
    monkeypatch.setattr(operator_fusion, "_MOST_ATTEMPTS", 0)
    given = inputs(1)

    def gated(emit, x):
        pieces = emit(OP.split(x, 2, 1))
        values, gates = (emit(pieces[index]) for index in range(2))
        return OP.multiply(values, emit(OP.sigmoid(gates)))

    answer = compute(given, gated)
    assert "split" in [kernel.name for kernel in answer.kernels]
    values, gates = np.split(given["x0"], 2, 1)
    np.testing.assert_allclose(answer.outputs[0], values / (1 + np.exp(-gates)), rtol=1e-5)
