"""Quantized operators of ONNX and of ONNX Runtime import, and compute what ONNX Runtime makes of
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from host_build import built
from onnx import helper
from onnx_models import graph, node

from farm import importers
from farm.errors import ModelError
from farm.types import Model

MICROSOFT = "com.microsoft"
numbers = np.random.default_rng(4)
SCALES = {"xs": np.float32(0.05), "xz": np.uint8(120), "ys": np.float32(0.3), "yz": np.uint8(131)}


def weight(*shape: int) -> dict[str, Any]:
    """Of the first axis' channels, each with a scale."""
    scale = numbers.uniform(0.01, 0.03, shape[0]).astype(np.float32)
    values = numbers.integers(-127, 128, shape, dtype=np.int8)
    return {
        "w": values,
        "ws": scale,
        "wz": np.zeros(shape[0], np.int8),
        "b": numbers.integers(-500, 500, shape[0], dtype=np.int32),
    }


def by_columns(*shape: int) -> dict[str, Any]:
    """Of the last axis' channels, each with a scale; those of `weight` as "wt"."""
    made = weight(*reversed(shape))
    return {**made, "wt": np.ascontiguousarray(made.pop("w").T)}


def load(
    path: Path, nodes: list[onnx.NodeProto], shape: list[int], weights: dict[str, Any]
) -> importers.ImportedModel:
    """A model that quantizes its input x, does these nodes from xq to yq, and dequantizes."""
    around = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        *nodes,
        node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    body = graph(around, {"x": shape}, {"y": [None] * len(shape)}, {**SCALES, **weights})
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(body, opset_imports=opsets, ir_version=8), path)
    return importers.import_model(Model("m", str(path)), path.parent)


def difference(imported: importers.ImportedModel, step: float) -> float:
    """The largest between ours and theirs, in steps."""
    run = built(imported)
    worst = 0.0
    for _ in range(4):
        x = numbers.uniform(-6, 6, imported.inputs[0].shape).astype(np.float32)
        [ours], [theirs] = run([x]), imported.reference({"x": x})
        assert ours.shape == theirs.shape and np.unique(theirs).size > 3
        worst = max(worst, float(np.abs(ours - theirs).max()) / step)
    return worst


def of_one(operator: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node(operator, ["xq", "xs", "xz", "ys", "yz"], ["yq"], domain=MICROSOFT, **attributes)]


