"""An `If` that an input decides: both branches are folded and fused like the rest of the graph, and
one is selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import host_build
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from farm import importers
from farm.types import Model

node = helper.make_node
YES = (TensorProto.BOOL, [])


def branch(nodes: Sequence[Any], outputs: dict[str, list[int]], **weights: np.ndarray) -> Any:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in outputs.items()
    ]
    return helper.make_graph(
        list(nodes),
        "branch",
        [],
        ends,
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


def check(path, yes: object) -> importers.ImportedModel:
    """Import the file and compare our build with ONNX Runtime for this condition."""
    made = importers.import_model(Model("test", str(path)), path.parent)
    made.example["yes"] = np.asarray(yes)
    for ours, theirs in zip(host_build.answers(made), made.reference(made.example), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=1e-6)
    return made


@pytest.mark.parametrize("yes", [True, False])
def test_the_graph_is_one_dataflow_block(yes, onnx_file):
    branches = {
        "then_branch": branch(
            [node("Mul", ["x", "w"], ["a"]), node("Relu", ["a"], ["inner"])], {"inner": [2, 3]}
        ),
        "else_branch": branch(
            [node("Add", ["x", "w"], ["b"]), node("Neg", ["b"], ["other"])], {"other": [2, 3]}
        ),
    }
    nodes = [node("If", ["yes"], ["z"], **branches), node("Exp", ["z"], ["y"])]
    made = check(
        onnx_file(
            nodes,
            {"x": [2, 3], "yes": YES},
            {"y": [2, 3]},
            {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
        ),
        yes,
    )
    script = made.module.script()
    assert (
        script.count("R.dataflow()") == 1 and "R.where(" in script and "        if " not in script
    )


@pytest.mark.parametrize("yes", [[True], [False]])
def test_a_condition_of_one_element_selects_all_outputs(yes, onnx_file):
    outputs = {"p": [2, 3], "q": [3]}
    branches = {
        "then_branch": branch(
            [node("Relu", ["x"], ["p"]), node("ReduceSum", ["x", "zero"], ["q"], keepdims=0)],
            outputs,
        ),
        "else_branch": branch(
            [node("Neg", ["x"], ["p"]), node("ReduceMax", ["x"], ["q"], axes=[0], keepdims=0)],
            outputs,
        ),
    }
    nodes = [node("If", ["yes"], ["a", "b"], **branches)]
    check(
        onnx_file(
            nodes,
            {"x": [2, 3], "yes": (TensorProto.BOOL, [1])},
            {"a": [2, 3], "b": [3]},
            {"zero": np.array([0], np.int64)},
        ),
        yes,
    )


@pytest.mark.parametrize("yes", [True, False])
def test_shapes_behind_operators_of_onnx_runtime_are_known_in_branches(yes, onnx_file):
    def flattened(operator: str) -> Any:
        nodes = [
            node(operator, ["x"], ["bent"], domain="com.microsoft"),
            node("Shape", ["bent"], ["extents"]),
            node("Gather", ["extents", "zero"], ["rows"]),
            node("Concat", ["rows", "rest"], ["shape"], axis=0),
            node("Reshape", ["bent", "shape"], ["inner"]),
        ]
        return branch(nodes, {"inner": [2, 6]}, zero=np.array([0]), rest=np.array([-1]))

    branches = {"then_branch": flattened("FastGelu"), "else_branch": flattened("QuickGelu")}
    path = onnx_file(
        [node("If", ["yes"], ["y"], **branches)],
        {"x": [2, 3, 2], "yes": YES},
        {"y": [2, 6]},
        opsets=[helper.make_opsetid("com.microsoft", 1)],
    )
    check(path, yes)


@pytest.mark.parametrize("yes", [True, False])
def test_paddings_computed_in_branches_are_constants_of_their_branch(yes, onnx_file):
    """Both branches use the same names for other numbers, as exporters do."""

    def padded(after: int) -> Any:
        nodes = [
            node(
                "Constant", [], ["one"], value=numpy_helper.from_array(np.array([after], np.int64))
            ),
            node("Mul", ["one", "two"], ["pad"]),
            node("Concat", ["none", "none", "none", "pad"], ["pads"], axis=0),
            node("Pad", ["x", "pads"], ["padded"]),
            node("ReduceMean", ["padded"], ["inner"], axes=[1], keepdims=0),
        ]
        return branch(
            nodes, {"inner": [2]}, two=np.array([2], np.int64), none=np.array([0], np.int64)
        )

    nodes = [node("If", ["yes"], ["y"], then_branch=padded(1), else_branch=padded(3))]
    check(onnx_file(nodes, {"x": [2, 3], "yes": YES}, {"y": [2]}), yes)


@pytest.mark.parametrize("yes", [True, False])
def test_a_constant_may_be_the_result_of_a_branch(yes, onnx_file):
    value = numpy_helper.from_array(np.array([1.5, 2, 3], np.float32))
    branches = {
        "then_branch": branch([node("Constant", [], ["inner"], value=value)], {"inner": [3]}),
        "else_branch": branch([node("Relu", ["x"], ["inner"])], {"inner": [3]}),
    }
    check(
        onnx_file([node("If", ["yes"], ["y"], **branches)], {"x": [3], "yes": YES}, {"y": [3]}), yes
    )


@pytest.mark.parametrize("yes", [True, False])
def test_a_constant_condition_within_a_branch_takes_its_branch(yes, onnx_file):
    inner = {
        "then_branch": branch([node("Exp", ["x"], ["deep"])], {"deep": [3]}),
        "else_branch": branch([node("Neg", ["x"], ["deep"])], {"deep": [3]}),
    }
    choice = [node("Greater", ["three", "two"], ["more"]), node("If", ["more"], ["inner"], **inner)]
    branches = {
        "then_branch": branch(
            choice, {"inner": [3]}, three=np.array(3.0, np.float32), two=np.array(2.0, np.float32)
        ),
        "else_branch": branch([node("Relu", ["x"], ["inner"])], {"inner": [3]}),
    }
    made = check(
        onnx_file([node("If", ["yes"], ["y"], **branches)], {"x": [3], "yes": YES}, {"y": [3]}), yes
    )
    assert "R.negative(" not in made.module.script()
