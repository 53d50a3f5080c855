"""Shapes behind operators of ONNX Runtime, which ONNX does not infer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import host_build
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from farm import importers
from farm.importers.onnx.contributed_types import infer_contributed_types
from farm.importers.onnx.inferred_types import known_extents
from farm.importers.onnx.node_reading import names_read
from farm.types import Model

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT32
ROWS = [2, 5, 48]
Inputs = dict[str, tuple[int, list[int]]]


def node(operator: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> onnx.NodeProto:
    names = [f"y{index}" for index in range(outputs)]
    return helper.make_node(operator, inputs, names, domain="com.microsoft", **attributes)


BITS = node("MatMulNBits", ["x", "codes", "scales"], K=48, N=6, bits=4, block_size=16)
CODES: Inputs = {"codes": (TensorProto.UINT8, [6, 3, 8]), "scales": (FLOAT, [18])}
NF4 = node("MatMulBnb4", ["x", "codes", "scales"], K=48, N=6, block_size=16, quant_type=1)
PACKED: Inputs = {"codes": (TensorProto.UINT8, [144]), "scales": (FLOAT, [18])}
NORM = node("SkipSimplifiedLayerNormalization", ["x", "skip", "gamma"], 4)
SKIP: Inputs = {"skip": (FLOAT, ROWS), "gamma": (FLOAT, [48])}
CASES: dict[str, tuple[onnx.NodeProto, Inputs]] = {
    "product of codes": (BITS, CODES),
    "product of NF4": (NF4, PACKED),
    "rows of a table of codes": (
        node("GatherBlockQuantized", ["codes", "ids", "scales"], bits=4, block_size=16),
        {
            "codes": (TensorProto.UINT8, [9, 24]),
            "ids": (TensorProto.INT64, [2, 5]),
            "scales": (FLOAT, [9, 3]),
        },
    ),
    "gelu": (node("FastGelu", ["x"]), {}),
    "norm and its sum": (NORM, SKIP),
    "attention of its own projections": (
        node("Attention", ["x", "w", "b"], num_heads=2),
        {"w": (FLOAT, [48, 96]), "b": (FLOAT, [96])},
    ),
    "attention of projections of other sizes": (
        node("Attention", ["x", "w", "b"], num_heads=2, qkv_hidden_sizes=[16, 16, 24]),
        {"w": (FLOAT, [48, 56]), "b": (FLOAT, [56])},
    ),
    "norm without a mean": (
        helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["y0"]),
        {"gamma": (FLOAT, [48])},
    ),
    "attention with keys": (
        node("GroupQueryAttention", ["x", "k", "k", "", "", "n", "t"], num_heads=6, kv_num_heads=3),
        {"k": (FLOAT, [2, 5, 24]), "n": (INT, [2]), "t": (INT, [1])},
    ),
    "attention of a packed query": (
        node("GroupQueryAttention", ["x", "", "", "", "", "n", "t"], num_heads=2, kv_num_heads=1),
        {"n": (INT, [2]), "t": (INT, [1])},
    ),
    "attention with values of other sizes": (
        node("MultiHeadAttention", ["x", "k", "v"], num_heads=6),
        {"k": (FLOAT, [2, 7, 48]), "v": (FLOAT, [2, 7, 24])},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_types_are_those_of_onnx_runtime(case: str) -> None:
    given, others = CASES[case]
    kinds = {"x": (FLOAT, ROWS), **others}
    inputs = [
        helper.make_tensor_value_info(name, *kinds[name]) for name in names_read(given) - {""}
    ]
    types = {value.name: value.type for value in inputs}
    found = infer_contributed_types(given, types)
    ends = [onnx.ValueInfoProto(name=name) for name in found]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    body = helper.make_graph([given], case, inputs, ends)
    content = helper.make_model(body, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(content)
    assert {"y0": known_extents(found["y0"])} | {
        name: known_extents(type_) for name, type_ in found.items()
    } == {output.name: output.shape for output in session.get_outputs()}
    assert {type_.tensor_type.elem_type for type_ in found.values()} == {FLOAT}
    if case == "norm and its sum":
        assert list(found) == ["y0", "y3"]


def test_nothing_is_known_of_other_operators_and_of_unknown_inputs() -> None:
    x = helper.make_tensor_value_info("x", FLOAT, ROWS).type
    assert infer_contributed_types(node("Unheard", ["x"]), {"x": x}) == {}
    assert infer_contributed_types(helper.make_node("Gelu", ["x"], ["y"]), {"x": x}) == {}
    assert infer_contributed_types(BITS, {}) == {}


def test_shapes_computed_behind_weights_of_four_bits_are_known(
    onnx_file: Callable[..., Path], tmp_path: Path
) -> None:
    """As the heads of an attention are split, by the extents of the product before it."""
    make = helper.make_node
    nodes = [
        helper.make_node(
            "MatMulNBits", ["x", "codes", "scales"], ["q"], domain="com.microsoft",
            K=32, N=32, bits=4, block_size=32,
        ),
        make("Shape", ["q"], ["extents"]),
        make("Gather", ["extents", "ends"], ["rows"]),
        make("Concat", ["rows", "heads"], ["split"], axis=0),
        make("Reshape", ["q", "split"], ["y"]),
    ]  # fmt: skip
    random = np.random.default_rng(0)
    weights = {
        "codes": random.integers(0, 256, (32, 1, 16)).astype(np.uint8),
        "scales": random.random(32, np.float32),
        "ends": np.array([0, 1]),
        "heads": np.array([4, -1]),
    }
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    outputs = {"y": ["batch", "n", 4, 8]}
    path = onnx_file(nodes, {"x": [1, 3, 32]}, outputs, weights, opsets=opsets)
    imported = importers.import_model(Model("model", str(path)), tmp_path)
    assert imported.outputs[0].shape == (1, 3, 4, 8)
    host_build.assert_agrees(imported, atol=1e-5, rtol=1e-5)
