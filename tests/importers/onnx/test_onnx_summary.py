"""What `farm check` says of an ONNX file without importing it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_models import graph, node, save

from farm.importers.onnx.summary import summarize
from farm.types import Model


def branch(factor: np.ndarray) -> object:
    """A branch with a weight of its own, and a constant of the same size."""
    ends = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])]
    constant = node("Constant", [], ["c"], value=numpy_helper.from_array(factor, "value"))
    nodes = [constant, node("Mul", ["x", "w"], ["a"]), node("Add", ["a", "c"], ["z"])]
    return helper.make_graph(nodes, "branch", [], ends, [numpy_helper.from_array(factor, "w")])


def test_weights_of_branches_and_constants_are_counted_and_shapes_are_not(tmp_path):
    one, other = np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)
    nodes = [
        node("If", ["yes"], ["b"], then_branch=branch(one), else_branch=branch(other)),
        node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([6]), "value")),
        node("Reshape", ["b", "shape"], ["flat"]),
        node("Mul", ["flat", "scale"], ["y"]),
    ]
    inputs = {"x": [2, 3], "yes": ("bool", [])}
    body = graph(nodes, inputs, {"y": [6]}, {"scale": np.float16([2] * 6).astype("float32")})
    found = summarize(Model("branches", str(save(tmp_path / "branches.onnx", body))))
    assert (found.parameters, found.parameter_bytes) == (2 * 6 + 2 * 3 + 6, 4 * 24)
    assert found.operators["Mul"] == 3
    assert found.inputs[0] == "x float32 [2, 3]" and found.outputs == ("y float32 [6]",)
