"""ONNX models written by hand, small enough to compile in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

node = helper.make_node


def values(specs: Mapping[str, Any]) -> list[onnx.ValueInfoProto]:
    """From {name: shape} of float32, or {name: (dtype, shape)}."""
    split = {
        name: spec if isinstance(spec, tuple) else ("float32", spec) for name, spec in specs.items()
    }
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, (dtype, shape) in split.items()
    ]


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    weights: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    tensors = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()
    ]
    return helper.make_graph(list(nodes), "test", values(inputs), values(outputs), tensors)


def save(path: Path, body: onnx.GraphProto, opset: int = 17) -> Path:
    onnx.save(
        helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path
    )
    return path


def save_selecting(path: Path) -> Path:
    """Save a model of x [4, 5] that returns the elements above 0.5 and their places [n, 2]."""
    body = graph(
        [
            node("Greater", ["x", "half"], ["more"]),
            node("NonZero", ["more"], ["places"]),
            node("Transpose", ["places"], ["points"], perm=[1, 0]),
            node("GatherND", ["x", "points"], ["y"]),
        ],
        {"x": [4, 5]},
        {"y": ["n"], "points": ("int64", ["n", 2])},
        {"half": np.float32(0.5)},
    )
    return save(path, body)


def selection_examples() -> list[np.ndarray]:
    """Return inputs of that model: some elements are above 0.5, none, and all."""
    some = np.random.default_rng(5).standard_normal((4, 5)).astype(np.float32)
    return [some, np.full((4, 5), -1, np.float32), np.full((4, 5), 2, np.float32)]
