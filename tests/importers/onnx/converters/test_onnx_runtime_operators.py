"""Operators that ONNX Runtime's optimizer and quantizers write compute what they do there."""

from __future__ import annotations

import host_build
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from farm.errors import ModelError

MICROSOFT = "com.microsoft"
OPSETS = [helper.make_opsetid(MICROSOFT, 1)]
random = np.random.default_rng(9)


def normal(*shape):
    return random.standard_normal(shape).astype("float32")


def fused(operator, inputs, **attributes):
    return helper.make_node(operator, inputs, ["y"], name="fused", domain=MICROSOFT, **attributes)


ACTIVATIONS = {
    "Relu": {},
    "Sigmoid": {},
    "Tanh": {},
    "LeakyRelu": {"activation_params": [0.2]},
    "Clip": {"activation_params": [-0.5, 0.75]},
    "HardSigmoid": {"activation_params": [0.3, 0.4]},
}


@pytest.mark.parametrize("summand", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_convolution_with_its_activation(activation, summand, onnx_file, load, agree):
    names = ["x", "w", "b", *(["z"] if summand else [])]
    node = fused(
        "FusedConv",
        names,
        activation=activation,
        pads=[1, 0, 1, 2],
        strides=[2, 1],
        kernel_shape=[3, 3],
        **ACTIVATIONS[activation],
    )
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4)}
    inputs = {"x": [1, 3, 8, 8], **({"z": [1, 4, 4, 8]} if summand else {})}
    agree(load(onnx_file([node], inputs, {"y": [1, 4, 4, 8]}, weights, opsets=OPSETS)))


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu"])
def test_a_gemm_with_its_activation(activation, onnx_file, load, agree):
    more = {"activation_alpha": 0.3} if activation == "LeakyRelu" else {}
    node = fused(
        "FusedGemm", ["x", "w", "b"], activation=activation, alpha=0.5, beta=2.0, transB=1, **more
    )
    weights = {"w": normal(6, 5), "b": normal(6)}
    agree(load(onnx_file([node], {"x": [3, 5]}, {"y": [3, 6]}, weights, opsets=OPSETS)))


