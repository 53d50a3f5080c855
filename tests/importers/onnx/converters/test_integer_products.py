"""MatMulInteger and ConvInteger, as ONNX Runtime's dynamic quantization writes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
    others = ("general", "transpose", "row_reduction")
    return sorted(kernel.rule for kernel in low.kernels if kernel.rule not in others)


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


@pytest.mark.parametrize(
    ("shape", "weight", "attributes", "rule"),
    [
        ([1, 8, 40], (16, 8, 5), {"pads": [2, 1], "strides": [2]}, ["convolution_int8"]),
        ([1, 8, 40], (16, 8, 3), {"dilations": [3]}, ["convolution_int8"]),
        ([1, 4, 5, 6, 7], (8, 4, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 1]}, []),
    ],
)
def test_a_convolution_of_signals_or_volumes_is_exact(
    shape, weight, attributes, rule, onnx_file, load, answers
):
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"], **attributes)
    inputs = {"x": (TensorProto.UINT8, shape), "xz": (TensorProto.UINT8, [])}
    outputs = {"y": (TensorProto.INT32, [None] * len(shape))}
    imported = load(onnx_file([node], inputs, outputs, {"w": byte("int8", *weight)}))
    imported.example.update({"x": byte("uint8", *shape), "xz": byte("uint8")})
    [ours], [theirs] = answers(imported), imported.reference(imported.example)
    np.testing.assert_array_equal(ours, theirs)
    assert rules(imported) == rule


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


CONVOLUTIONS = {
    "plain": ((16, 8, 3, 3), {}, "convolution_int8"),
    "padded by its zero point": ((16, 8, 3, 3), {"pads": [1, 0, 2, 1]}, "convolution_int8"),
    "with strides": ((16, 8, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}, "convolution_int8"),
    "depthwise": ((8, 1, 3, 3), {"group": 8, "pads": [1] * 4}, "depthwise_int8"),
    "in groups": ((32, 4, 1, 1), {"group": 2}, "convolution_int8"),
}


@pytest.mark.parametrize("weight_zero", [None, 0, 3, "of each channel"])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_of_bytes_is_exact(name, weight, weight_zero, onnx_file, load, answers):
    shape, attributes, rule = CONVOLUTIONS[name]
    weights = {"w": byte(weight, *shape)}
    names = ["x", "w", "xz"]
    if weight_zero is not None:
        names.append("wz")
        each = isinstance(weight_zero, str)
        weights["wz"] = byte(weight, shape[0]) if each else np.array(weight_zero, weight)
    node = helper.make_node("ConvInteger", names, ["y"], **attributes)
    inputs = {"x": (TensorProto.UINT8, [1, 8, 9, 7]), "xz": (TensorProto.UINT8, [])}
    imported = load(onnx_file([node], inputs, {"y": (TensorProto.INT32, [None] * 4)}, weights))
    x, zero = byte("uint8", 1, 8, 9, 7), byte("uint8")
    imported.example.update({"x": x, "xz": zero})
    [ours] = answers(imported)
    if isinstance(weight_zero, str):  # which ONNX Runtime refuses
        exact = weights["w"] - weights["wz"].reshape(-1, 1, 1, 1).astype("float64")
        theirs = convolved(x - float(zero), exact, attributes)
    else:
        [theirs] = imported.reference(imported.example)
    np.testing.assert_array_equal(ours, theirs)
    assert rules(imported) == [rule]


def convolved(x, weight, attributes):
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    strides, groups = attributes.get("strides", [1, 1]), attributes.get("group", 1)
    return torch.nn.functional.conv2d(
        torch.from_numpy(padded), torch.from_numpy(weight), stride=strides, groups=groups
    ).numpy()


def test_zeros_are_quantized_by_a_scale_of_one(onnx_file, load, answers):
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])
    outputs = {"q": (TensorProto.UINT8, [2, 3]), "scale": [], "zero": (TensorProto.UINT8, [])}
    imported = load(onnx_file([node], {"x": [2, 3]}, outputs))
    for x in (np.zeros((2, 3), "float32"), np.full((2, 3), -2, "float32")):
        imported.example["x"] = x
        for ours, theirs in zip(
            answers(imported), imported.reference(imported.example), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
