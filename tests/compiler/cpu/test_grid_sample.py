"""Grid sampling on CPUs: torch's answer for points inside, at the edges, and far outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relax_models import CPUS, compute
from torch.nn import functional
from tvm import relax

numbers = np.random.default_rng(11)
FAR = [1e30, -1e30, 1, -1, 3e9, -1e20, 0, 1.0000001]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("image", "grid"),
    [
        ((2, 3, 7, 9), (5, 4)),
        ((1, 64, 8, 8), (3, 6)),
        ((1, 33, 1, 5), (3, 3)),
        ((1, 1, 20, 3), (9, 9)),
    ],
    ids=str,
)
def test_points_are_interpolated_between_their_pixels(image, grid, cpu):
    x = numbers.standard_normal(image).astype("float32")
    points = (numbers.standard_normal((image[0], 2, *grid)) * 1.2).astype("float32")
    points.flat[: len(FAR)] = FAR[: points.size]
    forms = [(padding, aligned) for padding in ("zeros", "border") for aligned in (False, True)]

    def body(emit, x, points):
        return [
            emit(relax.op.image.grid_sample(x, points, "bilinear", "NCHW", *form)) for form in forms
        ]

    answer = compute({"x": x, "points": points}, body, {}, cpu)
    for found, (padding, aligned) in zip(answer.outputs, forms, strict=True):
        exact = functional.grid_sample(
            torch.from_numpy(x),
            torch.from_numpy(points).permute(0, 2, 3, 1),
            padding_mode=padding,
            align_corners=aligned,
        )
        np.testing.assert_allclose(found, exact.numpy(), atol=1e-4, err_msg=padding)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("aligned", [False, True])
def test_a_point_that_is_nan_is_outside(aligned, cpu):
    x = numbers.standard_normal((1, 20, 4, 4)).astype("float32")
    points = np.zeros((1, 2, 2, 2), "float32")
    points[0, :, 0, 0] = np.nan
    points[0, 1, 0, 1] = np.inf

    def body(emit, x, points):
        return emit(relax.op.image.grid_sample(x, points, "bilinear", "NCHW", "zeros", aligned))

    [found] = compute({"x": x, "points": points}, body, {}, cpu).outputs
    middle = x[0, :, 1:3, 1:3].mean((1, 2))
    np.testing.assert_allclose(found[0, :, 1, 1], middle, atol=1e-6)
    assert not found[0, :, 0].any()
