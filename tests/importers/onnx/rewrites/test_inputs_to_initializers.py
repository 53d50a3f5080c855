"""An input whose value the user states is a constant: folded, gone from the inputs, and fed to the
reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_build
import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from farm import importers
from farm.cli import cli
from farm.errors import ModelError, UsageError
from farm.types import Model

node = helper.make_node
SR = (TensorProto.INT64, [])


@pytest.fixture
def voice(onnx_file) -> Path:
    """As voice models choose: Relu at 16000, Neg at any other rate."""
    ends = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2, 3])]
    branches = {
        "then_branch": helper.make_graph([node("Relu", ["x"], ["inner"])], "then", [], ends),
        "else_branch": helper.make_graph([node("Neg", ["x"], ["inner"])], "else", [], ends),
    }
    nodes = [node("Equal", ["sr", "rate"], ["yes"]), node("If", ["yes"], ["y"], **branches)]
    return onnx_file(
        nodes, {"x": [2, 3], "sr": SR}, {"y": [2, 3]}, {"rate": np.array(16000, np.int64)}
    )


def imported(path: Path, **values: Any) -> importers.ImportedModel:
    return importers.import_model(Model("test", str(path), values=values), path.parent)


@pytest.mark.parametrize(("rate", "operator"), [(16000, "relu"), (8000, "negative")])
def test_an_if_on_a_constant_input_takes_one_branch(rate, operator, voice):
    made = imported(voice, sr=rate)
    assert [spec.name for spec in made.inputs] == ["x"]
    script = made.module.script()
    assert (
        f"R.{'nn.' if operator == 'relu' else ''}{operator}(" in script
        and script.count("R.nn.relu(") + script.count("R.negative(") == 1
    )
    x = made.example["x"]
    np.testing.assert_array_equal(
        made.reference({"x": x})[0], np.maximum(x, 0) if rate == 16000 else -x
    )
    np.testing.assert_array_equal(host_build.answers(made)[0], made.reference({"x": x})[0])


def test_layers_of_a_model_with_a_constant_input_are_computed(voice):
    made = imported(voice, sr=16000)
    assert made.layers is not None
    assert [operator for _, operator, _ in made.layers(made.example)] == ["Equal", "If"]


@pytest.mark.parametrize("shape", [[1, 1], [2, 3], ["n", 1]])
def test_a_number_fills_the_shape_of_its_input(shape, onnx_file):
    path = onnx_file(
        [node("Mul", ["x", "gain"], ["y"])], {"x": [2, 3], "gain": shape}, {"y": [2, 3]}
    )
    made = imported(path, gain=3)
    np.testing.assert_array_equal(host_build.answers(made)[0], made.example["x"] * 3)


def test_a_number_fills_a_stated_shape_and_the_others_share_its_axes(onnx_file):
    path = onnx_file(
        [node("Mul", ["x", "mask"], ["y"])], {"x": ["n", 3], "mask": ["n", 1]}, {"y": ["n", 3]}
    )
    model = Model("test", str(path), shapes={"mask": (4, 1)}, values={"mask": 2})
    made = importers.import_model(model, path.parent)
    assert [(spec.name, spec.shape, spec.open) for spec in made.inputs] == [("x", (4, 3), False)]
    np.testing.assert_array_equal(host_build.answers(made)[0], made.example["x"] * 2)


def test_lists_are_tensors(onnx_file):
    path = onnx_file(
        [node("Mul", ["x", "gain"], ["y"])], {"x": [2, 3], "gain": ["n"]}, {"y": [2, 3]}
    )
    made = imported(path, gain=[1, 2.5, 3])
    np.testing.assert_array_equal(
        host_build.answers(made)[0], made.example["x"] * np.array([1, 2.5, 3], np.float32)
    )


def test_a_number_for_a_shape_beyond_memory_is_refused(onnx_file):
    path = onnx_file(
        [node("Mul", ["x", "mask"], ["y"])], {"x": ["n", 1], "mask": ["n", 1]}, {"y": ["n", 1]}
    )
    model = Model("test", str(path), shapes={"mask": (1 << 50, 1)}, values={"mask": 2})
    with pytest.raises(ModelError, match="memory"):
        importers.import_model(model, path.parent)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"st": 16000}, "no input 'st'"),
        ({"sr": 1.5}, "int64, which takes whole numbers"),
        ({"sr": True}, "int64, which takes whole numbers"),
        ({"sr": 2**70}, "is of another type"),
        ({"sr": [1, 2]}, "of another shape"),
        ({"x": [[1, 2, 3], [1, 2]]}, "is no tensor"),
        ({"sr": 1, "x": [[1, 2, 3], [4, 5, 6]]}, "no input left"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(values, words, voice):
    with pytest.raises(ModelError) as refused:
        imported(voice, **values)
    assert words in f"{refused.value.what}: {refused.value.why}"


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [(TensorProto.UINT8, 0, 255), (TensorProto.INT32, -(2**31), 2**31 - 1)],
)
def test_a_whole_number_is_in_the_range_of_its_input(kind, least, most, onnx_file):
    nodes = [
        node("Cast", ["number"], ["real"], to=TensorProto.DOUBLE),
        node("Add", ["x", "real"], ["y"]),
    ]
    double = (TensorProto.DOUBLE, [2])
    path = onnx_file(nodes, {"x": double, "number": (kind, [])}, {"y": double})
    for number in (least, most):
        made = imported(path, number=number)
        (found,) = made.reference({"x": np.zeros(2)})
        assert found.tolist() == [number, number]
    for number in (least - 1, most + 1):
        with pytest.raises(ModelError, match="out of range"):
            imported(path, number=number)


def test_other_formats_refuse_values():
    with pytest.raises(ModelError, match="cannot be made a constant"):
        importers.import_model(Model("net", "net.tflite", values={"x": 1}), Path())


@pytest.mark.parametrize(
    "text", ["sr", "sr=", "=1", "sr=fast", 'sr="1"', 'sr={"a":1}', "sr=null", "sr=[1,null]"]
)
def test_a_malformed_value_is_a_mistake_of_usage(text, voice):
    result = CliRunner().invoke(cli, ["check", str(voice), "--value", text])
    assert (
        isinstance(result.exception, UsageError)
        and "no input's name and value" in result.exception.what
    )
