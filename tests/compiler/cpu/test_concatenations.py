"""Kernels that join tensors: where a condition on an axis is tested."""

from __future__ import annotations

import re

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered
from tvm import relax, tirx

RANDOM = np.random.default_rng(0)


def parts(extents, axis, shape):
    return {
        f"x{number}": RANDOM.standard_normal(
            [extent if place == axis else other for place, other in enumerate(shape)]
        ).astype("float32")
        for number, extent in enumerate(extents)
    }


def joined(axis):
    return lambda emit, *tensors: emit(relax.op.concat(list(tensors), axis))


def hinted(low):
    """The extent of each loop whose conditions TVM is asked to make constant."""
    found = re.findall(r"T\.serial\((\d+), annotations=\{.pragma_loop_partition", str(low.module))
    return [int(extent) for extent in found]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("extents", "axis", "shape"),
    [
        ([1] * 26, 1, (64, 0, 16)),
        ([5, 9, 2], 1, (20, 0, 7)),
        ([3, 4, 5], 2, (8, 16, 0, 20)),
        ([6, 1], 1, (3, 0, 5)),
        ([2, 3], 0, (0, 30, 8)),
        ([4, 13], 2, (5, 6, 0)),
    ],
    ids=str,
)
def test_parts_are_in_their_places(extents, axis, shape, cpu):
    inputs = parts(extents, axis, shape)
    (ours,) = compute(inputs, joined(axis), cpu=cpu).outputs
    np.testing.assert_array_equal(ours, np.concatenate(list(inputs.values()), axis))


def test_of_many_rows_the_axis_that_is_joined_is_divided_at_the_parts():
    low = lowered(parts([1] * 26, 1, (64, 0, 16)), joined(1))
    assert hinted(low) == [26]
    low = lowered(parts([3, 4, 5], 2, (8, 16, 0, 20)), joined(2))
    assert hinted(low) == [12]


def test_of_few_rows_it_is_divided_among_threads_with_the_others():
    low = lowered(parts([20, 40], 1, (3, 0, 32)), joined(1), cpu="x86-64-v3")
    assert hinted(low) == [4]  # the vectors of a row


def test_conditions_on_two_axes_leave_the_first_alone():
    x = RANDOM.standard_normal((32, 30, 40)).astype("float32")
    low = lowered({"x": x}, lambda emit, x: emit(relax.op.nn.pad(x, [0, 0, 1, 1, 1, 1])))
    assert 32 not in hinted(low)


def test_an_open_batch_is_not_divided():
    batch = tirx.Var("batch", "int64")
    inputs = {name: relax.TensorType((batch, 5, 16), "float32") for name in "ab"}
    assert hinted(lowered(inputs, joined(1))) == []
