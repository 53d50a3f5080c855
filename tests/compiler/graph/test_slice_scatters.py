"""Scatters whose constant indices are a slice: right, without indices, and fused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from relax_models import compute, lowered, run, target
from tvm import relax, tirx

from farm import importers
from farm.compiler.lower import lower_module
from farm.kernels.slice_scatter import AxisSlice, slices_of_indices
from farm.types import Model

OP = relax.op
numbers = np.random.default_rng(3)
SHAPE = (4, 6, 7)
REDUCTIONS = {"update": lambda _, new: new, "add": np.add, "mul": np.multiply}
SLICES = {
    "one row": np.s_[2:3],
    "all but the first": np.s_[:, 1:, 1:],
    "every second column": np.s_[:, :, ::2],
    "every third column, from the second": np.s_[:, 1:5, 1::3],
    "from the end": np.s_[:, ::-1, 5:1:-2],
    "the whole": np.s_[:, :, :],
    "whole rows": np.s_[1:3, ::2],
}


def draw(shape, dtype="float32"):
    return (numbers.standard_normal(shape) * 100).astype(dtype)


def indices_of(slices, shape=SHAPE):
    """Return the indices [..., axes] of a slice along the first axes."""
    along = [np.arange(extent)[one] for extent, one in zip(shape, slices, strict=False)]
    return np.stack(np.meshgrid(*along, indexing="ij"), -1)


def written(data, slices, updates, reduction):
    expected = data.copy()
    expected[slices] = REDUCTIONS[reduction](expected[slices], updates)
    return expected


def as_tuple(slices):
    return slices if isinstance(slices, tuple) else (slices,)


def scatter(reduction="update"):
    return lambda emit, x, updates, points: emit(OP.scatter_nd(x, points, updates, reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", SLICES)
def test_a_slice_is_written_without_indices(case, reduction):
    slices = as_tuple(SLICES[case])
    points = indices_of(slices)
    for dtype in ("float32", "int64"):
        data = draw(SHAPE, dtype)
        updates = draw(data[slices].shape, dtype)
        answer = compute({"x": data, "updates": updates}, scatter(reduction), {"points": points})
        expected = written(data, slices, updates, reduction)
        np.testing.assert_array_equal(answer.outputs[0], expected)
        assert not answer.lowered.parameters
        assert [kernel.name for kernel in answer.lowered.kernels] == ["slice_scatter"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_what_is_outside_of_the_slice_keeps_its_bits(reduction):
    data = np.resize(np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1e-40], "float32"), (4, 6))
    points, updates = indices_of(np.s_[1:3, 2:4], data.shape), np.full((2, 2), 3, "float32")
    [found] = compute({"x": data, "u": updates}, scatter(reduction), {"points": points}).outputs
    expected = written(data, np.s_[1:3, 2:4], updates, reduction)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_code_of_a_chain_of_scatters_does_not_double_with_each(reduction):
    data, updates = draw((40, 6)), draw((2, 6))
    places = {f"p{row}": indices_of((slice(row, row + 2),), (40,)) for row in range(24)}

    def body(emit, x, u, *points):
        for rows in points:
            x = emit(OP.scatter_nd(x, rows, u, reduction))
        return x

    answer = compute({"x": data, "u": updates}, body, places)
    assert len(answer.lowered.module.script()) < 60_000
    for row in range(24):
        data = written(data, np.s_[row : row + 2], updates, reduction)
    np.testing.assert_allclose(answer.outputs[0], data, rtol=1e-5)


def test_minima_and_maxima_are_left_to_the_other_kernel():
    data, updates, points = draw(SHAPE), draw((1, *SHAPE[1:])), np.array([[2]])
    answer = compute({"x": data, "u": updates}, scatter("max"), {"points": points})
    np.testing.assert_array_equal(answer.outputs[0], written_maximum(data, updates))
    assert [kernel.name for kernel in answer.kernels] == ["scatter_nd"]


def written_maximum(data, updates):
    expected = data.copy()
    expected[2:3] = np.maximum(expected[2:3], updates)
    return expected


def test_an_index_of_several_axes_may_stand_alone():
    data, updates = draw(SHAPE), draw(SHAPE[2:])
    [found] = compute({"x": data, "u": updates}, scatter(), {"points": np.array([3, 1])}).outputs
    data[3, 1] = updates
    np.testing.assert_array_equal(found, data)


def test_indices_may_be_one_row_and_count_from_the_end():
    slices = as_tuple(SLICES["all but the first"])
    points = indices_of(slices)
    points = (points - np.array(SHAPE) * (points > 3)).reshape(-1, 3)
    data, updates = draw(SHAPE), draw(len(points))
    [found] = compute({"x": data, "u": updates}, scatter("add"), {"points": points}).outputs
    expected = written(data, slices, updates.reshape(4, 5, 6), "add")
    np.testing.assert_array_equal(found, expected)


def test_other_indices_are_no_slice():
    points = indices_of(as_tuple(SLICES["all but the first"])).reshape(-1, 3)
    assert slices_of_indices(points, SHAPE) == (
        AxisSlice(0, 1, 4),
        AxisSlice(1, 1, 5),
        AxisSlice(1, 1, 6),
    )
    swapped, twice, outside = points.copy(), points.copy(), points.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    twice[4] = twice[3]
    outside[0, 0] = 9
    uneven = indices_of((np.array([0, 1, 3]),)).reshape(-1, 1)
    for other in (swapped, twice, outside, points[:-1], points[::-1][1:], points[:0]):
        assert slices_of_indices(other, SHAPE) is None
    assert slices_of_indices(uneven, SHAPE[:1]) is None


@pytest.mark.parametrize("change", ["swapped", "twice"])
def test_a_scatter_that_is_no_slice_has_the_same_answer_as_before(change):
    points = indices_of((slice(1, 4),)).reshape(-1, 1)
    points = points[[1, 0, 2]] if change == "swapped" else points[[0, 0, 1]]
    data, updates = draw(SHAPE), draw((3, *SHAPE[1:]))
    [found] = compute({"x": data, "u": updates}, scatter("add"), {"points": points}).outputs
    expected = data.copy()
    np.add.at(expected, points[:, 0], updates)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_axes_behind_the_slice_may_be_open():
    columns = tirx.Var("batch", "int64")
    x, updates = (relax.TensorType([rows, columns], "float32") for rows in (5, 2))
    low = lowered({"x": x, "u": updates}, scatter(), {"points": np.array([[1], [3]])})
    data, new = draw((5, 9)), draw((2, 9))
    expected = data.copy()
    expected[1:4:2] = new
    np.testing.assert_array_equal(run(low, [data, new])[0], expected)


def test_a_tensor_full_of_one_number_is_not_stored():
    full, updates = np.full((40, 80), 2.5, "float32"), draw((40, 40))
    points = indices_of((slice(None), slice(0, None, 2)), full.shape)
    answer = compute(
        {"u": updates}, lambda emit, u, x, points: scatter("mul")(emit, x, u, points),
        {"x": full, "points": points},
    )  # fmt: skip
    full[:, ::2] *= updates
    np.testing.assert_array_equal(answer.outputs[0], full)
    assert not answer.lowered.parameters


class InterleavedColumns(torch.nn.Module):
    """An encoding of positions: sines and cosines side by side."""

    def forward(self, x, sines, cosines):
        x = x + 1
        x[..., 0::2], x[..., 1::2] = sines, cosines
        return x


class BiasedScores(torch.nn.Module):
    """MViTv2's attention scores: all but the first row and column get a bias."""

    def forward(self, q, k, bias):
        scores = q @ k.transpose(-2, -1)
        scores[:, :, 1:, 1:] += bias
        return scores.softmax(-1)


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (InterleavedColumns(), [(1, 9, 20), (1, 9, 10), (1, 9, 10)]),
        (BiasedScores(), [(1, 2, 17, 8), (1, 2, 17, 8), (1, 2, 16, 16)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_torch_exports_as_an_index_of_each_element_has_none(model, shapes, tmp_path):
    inputs = tuple(torch.zeros(shape) for shape in shapes)
    path = str(tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter
        torch.onnx.export(model, inputs, path, dynamo=False, opset_version=17)
    imported = importers.import_model(Model("m", path), tmp_path)
    low = lower_module(imported.module, imported.weights, target(), {})
    assert not low.parameters
    [found] = run(low, [imported.example[spec.name] for spec in imported.inputs])
    [expected] = imported.reference(imported.example)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
