"""Whole ONNX models of every odd kind: right on an agent on this machine, or refused with the
reason; never wrong, never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import graph, node, save

from farm import executor, importers
from farm.checked_model_import import prepare_model
from farm.compiler.build import find_or_build_model
from farm.compiler.lower import lower_module, resolve_target
from farm.errors import FarmError, ModelError, WrongAnswer
from farm.types import BuildWithAgent, Device, DeviceResults, MeasurementSettings, Model, Profile

HOST = Profile(
    "x86",
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "native"},
    "x86_64-linux-gnu",
    agent="x86_64",
)
numbers = np.random.default_rng(5)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return numbers.standard_normal(shape).astype(dtype)


@pytest.fixture
def run(
    tmp_path: Path, context, cache, agents: Callable[[str], Path]
) -> Callable[..., DeviceResults]:
    """Prepares, builds and runs a model on the agent of this machine."""

    def once(body: onnx.GraphProto, opset: int = 17) -> DeviceResults:
        model = Model("model", str(save(tmp_path / "model.onnx", body, opset)))
        prepared = prepare_model(context, model, HOST, cache)
        artifact = find_or_build_model(context, prepared, HOST, cache)
        return executor.measure_job(
            context,
            Device("here", HOST, "local:"),
            BuildWithAgent(model, prepared, artifact, agents("x86_64")),
            MeasurementSettings.once(),
        )

    return once


def branch(nodes, output, shape):
    return graph(nodes, {}, {output: shape})


SCALAR: list[int] = []
CONVOLUTION = {"w": draw(16, 3, 3, 3)}
NORM = {"s": draw(16), "b": draw(16), "m": draw(16), "v": np.abs(draw(16)) + 0.1}
LOOP = graph(
    [node("Add", ["v", "v"], ["w"]), node("Identity", ["c"], ["d"])],
    {"i": ("int64", SCALAR), "c": ("bool", SCALAR), "v": [2, 5]},
    {"d": ("bool", SCALAR), "w": [2, 5]},
)
WORKS = {
    "the places of what is not zero": graph(
        [node("NonZero", ["x"], ["y"])], {"x": [2, 5]}, {"y": ("int64", [2, "k"])}
    ),
    "a sum over what is selected by value": graph(
        [
            node("NonZero", ["x"], ["a"]),
            node("Cast", ["a"], ["b"], to=onnx.TensorProto.FLOAT),
            node("ReduceSum", ["b"], ["y"], keepdims=0),
        ],
        {"x": [2, 5]},
        {"y": SCALAR},
    ),
    "clip by attributes": graph(
        [node("Clip", ["x"], ["y"], min=0.0, max=6.0)], {"x": [2, 5]}, {"y": [2, 5]}
    ),
    "clip of integers": graph(
        [node("Clip", ["x", "a", "b"], ["y"])],
        {"x": ("int64", [9])},
        {"y": ("int64", [9])},
        {"a": np.int64(0), "b": np.int64(1)},
    ),
    "a batch of open size": graph([node("Relu", ["x"], ["y"])], {"x": ["n", 5]}, {"y": ["n", 5]}),
    "tokens": graph(
        [node("Gather", ["w", "x"], ["y"])],
        {"x": ("int64", [1, 7])},
        {"y": [1, 7, 8]},
        {"w": draw(20, 8)},
    ),
    "an output that is an input": graph(
        [node("Identity", ["x"], ["y"])], {"x": [2, 5]}, {"y": [2, 5]}
    ),
    "the same output twice": graph(
        [node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])],
        {"x": [2, 5]},
        {"y": [2, 5], "z": [2, 5]},
    ),
    "outputs that are constants": graph(
        [
            node("Relu", ["x"], ["y"]),
            node("Identity", ["w"], ["z"]),
            node("Identity", ["c"], ["t"]),
        ],
        {"x": [2, 5]},
        {"y": [2, 5], "z": [30], "t": SCALAR},
        {"w": draw(30), "c": np.float32(3)},
    ),
    "nothing but a reshape": graph(
        [node("Flatten", ["x"], ["y"])], {"x": [1, 2, 5]}, {"y": [1, 10]}
    ),
    "no inputs": graph([node("Relu", ["w"], ["y"])], {}, {"y": [30]}, {"w": draw(30)}),
    "scalars in and out": graph(
        [node("Add", ["a", "b"], ["c"]), node("Mul", ["x", "c"], ["y"])],
        {"x": SCALAR},
        {"y": SCALAR},
        {"a": np.float32(2), "b": np.float32(3)},
    ),
    "an input that is not used": graph(
        [node("Relu", ["x"], ["y"])], {"x": [2], "z": [3]}, {"y": [2]}
    ),
    "double precision": graph(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": ("float64", [2, 5])},
        {"y": ("float64", [2, 8])},
        {"w": draw(5, 8, dtype="float64")},
    ),
    "half precision": graph(
        [node("Conv", ["x", "w"], ["y"])],
        {"x": ("float16", [1, 3, 8, 8])},
        {"y": ("float16", [1, 16, 6, 6])},
        {"w": draw(16, 3, 3, 3, dtype="float16")},
    ),
    "constants of 64 bits": graph(
        [
            node("Cast", ["a"], ["c"], to=onnx.TensorProto.INT64),
            node("Add", ["c", "b"], ["d"]),
            node("Add", ["x", "d"], ["y"]),
        ],
        {"x": ("int64", [3])},
        {"y": ("int64", [3])},
        {"a": np.array([1, 2, 3], "int32"), "b": np.array([1 << 40, -(1 << 60), 7])},
    ),
    "constants of integers that are divided": graph(
        [node("Div", ["a", "s"], ["b"]), node("Add", ["x", "b"], ["y"])],
        {"x": ("int64", [3])},
        {"y": ("int64", [3])},
        {"s": np.int64(2), "a": np.array([-7, 7, (1 << 60) + 1])},
    ),
    "tied weights": graph(
        [
            node("Gather", ["w", "x"], ["e"]),
            node("Transpose", ["w"], ["t"]),
            node("MatMul", ["e", "t"], ["y"]),
        ],
        {"x": ("int64", [1, 7])},
        {"y": [1, 7, 20]},
        {"w": draw(20, 8)},
    ),
    "a weight used twice": graph(
        [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "w"], ["y"])],
        {"x": [2, 16]},
        {"y": [2, 16]},
        {"w": draw(16, 16)},
    ),
    "an input with the name of a parameter": graph(
        [node("MatMul", ["weight0", "w"], ["y"])],
        {"weight0": [2, 16]},
        {"y": [2, 16]},
        {"w": draw(16, 16)},
    ),
    "names that are no identifiers": graph(
        [node("MatMul", ["a/b:0", "w"], ["y y"])],
        {"a/b:0": [2, 16]},
        {"y y": [2, 16]},
        {"w": draw(16, 16)},
    ),
    "convolutions in both branches of a choice": graph(
        [
            node(
                "If",
                ["c"],
                ["z"],
                then_branch=branch([node("Conv", ["x", "w"], ["t"])], "t", [1, 16, 6, 6]),
                else_branch=branch(
                    [node("Conv", ["x", "w"], ["u"]), node("Clip", ["u", "low", "high"], ["e"])],
                    "e",
                    [1, 16, 6, 6],
                ),
            ),
            node("Relu", ["z"], ["y"]),
        ],
        {"x": [1, 3, 8, 8], "c": ("bool", SCALAR)},
        {"y": [1, 16, 6, 6]},
        {**CONVOLUTION, "low": np.float32(0), "high": np.float32(1)},
    ),
    "dropout": graph(
        [node("Dropout", ["x"], ["a"]), node("Relu", ["a"], ["y"])], {"x": [2, 5]}, {"y": [2, 5]}
    ),
    "a maximum that TVM cannot lay out, after a convolution": graph(
        [node("Conv", ["x", "w"], ["a"]), node("Max", ["a", "m"], ["y"])],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 16, 6, 6]},
        {**CONVOLUTION, "m": np.float32(0.5)},
    ),
    "a batch norm whose convolution is used again": graph(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("BatchNormalization", ["a", "s", "b", "m", "v"], ["z"]),
            node("Add", ["a", "z"], ["y"]),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 16, 6, 6]},
        {**CONVOLUTION, **NORM},
    ),
    "a batch norm after a transposed convolution": graph(
        [
            node("ConvTranspose", ["x", "w"], ["a"], strides=[2, 2]),
            node("BatchNormalization", ["a", "s", "b", "m", "v"], ["y"]),
        ],
        {"x": [1, 3, 5, 5]},
        {"y": [1, 16, 11, 11]},
        {"w": draw(3, 16, 3, 3), **NORM},
    ),
    "a convolution whose weight is standardized, as torch exports it": graph(
        [
            node("Reshape", ["w", "rows"], ["a"]),
            node(
                "BatchNormalization",
                ["a", "s", "b", "m", "v"],
                ["c", "running mean", "running variance"],
                training_mode=1,
            ),
            node("Reshape", ["c", "shape"], ["d"]),
            node("Conv", ["x", "d"], ["y"]),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 16, 6, 6]},
        {**CONVOLUTION, **NORM, "rows": [1, 16, 27], "shape": [16, 3, 3, 3]},
    ),
    "a batch norm by the batch's own mean and variance": graph(
        [
            node(
                "BatchNormalization",
                ["x", "s", "b", "m", "v"],
                ["y", "running mean", "running variance"],
                training_mode=1,
                epsilon=0.3,
            )
        ],
        {"x": [3, 16, 6, 6]},
        {"y": [3, 16, 6, 6]},
        NORM,
    ),
    "a convolution whose weight is an input": graph(
        [node("Conv", ["x", "w"], ["y"])],
        {"x": [1, 3, 8, 8], "w": [16, 3, 3, 3]},
        {"y": [1, 16, 6, 6]},
    ),
    "channels shuffled between convolutions": graph(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Reshape", ["a", "s1"], ["b"]),
            node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3, 4]),
            node("Reshape", ["c", "s2"], ["d"]),
            node("Conv", ["d", "w2"], ["y"]),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 8, 6, 6]},
        {
            **CONVOLUTION,
            "w2": draw(8, 16, 1, 1),
            "s1": np.array([1, 2, 8, 6, 6]),
            "s2": np.array([1, 16, 6, 6]),
        },
    ),
    "NaN and infinities among the weights": graph(
        [node("Add", ["x", "w"], ["y"])],
        {"x": [4]},
        {"y": [4]},
        {"w": np.array([np.nan, np.inf, -np.inf, -0.0], "float32")},
    ),
    "a loop": graph(
        [node("Loop", ["n", "t", "x"], ["y"], body=LOOP)],
        {"x": [2, 5]},
        {"y": [2, 5]},
        {"n": np.int64(3), "t": np.bool_(True)},
    ),
    "bytes in, truth out": graph(
        [node("Cast", ["x"], ["a"], to=onnx.TensorProto.FLOAT), node("Greater", ["a", "w"], ["y"])],
        {"x": ("uint8", [4, 9])},
        {"y": ("bool", [4, 9])},
        {"w": np.full(9, 0.5, "float32")},
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_model_is_right_with(name, run):
    samples = run(WORKS[name], opset=6 if name == "clip by attributes" else 17)
    assert samples.agreement.right, samples.agreement


REFUSED: dict[str, tuple[Any, type[FarmError], str]] = {
    "a loop whose number of runs is an input": (
        graph(
            [node("Loop", ["n", "t", "x"], ["y"], body=LOOP)],
            {"x": [2, 5], "n": ("int64", SCALAR)},
            {"y": [2, 5]},
            {"t": np.bool_(True)},
        ),
        ModelError,
        "Loop",
    ),
    "a shape that depends on the data": (
        graph([node("Unique", ["x"], ["y"])], {"x": [2, 5]}, {"y": ["k"]}),
        ModelError,
        "Unique",
    ),
    "a result that is not the reference's": (
        graph(  # TVM's maximum over an axis leaves NaN out
            [
                node("Sqrt", ["x"], ["nan_and_numbers"]),
                node("ReduceMax", ["nan_and_numbers"], ["y"], axes=[1]),
            ],
            {"x": [1, 16]},
            {"y": [1, 1]},
        ),
        WrongAnswer,
        "not what onnxruntime",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_is_refused_for(name, run, cache):
    body, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        run(body)
    assert words in caught.value.what
    assert caught.value.why and caught.value.fix
    assert not (cache / "models").exists()


def test_bounds_that_come_as_tensors_put_no_transposes_between_convolutions(tmp_path):
    body = graph(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Clip", ["a", "low", "high"], ["b"]),
            node("Conv", ["b", "v"], ["y"]),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 16, 4, 4]},
        {**CONVOLUTION, "v": draw(16, 16, 3, 3), "low": np.float32(0), "high": np.float32(6)},
    )
    imported = importers.import_model(
        Model("model", str(save(tmp_path / "model.onnx", body))), tmp_path
    )
    lowered = lower_module(imported.module, imported.weights, resolve_target(HOST), {})
    rules = sorted(kernel.rule for kernel in lowered.kernels if kernel.operations)
    assert rules == ["convolution", "convolution", "transpose"]  # one, at the end
