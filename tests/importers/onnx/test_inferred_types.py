"""Types are inferred without the numbers of large weights, and are those that ONNX infers with
them.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import graph, node, save

from farm.importers.onnx.inferred_types import infer_types

WEIGHTS = {
    "w": np.ones((64, 3, 7, 7), "float32"),
    "table": np.ones((5000, 8), "float32"),
    "m": np.ones((64 * 6, 40), "float32"),
    "long": np.arange(6000, dtype="int64"),
    "scales": np.array([1, 1, 2, 2], "float32"),
    "shape": np.array([0, -1], "int64"),
}
NODES = [
    node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[3, 3, 3, 3]),
    node("Resize", ["a", "", "scales"], ["b"]),
    node("MaxPool", ["b"], ["c"], kernel_shape=[5, 4], strides=[5, 4]),
    node("Reshape", ["c", "shape"], ["d"]),
    node("MatMul", ["d", "m"], ["y"]),
    node("Gather", ["table", "long"], ["e"]),
    node("Shape", ["e"], ["f"]),
    node("ConstantOfShape", ["f"], ["g"]),
    node("Gather", ["long", "f"], ["z"]),
]


@pytest.mark.parametrize("data_prop", [False, True])
def test_types_are_those_that_are_inferred_with_all_weights(data_prop, tmp_path):
    body = graph(
        NODES, {"x": [2, 3, 10, 12]}, {"y": None, "g": None, "z": ("int64", None)}, weights=WEIGHTS
    )
    model = onnx.load(save(tmp_path / "model.onnx", body))
    expected = onnx.shape_inference.infer_shapes(model, data_prop=data_prop).graph
    found = infer_types(model, data_prop=data_prop)
    assert list(found.value_info) == list(expected.value_info) and len(found.value_info) >= 6
    assert list(found.output) == list(expected.output) and list(found.input) == list(expected.input)
    assert [(one.name, one.dims) for one in found.initializer] == [
        (one.name, one.dims) for one in expected.initializer
    ]
    assert (
        found.ByteSize()
        < expected.ByteSize() - sum(WEIGHTS[name].nbytes for name in ("w", "table", "m")) + 99
    )
    assert all(tensor.raw_data or tensor.float_data for tensor in model.graph.initializer), (
        "the model is as it was"
    )
