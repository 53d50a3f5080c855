"""Where ONNX Runtime's Fourier transforms are inexact, the reference has better ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from farm.importers.onnx.reference.exact_transforms import with_exact_transforms

numbers = np.random.default_rng(20)


def windows_of(x, count, step):
    return np.lib.stride_tricks.sliding_window_view(x[0], count)[::step].astype(np.float64)


@pytest.mark.parametrize(
    ("count", "one_sided", "windowed"),
    [
        *((320, None, True), (320, 0, False), (400, None, False), (400, 0, True)),
        *((399, None, True), (399, 0, False)),
    ],
)
def test_the_reference_of_windows_is_exact(count, one_sided, windowed, onnx_file, load, agree):
    window = np.hanning(count).astype(np.float32)
    given = ["x", "step", "window"] if windowed else ["x", "step", "", "length"]
    attributes = {} if one_sided is None else {"onesided": one_sided}
    weights = {"step": np.array(160), "window": window, "length": np.array(count)}
    bins = count // 2 + 1 if one_sided is None else count
    rows = 1 + (2000 - count) // 160
    path = onnx_file(
        [helper.make_node("STFT", given, ["y"], **attributes)],
        {"x": [1, 2000]},
        {"y": [1, rows, bins, 2]},
        {name: weights[name] for name in given[1:] if name},
    )
    imported = load(path)
    x = imported.example["x"]
    [made] = imported.reference({"x": x})
    frames = windows_of(x, count, 160) * (window if windowed else 1)
    expected = np.fft.fft(frames)[:, :bins]
    error = np.abs(made[0, ..., 0] + 1j * made[0, ..., 1] - expected)
    assert error.max() < 2e-6 * np.abs(expected).max()
    agree(imported)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    ("parts", "axis", "length", "inverse", "one_sided"),
    [
        *((parts, 1, None, 0, 0) for parts in (1, 2)),
        *((parts, 2, 30, 0, 0) for parts in (1, 2)),
        *((parts, 2, None, 1, 0) for parts in (1, 2)),
        *((parts, 1, 9, 1, 0) for parts in (1, 2)),
        (1, 2, None, 0, 1),
        (1, 1, 7, 0, 1),
    ],
)
def test_the_reference_of_a_transform_is_exact(
    axis, length, inverse, one_sided, parts, opset, onnx_file, load
):
    shape = [2, 11, 50, parts]
    given = ["x"] + (["length"] if length else [""] if opset >= 20 else [])
    attributes = {"inverse": inverse, "onesided": one_sided}
    weights = {"length": np.array(length)} if length else {}
    if opset >= 20:
        given.append("axis")
        weights["axis"] = np.array(axis)
    else:
        attributes["axis"] = axis
    count = length or shape[axis]
    result = [*shape[:3], 2]
    result[axis] = count // 2 + 1 if one_sided else count
    node = helper.make_node("DFT", given, ["y"], **attributes)
    imported = load(onnx_file([node], {"x": shape}, {"y": result}, weights, opset=opset))
    x = imported.example["x"].astype(np.float64)
    [made] = imported.reference(imported.example)
    signal = x[..., 0] + 1j * x[..., 1] if parts == 2 else x[..., 0]
    expected = (np.fft.ifft if inverse else np.fft.fft)(signal, count, axis)
    expected = np.take(expected, range(result[axis]), axis)
    error = np.abs(made[..., 0] + 1j * made[..., 1] - expected)
    assert error.max() < 2e-6 * np.abs(expected).max()


def test_the_layers_of_the_reference_are_exact_and_have_the_names_of_the_file(onnx_file, load):
    weights = {"step": np.array(160), "window": np.hanning(320).astype(np.float32)}
    nodes = [
        helper.make_node("STFT", ["x", "step", "window"], ["sums"], name="windows"),
        helper.make_node("Abs", ["sums"], ["y"], name="size"),
    ]
    imported = load(onnx_file(nodes, {"x": [1, 2000]}, {"y": [1, 11, 161, 2]}, weights))
    layers = {name: value for name, _, value in imported.layers(imported.example)}
    [size] = imported.reference(imported.example)
    assert np.array_equal(np.abs(layers["windows"]), size)
    assert np.array_equal(layers["size"], size)


def test_a_transform_in_a_branch_is_exact(onnx_file, load):
    ends = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 11, 161, 2])]
    step, window = np.array(160), np.hanning(320).astype(np.float32)
    constants = [numpy_helper.from_array(step, "step"), numpy_helper.from_array(window, "window")]
    branches = {
        f"{name}_branch": helper.make_graph(
            [
                helper.make_node(operator, ["x"], ["z"]),
                helper.make_node("STFT", ["z", "step", "window"], ["r"]),
            ],
            name,
            [],
            ends,
            constants,
        )
        for name, operator in (("then", "Relu"), ("else", "Neg"))
    }
    path = onnx_file(
        [
            helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "limit"], ["yes"]),
            helper.make_node("If", ["yes"], ["y"], **branches),
        ],
        {"x": [1, 2000]},
        {"y": [1, 11, 161, 2]},
        {"limit": np.array(100, np.float32)},
    )
    imported = load(path)
    x = imported.example["x"]
    [made] = imported.reference({"x": x})
    expected = np.fft.rfft(windows_of(-x, 320, 160) * window)
    error = np.abs(made[0, ..., 0] + 1j * made[0, ..., 1] - expected)
    assert error.max() < 2e-6 * np.abs(expected).max()


def test_a_transform_of_a_power_of_two_is_onnx_runtimes(graph):
    model = graph(
        [helper.make_node("STFT", ["x", "step", "window"], ["y"])],
        {"x": [1, 2000]},
        {"y": [1, 10, 257, 2]},
        {"step": np.array(160), "window": np.hanning(512).astype(np.float32)},
    )
    assert with_exact_transforms(model, model) is None
    assert isinstance(model, onnx.ModelProto)
