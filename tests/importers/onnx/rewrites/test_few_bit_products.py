"""Products with dequantized constant weights become products of codes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

KERNEL = "block_quantized_product"
random = np.random.default_rng(4)
RANGES = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256)}


@pytest.fixture
def weighted(tmp_path, graph):
    """A file of x [3, K] -> y, with a weight, its scales and its zero points as constants."""

    def save(nodes, dtype, shape, scales, *, zeros=False, inputs=None, outputs=None, **weights):
        columns = outputs or {"y": [3, 16]}
        model = graph(nodes, inputs or {"x": [3, 64]}, columns, weights, opset=21)
        model.ir_version = 10
        kind = TensorProto.DataType.Value(dtype)
        for name, extents in {"w": shape, **({"z": scales} if zeros else {})}.items():
            values = random.integers(*RANGES[dtype], extents)
            tensor = helper.make_tensor(name, kind, extents, values.ravel())
            model.graph.initializer.append(tensor)
        factors = random.uniform(0.1, 0.2, scales).astype("float32")
        model.graph.initializer.append(numpy_helper.from_array(factors, "s"))
        onnx.save(model, tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return save


def dequantize(zeros=False, **attributes):
    names = ["w", "s", *(["z"] if zeros else [])]
    return helper.make_node("DequantizeLinear", names, ["d"], **attributes)


PRODUCT = helper.make_node("MatMul", ["x", "d"], ["y"])
GEMM = helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=1)
BIAS = {"b": np.arange(16, dtype="float32")}
FORMS = {  # the product, the weight, the scales, how they are applied, other weights
    "blocks": (PRODUCT, [64, 16], [2, 16], {"axis": 0, "block_size": 32}, {}),
    "columns": (PRODUCT, [64, 16], [16], {"axis": 1}, {}),
    "one scale": (PRODUCT, [64, 16], [], {}, {}),
    "blocks, transposed": (GEMM, [16, 64], [16, 2], {"axis": 1, "block_size": 32}, BIAS),
    "columns, transposed": (GEMM, [16, 64], [16], {"axis": 0}, BIAS),
}


@pytest.mark.parametrize(("dtype", "zeros"), [("INT4", True), ("UINT4", False), ("UINT8", True)])
@pytest.mark.parametrize("form", FORMS)
def test_a_product_reads_the_codes(form, dtype, zeros, weighted, load, agree):
    node, shape, scales, attributes, weights = FORMS[form]
    nodes = [dequantize(zeros, **attributes), node]
    imported = load(weighted(nodes, dtype, shape, scales, zeros=zeros, **weights))
    assert KERNEL in imported.module.script()
    agree(imported)


OTHERS = {
    "columns that fill no vectors": ([64, 12], [2, 12], {"axis": 0, "block_size": 32}),
    "blocks that do not fill the depth": ([64, 16], [2, 16], {"axis": 0, "block_size": 48}),
    "a scale for each row": ([64, 16], [64], {"axis": 0}),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_weights_become_floats(form, weighted, load, agree):
    shape, scales, attributes = OTHERS[form]
    nodes, outputs = [dequantize(**attributes), PRODUCT], {"y": [3, shape[1]]}
    imported = load(weighted(nodes, "INT4", shape, scales, outputs=outputs))
    assert KERNEL not in imported.module.script()
    agree(imported)


def test_a_weight_that_others_read_too_stays_for_them(weighted, load, agree):
    nodes = [
        dequantize(axis=0, block_size=32),
        PRODUCT,
        helper.make_node("MatMul", ["v", "d"], ["u"]),
        helper.make_node("Transpose", ["d"], ["t"]),
    ]
    inputs = {"x": [3, 64], "v": [1, 64]}
    outputs = {"y": [3, 16], "u": [1, 16], "t": [16, 64]}
    path = weighted(nodes, "INT4", [64, 16], [2, 16], inputs=inputs, outputs=outputs)
    imported = load(path)
    assert imported.module.script().count(f"cls.{KERNEL}") == 2
    agree(imported)


def test_products_of_quantized_data_are_those_of_bytes(weighted, load):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["r"]),
        helper.make_node("Reshape", ["r", "rows"], ["v"]),
        dequantize(axis=1),
        helper.make_node("MatMul", ["v", "d"], ["y"]),
    ]
    weights = {
        "step": np.array(0.05, "float32"),
        "zero": np.array(3, "uint8"),
        "rows": np.array([3, 64]),
    }
    assert KERNEL not in load(weighted(nodes, "INT8", [64, 16], [16], **weights)).module.script()
