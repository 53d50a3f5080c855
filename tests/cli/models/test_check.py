"""farm check: what is in a model, whether it would build, and all that stands in the way, at
once.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from farm.cli import cli
from farm.errors import FarmError

node = helper.make_node


def save(
    path: Path,
    *nodes: onnx.NodeProto,
    shape: tuple[int | str, ...] = (1, 4),
    dtype: int = TensorProto.FLOAT,
) -> Path:
    ends = [helper.make_tensor_value_info(name, dtype, shape) for name in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(
        helper.make_model(
            helper.make_graph(list(nodes), "test", ends[:1], ends[1:]),
            opset_imports=opsets,
            ir_version=9,
        ),
        path,
    )
    return path


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["check", "-q", *arguments])

    return run


def test_a_model_that_would_build_is_described_and_gives_zero(check, tmp_path):
    path = save(tmp_path / "net.onnx", node("Relu", ["x"], ["a"]), node("Add", ["a", "x"], ["y"]))
    done = check(str(path), "--profile", "rasp3b", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["schema"] == "farm/check/1" and said["builds"] is True
    assert said["outline"]["operators"] == {"Relu": 1, "Add": 1}
    assert said["outline"]["inputs"] == ["x float32 [1, 4]"]
    assert said["operations"] > 0 and said["working_bytes"] == 16


@pytest.mark.parametrize(("dtype", "each"), [(TensorProto.UINT8, 1), (TensorProto.INT64, 8)])
def test_memory_is_counted_in_values_of_their_type(check, tmp_path, dtype, each):
    path = save(tmp_path / "net.onnx", node("Add", ["x", "x"], ["y"]), dtype=dtype)
    done = check(str(path), "--profile", "rasp3b", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["working_bytes"] == 4 * each


def test_every_operator_that_is_not_supported_is_named_at_once_with_its_place(check, tmp_path):
    nodes = [
        node("Wobble", ["x"], ["a"], name="first", domain="acme"),
        node("Relu", ["a"], ["b"]),
        node("Wobble", ["b"], ["c"], name="second", domain="acme"),
        node("Mod", ["c", "x"], ["y"], name="rest"),
    ]
    nodes[3].input[0] = "x"
    path = save(tmp_path / "net.onnx", *nodes)
    done = check(str(path))
    assert done.exit_code == 3
    assert "unsupported acme::Wobble" in done.stdout and "at first, second" in done.stdout
    assert "unsupported Mod: fmod=0" in done.stdout and "at rest" in done.stdout
    assert "Traceback" not in done.output


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_what_is_no_model_is_an_error_in_words_and_json_all_the_same(check, tmp_path, content):
    (tmp_path / "net.onnx").write_bytes(content)
    done = check(str(tmp_path / "net.onnx"), "--json")
    assert done.exit_code == 3
    said = json.loads(done.stdout)
    assert said["builds"] is False and said["failure"]["kind"] == "ModelError"


def test_a_profile_that_is_not_there_is_refused(check, tmp_path):
    path = save(tmp_path / "net.onnx", node("Relu", ["x"], ["y"]))
    assert isinstance(check(str(path), "--profile", "raspberry").exception, FarmError)


def test_a_gpu_that_nothing_can_be_built_for_is_named(check, tmp_path):
    path = save(tmp_path / "net.onnx", node("Relu", ["x"], ["y"]))
    said = json.loads(check(str(path), "--profile", "jetson-nano", "--json").stdout)
    assert said["builds"] is False
    assert "sm_53" in said["failure"]["what"]
    assert (
        json.loads(check(str(path), "--profile", "jetson-orin-nano", "--json").stdout)["builds"]
        is True
    )


def test_weights_that_are_constant_nodes_are_counted(check, tmp_path):
    weights = onnx.numpy_helper.from_array(np.ones((3, 4), np.float32))
    axis = onnx.numpy_helper.from_array(np.array([0], np.int64))
    nodes = [
        node("Constant", [], ["w"], value=weights),
        node("Constant", [], ["axis"], value=axis),
        node("ReduceMean", ["w"], ["mean"], axes=[0]),
        node("Add", ["x", "mean"], ["a"]),
        node("Unsqueeze", ["a", "axis"], ["b"]),
        node("Squeeze", ["b", "axis"], ["y"]),
    ]
    said = json.loads(check(str(save(tmp_path / "net.onnx", *nodes)), "--json").stdout)
    assert (said["outline"]["parameters"], said["outline"]["parameter_bytes"]) == (12, 48)


def test_what_a_stated_value_leaves_unused_is_not_counted(check, tmp_path):
    def branch(operator: str, weight: np.ndarray) -> onnx.GraphProto:
        ends = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1, 4])]
        return helper.make_graph(
            [node(operator, ["x", "w"], ["inner"])],
            operator,
            [],
            ends,
            [onnx.numpy_helper.from_array(weight, "w")],
        )

    branches = {
        "then_branch": branch("Mul", np.ones(4, np.float32)),
        "else_branch": branch("MatMul", np.ones((4, 4), np.float32)),
    }
    nodes = [node("Equal", ["sr", "rate"], ["yes"]), node("If", ["yes"], ["y"], **branches)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    rate = onnx.numpy_helper.from_array(np.array(16000, np.int32), "rate")
    inputs = [ends[0], helper.make_tensor_value_info("sr", TensorProto.INT32, [])]
    graph = helper.make_graph(nodes, "test", inputs, ends[1:], [rate])
    path = tmp_path / "net.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )

    def counted(*options: str) -> tuple[dict[str, int], int]:
        outline = json.loads(check(str(path), "--json", *options).stdout)["outline"]
        return outline["operators"], outline["parameters"]

    assert counted() == ({"Equal": 1, "If": 1, "Mul": 1, "MatMul": 1}, 21)
    assert counted("--value", "sr=16000") == ({"Mul": 1}, 4)
    assert counted("--value", "sr:16000") == ({"Mul": 1}, 4)
    assert counted("--value", "sr=8000") == ({"MatMul": 1}, 16)


def test_an_open_axis_is_shown_by_its_name_only_if_somebody_gave_it_one(check, tmp_path):
    path = save(
        tmp_path / "net.onnx", node("Relu", ["x"], ["y"]), shape=("unk__215", 4, "width", "?")
    )
    outline = json.loads(check(str(path), "--shape", "x:1,4,2,2", "--json").stdout)["outline"]
    assert outline["outputs"] == ["y float32 [open, 4, width, open]"]