# A second tensor, of other numbers in another quantization.
OTHER = [
    node("Mul", ["x", "part"], ["t"]),
    node("QuantizeLinear", ["t", "os", "oz"], ["oq"]),
]
SCALES_OF_OTHER = {"part": np.float32(-0.3), "os": np.float32(0.02), "oz": np.uint8(90)}
BOTH = ["xq", "xs", "xz", "oq", "os", "oz"]
CASES = {
    "convolution": (
        [
            node(
                "QLinearConv",
                ["xq", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"],
                ["yq"],
                pads=[0, 1, 2, 0],
                strides=[2, 2],
            )
        ],
        [1, 4, 9, 9],
        weight(8, 4, 3, 3),
    ),
    "convolution without bias": (
        [node("QLinearConv", ["xq", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["yq"], group=4)],
        [1, 4, 9, 9],
        weight(8, 1, 3, 3),
    ),
    "product": (
        [node("QLinearMatMul", ["xq", "xs", "xz", "wt", "s1", "z1", "ys", "yz"], ["yq"])],
        [1, 12],
        {"wt": weight(12, 5)["w"], "s1": np.float32(0.02), "z1": np.int8(0)},
    ),
    "product by columns of several scales": (
        [node("QLinearMatMul", ["xq", "xs", "xz", "wt", "ws", "wz", "ys", "yz"], ["yq"])],
        [1, 12],
        by_columns(12, 12),
    ),
    "gemm": (
        [
            node(
                "QGemm",
                ["xq", "xs", "xz", "w", "ws", "wz", "b", "ys", "yz"],
                ["yq"],
                domain=MICROSOFT,
                transB=1,
            )
        ],
        [1, 12],
        weight(6, 12),
    ),
    "gemm with a factor": (
        [
            node(
                "QGemm",
                ["xq", "xs", "xz", "wt", "ws", "wz", "b", "ys", "yz"],
                ["yq"],
                domain=MICROSOFT,
                alpha=0.25,
            )
        ],
        [1, 12],
        {**by_columns(12, 12), "ys": np.float32(0.1)},
    ),
    "sum": (
        [*OTHER, node("QLinearAdd", [*BOTH, "ys", "yz"], ["yq"], domain=MICROSOFT)],
        [1, 12],
        SCALES_OF_OTHER,
    ),
    "element-wise product": (
        [*OTHER, node("QLinearMul", [*BOTH, "ys", "yz"], ["yq"], domain=MICROSOFT)],
        [1, 12],
        SCALES_OF_OTHER,
    ),
    "concatenation": (
        [*OTHER, node("QLinearConcat", ["ys", "yz", *BOTH], ["yq"], domain=MICROSOFT, axis=1)],
        [1, 3, 4, 4],
        SCALES_OF_OTHER,
    ),
    "global average": (
        of_one("QLinearGlobalAveragePool", channels_last=0),
        [1, 30, 4, 4],
        {"ys": np.float32(0.03)},
    ),
    "average pool": (
        of_one("QLinearAveragePool", kernel_shape=[2, 2], strides=[2, 2]),
        [1, 3, 6, 6],
        {},
    ),
    "average pool that counts its padding": (
        of_one("QLinearAveragePool", kernel_shape=[3, 2], pads=[2, 0, 0, 1], count_include_pad=1),
        [1, 3, 6, 6],
        {"ys": np.float32(0.05)},
    ),
    "leaky relu": (of_one("QLinearLeakyRelu", alpha=0.1), [1, 40], {}),
    "sigmoid": (of_one("QLinearSigmoid"), [1, 40], {"ys": np.float32(1 / 256), "yz": np.uint8(0)}),
    "their own quantize": (
        [
            node("DequantizeLinear", ["xq", "xs", "xz"], ["real"], domain=MICROSOFT),
            node("QuantizeLinear", ["real", "ys", "yz"], ["yq"], domain=MICROSOFT),
        ],
        [1, 40],
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_gives_onnx_runtimes_answer_within_a_step(case, tmp_path):
    nodes, shape, weights = CASES[case]
    assert (
        difference(
            load(tmp_path / "m.onnx", nodes, shape, weights), float({**SCALES, **weights}["ys"])
        )
        < 1.01
    )


@pytest.mark.parametrize("zeros", [["xz"], ["xz", "wz"]])
def test_a_convolution_of_integers_gives_their_sums(zeros, tmp_path):
    nodes = [
        node(
            "ConvInteger",
            ["xq", "w", *zeros],
            ["sums"],
            pads=[0, 1, 2, 1],
            strides=[2, 1],
            dilations=[1, 2],
            group=2,
        ),
        node("Cast", ["sums"], ["real"], to=onnx.TensorProto.FLOAT),
        node("QuantizeLinear", ["real", "ys", "yz"], ["yq"]),
    ]
    weights = {**weight(6, 2, 3, 3), "wz": np.int8(7), "ys": np.float32(900)}
    assert difference(load(tmp_path / "m.onnx", nodes, [1, 4, 7, 7], weights), 900.0) == 0


def test_a_product_of_a_tensor_quantized_as_it_comes(tmp_path):
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["d", "ds", "dz"]),
        node("MatMulInteger", ["d", "wt", "dz"], ["sums"]),
        node("Cast", ["sums"], ["real"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["real", "ds"], ["scaled"]),
        node("QuantizeLinear", ["scaled", "ys", "yz"], ["yq"]),
    ]
    weights = {"wt": weight(12, 5)["w"], "ys": np.float32(10)}
    assert difference(load(tmp_path / "m.onnx", nodes, [2, 12], weights), 10.0) < 1.01


def test_one_that_cannot_be_said_otherwise_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match="QLinearGlobalAveragePool"):
        load(
            tmp_path / "m.onnx",
            of_one("QLinearGlobalAveragePool", channels_last=1),
            [1, 4, 4, 3],
            {},
        )
