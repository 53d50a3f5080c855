"""Indices beyond a tensor where several numbers, or a row for each point, are read or written."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import compute
from tvm import relax

OP = relax.op
CUBE = np.random.default_rng(6).standard_normal((3, 6, 5)).astype("float32")


def test_rows_of_which_one_of_two_indices_is_beyond_are_nan():
    first, second = np.array([0, 2, 3, -3, 1]), np.array([5, -6, 1, 6, 0])

    def body(emit, x, first, second):
        return emit(OP.index_tensor(x, [first, second]))

    (found,) = compute({"x": CUBE, "first": first, "second": second}, body).outputs
    beyond = [2, 3]
    assert np.isnan(found[beyond]).all()
    inside = [0, 1, 4]
    np.testing.assert_array_equal(found[inside], CUBE[first[inside], second[inside]])


def test_points_of_each_image_of_a_batch_are_bounded_by_its_own_axes():
    points = np.array([[[5], [0], [6]], [[2], [-1], [3]], [[4], [9], [1]]])

    def body(emit, x, points):
        return emit(OP.gather_nd(x, points, 1))

    (found,) = compute({"x": CUBE, "points": points}, body).outputs
    expected = CUBE[np.arange(3)[:, None], np.clip(points[..., 0], 0, 5)]
    expected[(points[..., 0] < 0) | (points[..., 0] > 5)] = np.nan
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("beyond", [3, -1])
def test_a_row_that_is_written_beyond_a_tensor_is_nan_where_it_is_nearest(beyond):
    points, rows = np.array([[1], [beyond]]), -CUBE[:2]

    def body(emit, x, points, rows):
        return emit(OP.scatter_nd(x, points, rows))

    (found,) = compute({"x": CUBE, "points": points, "rows": rows}, body).outputs
    expected = CUBE.copy()
    expected[1], expected[2 if beyond > 0 else 0] = rows[0], np.nan
    np.testing.assert_array_equal(found, expected)