@pytest.mark.parametrize(
    ("first", "second", "attributes"),
    [
        ((2, 3, 4, 5), (2, 3, 6, 5), {"transB": 1, "alpha": 0.25}),
        ((2, 5, 4), (2, 5, 6), {"transA": 1}),
        ((4, 5), (5, 6), {"alpha": -2.0}),
    ],
)
def test_a_product_of_transposed_operands(first, second, attributes, onnx_file, load, agree):
    node = fused("FusedMatMul", ["a", "b"], **attributes)
    shape = [*first[:-2], 4, 6]
    inputs = {"a": list(first), "b": list(second)}
    agree(load(onnx_file([node], inputs, {"y": shape}, opsets=OPSETS)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_product_that_quantizes_its_input(zeros, bias, onnx_file, load, agree):
    weights = {
        "w": random.integers(-128, 128, (16, 8), dtype=np.int8),
        "ws": random.uniform(0.01, 0.02, 8).astype("float32"),
        "wz": random.integers(-9, 9, 8, dtype=np.int8),
        "b": normal(8),
    }
    names = ["x", "w", "ws", "wz" if zeros else "", "b" if bias else ""]
    used = {name: weights[name] for name in names if name in weights}
    node = fused("DynamicQuantizeMatMul", names)
    agree(load(onnx_file([node], {"x": [3, 16]}, {"y": [3, 8]}, used, opsets=OPSETS)))


@pytest.mark.parametrize("names", [["xz", "wz", "b"], ["xz"], []])
def test_a_product_of_bytes_as_floats(names, onnx_file, load, agree):
    weights = {
        "w": random.integers(-128, 128, (16, 8), dtype=np.int8),
        "xs": np.array(0.02, "float32"),
        "ws": np.array(0.01, "float32"),
        "xz": np.array(7, "uint8"),
        "wz": np.array(0, "int8"),
        "b": normal(8),
    }
    given = ["x", "w", "xs", "ws", *names]
    node = fused("MatMulIntegerToFloat", given)
    inputs = {"x": (TensorProto.UINT8, [3, 16])}
    used = {name: weights[name] for name in given[1:]}
    agree(load(onnx_file([node], inputs, {"y": [3, 8]}, used, opsets=OPSETS)))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("places", [False, True])
def test_the_normalized_sum_of_embeddings(places, segments, onnx_file, load):
    names = ["ids", "segs" if segments else "", "words", "pos", "kinds" if segments else ""]
    node = helper.make_node(
        "EmbedLayerNormalization",
        [*names, "gamma", "beta", "mask" if segments else "", *(["places"] if places else [])],
        ["y", "counts", "sum"],
        domain=MICROSOFT,
        epsilon=1e-5,
    )
    weights = {"words": normal(11, 8), "pos": normal(7, 8), "gamma": normal(8), "beta": normal(8)}
    fed = {
        "ids": 11,
        **({"segs": 3, "mask": 2} if segments else {}),
        **({"places": 7} if places else {}),
    }
    if segments:
        weights["kinds"] = normal(3, 8)
    inputs = {name: (TensorProto.INT32, [2, 5]) for name in fed}
    outputs = {"y": [2, 5, 8], "counts": (TensorProto.INT32, [2]), "sum": [2, 5, 8]}
    imported = load(onnx_file([node], inputs, outputs, weights, opsets=OPSETS))
    for name, end in fed.items():
        imported.example[name] = random.integers(0, end, (2, 5), dtype="int32")
    if segments:  # the tokens of a row come first
        imported.example["mask"] = np.array([[1, 1, 1, 0, 0], [1] * 5], "int32")
    ours, theirs = host_build.answers(imported), imported.reference(imported.example)
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=1e-5)


def few_bits(bits, zeros, depth, columns=6, size=16):
    """The weights of a MatMulNBits, and its attributes."""
    blocks = -(-depth // size)
    weights = {
        "w": random.integers(0, 256, (columns, blocks, size * bits // 8), dtype=np.uint8),
        "s": random.uniform(0.01, 0.02, columns * blocks).astype("float32"),
    }
    if zeros == "codes":
        packed = columns * -(-blocks * bits // 8)
        weights["z"] = random.integers(0, 256, packed, dtype=np.uint8)
    elif zeros == "numbers":
        weights["z"] = random.uniform(1, 14, columns * blocks).astype("float32")
    return weights, {"K": depth, "N": columns, "bits": bits, "block_size": size}


@pytest.mark.parametrize("depth", [64, 40])  # 40: the last block is not full
@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (4, "codes"), (4, "numbers"), (8, "")])
def test_a_product_with_weights_of_few_bits(bits, zeros, depth, onnx_file, load, agree):
    weights, attributes = few_bits(bits, zeros, depth)
    node = fused("MatMulNBits", ["x", *weights], **attributes)
    agree(load(onnx_file([node], {"x": [2, 3, depth]}, {"y": [2, 3, 6]}, weights, opsets=OPSETS)))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("blocks", [0, 8])
@pytest.mark.parametrize("dtype", ["INT4", "UINT4", "INT8"])
def test_a_weight_of_few_bits_or_with_scales_of_blocks(dtype, blocks, zero, onnx_file, load, agree):
    """The form of ONNX itself, since opset 21."""
    low, high = (0, 16) if dtype == "UINT4" else (-8, 8)
    scales = (3, 6) if blocks else (6,)

    def tensor(name, shape):
        values = random.integers(low, high, shape)
        return helper.make_tensor(name, TensorProto.DataType.Value(dtype), shape, values.ravel())

    given = ["w", "s", *(["z"] if zero else [])]
    nodes = [
        helper.make_node(
            "DequantizeLinear",
            given,
            ["d"],
            axis=0 if blocks else 1,
            **({"block_size": blocks} if blocks else {}),
        ),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    path = onnx_file(
        nodes,
        {"x": [3, 20]},
        {"y": [3, 6]},
        {"s": random.uniform(0.1, 0.2, scales).astype("float32")},
        opset=21,
    )
    model = onnx.load(path)
    model.graph.initializer.append(tensor("w", (20, 6)))
    if zero:
        model.graph.initializer.append(tensor("z", scales))
    model.ir_version = 10
    onnx.save(model, path)
    agree(load(path))


def test_a_reference_of_few_bits_does_not_quantize_its_inputs(onnx_file, load, agree):
    """Else it would differ from a product of floats in the third digit."""
    weights, attributes = few_bits(4, "", 512, columns=64, size=32)
    node = fused("MatMulNBits", ["x", *weights], accuracy_level=4, **attributes)
    path = onnx_file([node], {"x": [3, 512]}, {"y": [3, 64]}, weights, opsets=OPSETS)
    imported = load(path)
    x = imported.example["x"]
    [level] = onnxruntime.InferenceSession(path).run(None, {"x": x})
    [exact] = imported.reference({"x": x})
    assert np.abs(level - exact).max() > 1e-3 * np.abs(exact).max()
    agree(imported)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (fused("FusedMatMul", ["x", "w"], transBatchA=1), "FusedMatMul"),
        (fused("FusedConv", ["x", "w"], activation="Softplus"), "FusedConv"),
    ],
)
def test_what_is_not_rewritten_is_refused_by_name(node, why, onnx_file, load):
    weights = {"w": normal(1, 3, 8, 8)}
    path = onnx_file([node], {"x": [1, 3, 8, 8]}, {"y": [None] * 4}, weights, opsets=OPSETS)
    with pytest.raises(ModelError, match=why):
        load(path)
