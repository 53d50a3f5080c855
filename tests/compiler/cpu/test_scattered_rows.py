"""Scatters of whole rows: each is numpy's answer, with one thread's columns and with several's."""

from __future__ import annotations

import re

import numpy as np
import pytest
from relax_models import compute, lowered, run
from tvm import relax, tirx

OP = relax.op
numbers = np.random.default_rng(20)
REDUCTIONS = {
    "update": lambda _, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def draw(*shape, dtype="float32"):
    if dtype == "int64":
        return numbers.integers(-(2**40), 2**40, shape)
    return numbers.standard_normal(shape).astype(dtype)


def scattered(data, places, rows, reduction):
    expected = data.copy()
    for place, row in zip(places, rows, strict=True):
        expected[tuple(place)] = REDUCTIONS[reduction](expected[tuple(place)], row)
    return expected


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(7, 1), (7, 3), (5, 4, 2), (70, 300), (60, 7, 67)])
def test_rows_are_scattered_in_the_order_of_their_indices(shape, reduction):
    axes = max(1, len(shape) - 1)
    places = np.stack([numbers.integers(0, extent, 90) for extent in shape[:axes]], 1)
    for kind in ("float32", "int64"):
        data, rows = draw(*shape, dtype=kind), draw(90, *shape[axes:], dtype=kind)
        [found] = compute(
            {"x": data, "points": places, "rows": rows},
            lambda emit, x, points, rows: emit(OP.scatter_nd(x, points, rows, reduction)),
        ).outputs
        np.testing.assert_array_equal(found, scattered(data, places, rows, reduction))


def parallel_loops(low):
    found = re.findall(r"T\.parallel\((?:T\.int64\()?(\d+)", low.module.script())
    return [int(extent) for extent in found]


@pytest.mark.parametrize(("columns", "parts"), [(256, [8]), (67, [2]), (33, [])])
def test_threads_share_columns_and_never_a_row(columns, parts):
    data, rows = draw(500, columns), draw(80, columns)
    places = numbers.integers(0, 500, (80, 1))

    def body(emit, x, points, rows):
        return emit(OP.scatter_nd(x, points, rows, "add"))

    low = lowered(
        {"x": data, "rows": rows}, lambda emit, x, r, p: body(emit, x, p, r), {"p": places}
    )
    assert parallel_loops(low) == parts


@pytest.mark.parametrize("open_axis", [0, 1])
def test_an_axis_of_rows_or_of_columns_may_be_open(open_axis):
    extent = tirx.Var("batch", "int64")
    shapes = [[5, 4], [3, 4]]
    shapes[0][open_axis] = extent
    if open_axis == 1:
        shapes[1][1] = extent
    x, rows = (relax.TensorType(shape, "float32") for shape in shapes)
    points = np.array([[1], [0], [1]])
    low = lowered(
        {"x": x, "points": points, "rows": rows},
        lambda emit, x, points, rows: emit(OP.scatter_nd(x, points, rows, "add")),
    )
    data, new = draw(5, 4), draw(3, 4)
    [found] = run(low, [data, points, new])
    np.testing.assert_array_equal(found, scattered(data, points, new, "add"))
    assert any("scatter_nd" in kernel.name for kernel in low.kernels)


@pytest.mark.parametrize("value", [0.0, -np.inf])
def test_a_tensor_full_of_one_number_is_not_stored(value):
    places, rows = numbers.integers(0, 400, (900, 1)), draw(900, 80)
    full = np.full((400, 80), value, "float32")

    def body(emit, points, rows):
        return emit(
            OP.scatter_nd(emit(OP.full((400, 80), relax.const(value))), points, rows, "max")
        )

    answer = compute({"points": places, "rows": rows}, body)
    np.testing.assert_array_equal(answer.outputs[0], scattered(full, places, rows, "max"))
    assert sum(array.nbytes for array in answer.lowered.parameters_as_called()) < 1000


@pytest.mark.parametrize("how", ["broadcast", "constant"])
def test_elements_with_the_index_of_their_row_are_scattered_as_rows(how):
    """Negative indices count from the end; what is written beyond the tensor is NaN."""
    indices = np.array([0, 4, -1, 4, -5, 2])
    x, rows = draw(5, 2, 3), draw(6, 2, 3)
    inputs = {"x": x, "rows": rows}
    spread = np.broadcast_to(indices[:, None, None], (6, 2, 3))
    if how == "broadcast":
        inputs["indices"] = indices = np.append(indices[:5], 7)

    def body(emit, x, rows, indices=None):
        if indices is None:
            wide = relax.const(np.ascontiguousarray(spread), "int64")
        else:
            column = emit(OP.reshape(indices, (6, 1, 1)))
            wide = emit(OP.broadcast_to(column, (6, 2, 3)))
        return emit(OP.scatter_elements(x, wide, rows, 0, "add"))

    answer = compute(inputs, body)
    expected = scattered(x, indices[:5, None] % 5, rows[:5], "add")
    expected[4 if how == "broadcast" else 2] += np.nan if how == "broadcast" else rows[5]
    np.testing.assert_array_equal(answer.outputs[0], expected)
    assert any("scatter_nd" in kernel.name for kernel in answer.kernels)


def test_elements_with_indices_of_their_own_are_scattered_one_by_one():
    indices = np.array([[0, 1], [2, 0], [1, 2]])
    x, values = draw(3, 2), draw(3, 2)

    def body(emit, x, values):
        wide = relax.const(indices, "int64")
        return emit(OP.scatter_elements(x, wide, values, 0, "add"))

    expected = x.copy()
    for (row, column), index in np.ndenumerate(indices):
        expected[index, column] += values[row, column]
    np.testing.assert_array_equal(compute({"x": x, "values": values}, body).outputs[0], expected)


def test_a_tensor_of_zeros_of_both_signs_keeps_them():
    data = np.resize(np.array([0.0, -0.0], "float32"), (40, 80))
    places, rows = numbers.integers(0, 20, (9, 1)), draw(9, 80)
    answer = compute(
        {"points": places, "rows": rows},
        lambda emit, points, rows, x: emit(OP.scatter_nd(x, points, rows)),
        {"x": data},
    )
    expected = scattered(data, places, rows, "update")
    assert answer.outputs[0].tobytes() == expected.tobytes()
