"""MatMulInteger, as ONNX Runtime's dynamic quantization writes it, is exact and by byte kernels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from farm.compiler.lower import lower_module, resolve_target
from farm.types import Profile

DEPTH, COLUMNS = 40, 24
random = np.random.default_rng(3)
ONNX_TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def byte(dtype, *shape):
    of_type = np.iinfo(dtype)
    return random.integers(of_type.min, of_type.max + 1, shape, dtype=dtype)


def rules(imported):
    here = resolve_target(Profile("host", {"kind": "llvm", "mcpu": "native"}, ""))
    low = lower_module(imported.module, imported.weights, here, {})
    return sorted(kernel.rule for kernel in low.kernels if kernel.rule != "general")


@pytest.mark.parametrize("zeros", ["none", "of the data", "of both", "of each column"])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("data", ["uint8", "int8"])
def test_sums_are_exact_for_all_types_and_zero_points(
    data, weight, zeros, onnx_file, load, answers
):
    shape, names = [2, 5, DEPTH], ["x", "w"]
    inputs = {"x": (ONNX_TYPES[data], shape)}
    weights = {"w": byte(weight, DEPTH, COLUMNS)}
    if zeros != "none":
        names.append("xz")
        inputs["xz"] = (ONNX_TYPES[data], [])
    if zeros in ("of both", "of each column"):
        names.append("wz")
        weights["wz"] = byte(weight, *([COLUMNS] if "each" in zeros else []))
    node = helper.make_node("MatMulInteger", names, ["y"])
    imported = load(onnx_file([node], inputs, {"y": (TensorProto.INT32, [2, 5, COLUMNS])}, weights))
    x, zero = byte(data, *shape), byte(data)
    imported.example.update({"x": x, **({"xz": zero} if "xz" in names else {})})
    wide = x.astype("int64") - (int(zero) if "xz" in names else 0)
    by = weights["w"].astype("int64") - weights.get("wz", np.zeros((), weight)).astype("int64")
    np.testing.assert_array_equal(answers(imported)[0], wide @ by)
    np.testing.assert_array_equal(imported.reference(imported.example)[0], wide @ by)
    assert rules(imported) == ["dense_int8"]


def test_a_weight_that_is_computed_is_multiplied_too(onnx_file, load, agree):
    """No kernel is for it: both sides are widened."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
        helper.make_node("MatMulInteger", ["q", "t", "qz", "qz"], ["y"]),
    ]
    agree(load(onnx_file(nodes, {"x": [4, 8]}, {"y": (TensorProto.INT32, [4, 4])})))


def test_a_layer_that_was_quantized_dynamically_is_one_product_of_bytes(onnx_file, load, agree):
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz", "wz"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["qs", "ws"], ["scale"]),
        helper.make_node("Mul", ["wide", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "b"], ["y"]),
    ]
    weights = {
        "w": byte("int8", DEPTH, COLUMNS),
        "wz": np.zeros((), "int8"),
        "ws": np.array(0.01, "float32"),
        "b": random.standard_normal(COLUMNS).astype("float32"),
    }
    imported = load(onnx_file(nodes, {"x": [3, DEPTH]}, {"y": [3, COLUMNS]}, weights))
    agree(imported)
    assert rules(imported) == ["dense_int8"]
