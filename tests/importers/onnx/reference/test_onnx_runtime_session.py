"""The reference of ONNX models: ONNX Runtime without what would change results."""

from __future__ import annotations

import numpy as np
from onnx_models import graph, node, save

from farm.importers.onnx.reference import runtime


def test_the_reference_of_a_maximum_over_a_padding_with_zeros_counts_the_zeros(tmp_path):
    nodes = [
        node("Pad", ["x", "pads"], ["p"]),
        node("MaxPool", ["p"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    weights = {"pads": [0, 0, 1, 1, 0, 0, 1, 1]}
    path = save(
        tmp_path / "pad_pool.onnx", graph(nodes, {"x": [1, 1, 2, 2]}, {"y": [1, 1, 2, 2]}, weights)
    )
    (largest,) = runtime.create_session(path).run(None, {"x": np.full((1, 1, 2, 2), -1, "float32")})
    np.testing.assert_array_equal(largest, np.zeros((1, 1, 2, 2), "float32"))
