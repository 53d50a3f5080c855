"""Loops of an ONNX graph: those whose number of runs is known are unrolled, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import host_build
import numpy as np
import onnx
import pytest
from onnx_models import graph, node, save

from farm import importers
from farm.errors import ModelError
from farm.types import Model

NUMBER, GOING = ("int64", []), ("bool", [])


def body(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    **weights: Any,
) -> onnx.GraphProto:
    return graph(nodes, inputs, outputs, weights)


def growing(condition: list[onnx.NodeProto] | None = None, **weights: Any) -> onnx.GraphProto:
    """state = tanh(state * w) + number, with `w` of the graph around; the states are collected."""
    nodes = [
        node("Mul", ["state", "w"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("Cast", ["number"], ["c"], to=onnx.TensorProto.FLOAT),
        node("Add", ["b", "c"], ["next"]),
        node("Identity", ["next"], ["each"]),
        *(condition or [node("Identity", ["going"], ["on"])]),
    ]
    inputs = {"number": NUMBER, "going": GOING, "state": [2, 3]}
    return body(nodes, inputs, {"on": GOING, "next": [2, 3], "each": [2, 3]}, **weights)


def imported(path: Path) -> importers.ImportedModel:
    return importers.import_model(Model("loop", str(path)), path.parent)


def agrees(path: Path) -> None:
    made = imported(path)
    expected = made.reference(made.example)
    for ours, theirs in zip(host_build.answers(made), expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-6)


def looping(path: Path, inner: onnx.GraphProto, runs: int, opset: int = 17, **more: Any) -> Path:
    outer = graph(
        [node("Loop", ["runs", "", "x"], ["y", "all"], body=inner)],
        {"x": [2, 3], **more},
        {"y": [2, 3], "all": [runs, 2, 3]},
        {"runs": np.int64(runs), "w": np.float32(0.7)},
    )
    return save(path, outer, opset)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_loop_of_a_known_number_of_runs_is_unrolled(opset, tmp_path):
    path = looping(tmp_path / "loop.onnx", growing(), 4, opset)
    agrees(path)
    assert importers.summary.summarize_onnx_or_tflite_file(Model("loop", str(path))).problems == ()


def test_a_number_that_the_body_declares_as_a_tensor_of_one_element_bounds_a_slice(tmp_path):
    """torch writes tensor_split so."""
    nodes = [
        node("Gather", ["starts", "number"], ["start"], axis=0),
        node("Add", ["number", "one"], ["following"]),
        node("Gather", ["starts", "following"], ["end"], axis=0),
        node("Slice", ["x", "start", "end", "one"], ["each"]),
        node("Identity", ["going"], ["on"]),
    ]
    inner = body(
        nodes,
        {"number": ("int64", [1]), "going": GOING},
        {"on": GOING, "each": [2, 2]},
        starts=np.array([0, 2, 4]),
        one=np.array([1]),
    )
    outer = graph(
        [node("Loop", ["runs", ""], ["all"], body=inner)],
        {"x": [2, 4]},
        {"all": [2, 2, 2]},
        {"runs": np.int64(2)},
    )
    agrees(save(tmp_path / "loop.onnx", outer))


def test_a_loop_ends_where_its_condition_is_known_to_be_false(tmp_path):
    inner = growing([node("Less", ["number", "last"], ["on"])], last=np.int64(2))
    outer = graph(
        [node("Loop", ["", "yes", "x"], ["y", "all"], body=inner)],
        {"x": [2, 3]},
        {"y": [2, 3], "all": [3, 2, 3]},
        {"yes": np.bool_(True), "w": np.float32(0.7)},
    )
    agrees(save(tmp_path / "loop.onnx", outer))


def test_a_loop_in_a_loop_reads_the_names_of_both(tmp_path):
    inner = body(
        [
            node("Add", ["inside", "sum"], ["total"]),
            node("Mul", ["total", "w"], ["less"]),
            node("Identity", ["go"], ["on2"]),
        ],
        {"n": NUMBER, "go": GOING, "inside": [2, 3]},
        {"on2": GOING, "less": [2, 3]},
    )
    outer = body(
        [
            node("Add", ["state", "x"], ["sum"]),
            node("Loop", ["three", "", "state"], ["next"], body=inner),
            node("Identity", ["going"], ["on"]),
        ],
        {"number": NUMBER, "going": GOING, "state": [2, 3]},
        {"on": GOING, "next": [2, 3]},
        three=np.int64(3),
    )
    whole = graph(
        [node("Loop", ["two", "", "x"], ["y"], body=outer)],
        {"x": [2, 3]},
        {"y": [2, 3]},
        {"two": np.int64(2), "w": np.float32(0.7)},
    )
    agrees(save(tmp_path / "loop.onnx", whole))


def test_a_branch_in_a_loop_that_each_run_decides_anew_is_of_that_run(tmp_path):
    adding = body(
        [
            node("Cast", ["number"], ["c"], to=onnx.TensorProto.FLOAT),
            node("Mul", ["c", "w"], ["d"]),
            node("Add", ["state", "d"], ["sum"]),
        ],
        {},
        {"sum": [2, 3]},
    )
    turning = body([node("Neg", ["state"], ["turned"])], {}, {"turned": [2, 3]})
    inner = body(
        [
            node("Mod", ["number", "two"], ["rest"]),
            node("Cast", ["rest"], ["odd"], to=onnx.TensorProto.BOOL),
            node("If", ["odd"], ["next"], then_branch=adding, else_branch=turning),
            node("Identity", ["going"], ["on"]),
        ],
        {"number": NUMBER, "going": GOING, "state": [2, 3]},
        {"on": GOING, "next": [2, 3]},
        two=np.int64(2),
    )
    whole = graph(
        [node("Loop", ["six", "", "x"], ["y"], body=inner)],
        {"x": [2, 3]},
        {"y": [2, 3]},
        {"six": np.int64(6), "w": np.float32(0.7)},
    )
    agrees(save(tmp_path / "loop.onnx", whole))


def test_a_scan_runs_along_any_axis_in_both_directions(tmp_path):
    inner = body(
        [
            node("Add", ["state", "p"], ["a"]),
            node("Mul", ["a", "q"], ["next"]),
            node("Neg", ["next"], ["each"]),
        ],
        {"state": [3], "p": [3], "q": [3]},
        {"next": [3], "each": [3]},
    )
    scan = node(
        "Scan",
        ["start", "x", "z"],
        ["y", "all"],
        body=inner,
        num_scan_inputs=2,
        scan_input_axes=[1, 0],
        scan_input_directions=[1, 0],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    whole = graph([scan], {"start": [3], "x": [3, 5], "z": [5, 3]}, {"y": [3], "all": [3, 5]})
    agrees(save(tmp_path / "scan.onnx", whole))


@pytest.mark.parametrize("known", ["the condition", "the number"])
def test_a_loop_whose_runs_depend_on_values_is_refused_with_what_to_do(known, tmp_path):
    condition = [
        node("ReduceSum", ["next"], ["sum"], keepdims=0),
        node("Less", ["sum", "w"], ["on"]),
    ]
    inner = growing(condition if known == "the number" else None)
    more = {} if known == "the number" else {"many": NUMBER}
    outer = graph(
        [node("Loop", [*(more or ["runs"]), "", "x"], ["y", "all"], body=inner)],
        {"x": [2, 3], **more},
        {"y": [2, 3], "all": ["n", 2, 3]},
        {"runs": np.int64(3), "w": np.float32(0.7)},
    )
    path = save(tmp_path / "loop.onnx", outer)
    with pytest.raises(ModelError) as caught:
        imported(path)
    said = " ".join(caught.value.parts())
    assert "Loop" in said and "--value" in said and "one step" in said


def test_the_number_of_runs_can_be_stated(tmp_path):
    whole = graph(
        [node("Loop", ["runs", "", "x"], ["y", "all"], body=growing())],
        {"x": [2, 3], "runs": NUMBER},
        {"y": [2, 3], "all": ["n", 2, 3]},
        {"w": np.float32(0.7)},
    )
    path = save(tmp_path / "loop.onnx", whole)
    made = importers.import_model(Model("loop", str(path), values={"runs": 3}), path.parent)
    for ours, theirs in zip(host_build.answers(made), made.reference(made.example), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-6)


def test_a_loop_without_end_is_refused_and_not_unrolled_for_ever(tmp_path):
    whole = graph(
        [node("Loop", ["", "yes", "x"], ["y", "all"], body=growing())],
        {"x": [2, 3]},
        {"y": [2, 3], "all": ["n", 2, 3]},
        {"w": np.float32(0.7), "yes": np.bool_(True)},
    )
    with pytest.raises(ModelError) as caught:
        imported(save(tmp_path / "loop.onnx", whole))
    assert "too large" in " ".join(caught.value.parts())
