"""Attentions, rotary embeddings and norms of ONNX Runtime's own operators compute what it does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from farm.errors import ModelError

MICROSOFT = "com.microsoft"
OPSETS = [helper.make_opsetid(MICROSOFT, 1)]
random = np.random.default_rng(11)


def normal(*shape):
    return random.standard_normal(shape).astype("float32")


def angles(positions, count):
    """Tables of cosines and sines, [positions, count]."""
    turned = np.arange(positions)[:, None] * 0.3 / (1 + np.arange(count))
    return {"cos": np.cos(turned).astype("float32"), "sin": np.sin(turned).astype("float32")}


def grouped(new, past, total, *, batch=2, heads=4, pairs=2, size=16, more=(), **attributes):
    """A GroupQueryAttention, its inputs, outputs and weights; the lengths are an input."""
    extent = max(past, total)
    inputs = {
        "q": [batch, new, heads * size],
        "k": [batch, new, pairs * size],
        "v": [batch, new, pairs * size],
        "pk": [batch, pairs, past, size],
        "pv": [batch, pairs, past, size],
        "lengths": (TensorProto.INT32, [batch]),
    }
    weights = {"total": np.array(total, "int32")}
    if attributes.get("do_rotary"):
        weights |= angles(extent, attributes.pop("turned", size) // 2)
    names = [*inputs, "total", *(("cos", "sin") if "cos" in weights else ()), *more]
    outputs = {
        "y": [batch, new, heads * size],
        "key": [batch, pairs, extent, size],
        "value": [batch, pairs, extent, size],
    }
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        list(outputs),
        domain=MICROSOFT,
        num_heads=heads,
        kv_num_heads=pairs,
        **attributes,
    )
    return node, inputs, outputs, weights


@pytest.fixture
def same(onnx_file, load, agree):
    """Check a node with these values of some inputs."""

    def check(node, inputs, outputs, weights, **values):
        model = load(onnx_file([node], inputs, outputs, weights, opsets=OPSETS))
        agree(replace(model, example={**model.example, **values}))

    return check


LENGTHS = {
    "a cache that grows": (1, 6, 7, [6, 3]),
    "a cache of one extent": (1, 9, 9, [8, 4]),
    "several new positions": (3, 5, 8, [7]),
    "the first positions, padded": (5, 5, 5, [4, 2]),
    "the first positions of a long cache": (4, 7, 4, [3, 3]),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_queries_that_share_keys(case, same):
    new, past, total, lengths = LENGTHS[case]
    rotary = int(case != "a cache of one extent")
    made = grouped(new, past, total, batch=len(lengths), do_rotary=rotary)
    same(*made, lengths=np.array(lengths, "int32"))


def test_lengths_that_are_known_join_the_past_and_the_new(same):
    node, inputs, outputs, weights = grouped(1, 6, 7, do_rotary=1)
    del inputs["lengths"]
    same(node, inputs, outputs, {**weights, "lengths": np.array([6, 6], "int32")})


@pytest.mark.parametrize(
    "attributes",
    [
        {"local_window_size": 3},
        {"softcap": 2.0, "scale": 0.4},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"do_rotary": 1, "turned": 16, "size": 32},
        {"causal": 0},
    ],
    ids=["a window", "a cap", "neighbours turned", "a part turned", "not causal"],
)
def test_variants_of_grouped_queries(attributes, same):
    same(*grouped(3, 5, 8, batch=1, **attributes), lengths=np.array([7], "int32"))


@pytest.mark.parametrize("first", [False, True])
def test_grouped_queries_at_given_positions_with_a_summand_and_a_sink(first, same):
    new, past, total = (4, 6, 4) if first else (2, 4, 6)
    node, inputs, outputs, weights = grouped(
        new, past, total, batch=1, more=["places", "bias", "sink"], do_rotary=1
    )
    inputs["places"] = (TensorProto.INT64, [1, new])
    inputs["bias"] = [1, 4, new, total]
    places = np.arange(total - new, total)[None]
    made = {**weights, "sink": normal(4)}
    same(node, inputs, outputs, made, lengths=np.array([total - 1], "int32"), places=places)


def test_grouped_queries_packed_with_keys_and_values(same):
    node, inputs, outputs, weights = grouped(1, 6, 7)
    node.input[1] = node.input[2] = ""
    del inputs["k"], inputs["v"]
    inputs["q"] = [2, 1, (4 + 2 + 2) * 16]
    same(node, inputs, outputs, weights, lengths=np.array([6, 5], "int32"))


MASKS = {
    "of keys": (2, 7),
    "of queries and keys": (2, 3, 7),
    "lengths": (2,),
    "ends and beginnings": (4,),
}


def mask_values(name):
    shape = MASKS[name]
    if len(shape) > 1:
        made = random.integers(0, 2, shape, dtype=np.int32)
        made[..., 0] = 1
        return made
    return np.array([5, 7, 1, 2][: shape[0]], "int32")


@pytest.mark.parametrize(
    ("causal", "mask"),
    [(0, ""), (1, ""), *((number % 2, mask) for number, mask in enumerate(MASKS))],
)
def test_an_attention_that_projects_its_input(causal, mask, same):
    names = ["x", "w", "b", "mask" if mask else "", "past"]
    inputs = {"x": [2, 3, 24], "past": [2, 2, 4, 4, 8]}
    values = {}
    if mask:
        inputs["mask"] = (TensorProto.INT32, list(MASKS[mask]))
        values["mask"] = mask_values(mask)
    node = helper.make_node(
        "Attention", names, ["y", "new"], domain=MICROSOFT, num_heads=4, unidirectional=causal
    )
    outputs = {"y": [2, 3, 32], "new": [2, 2, 4, 7, 8]}
    same(node, inputs, outputs, {"w": normal(24, 96) / 5, "b": normal(96)}, **values)


def test_an_attention_that_begins_a_cache(same):
    names, weights = ["x", "w", "b"], {"w": normal(24, 96) / 5, "b": normal(96)}
    node = helper.make_node("Attention", names, ["y", "new"], domain=MICROSOFT, num_heads=4)
    same(node, {"x": [2, 3, 24]}, {"y": [2, 3, 32], "new": [2, 2, 4, 3, 8]}, weights)


def test_an_attention_whose_values_have_another_width(same):
    node = helper.make_node(
        "Attention",
        ["x", "w", "b", "", "", "bias"],
        ["y"],
        domain=MICROSOFT,
        num_heads=2,
        qkv_hidden_sizes=[16, 16, 24],
        scale=0.3,
    )
    inputs = {"x": [2, 5, 8], "bias": [1, 2, 5, 5]}
    same(node, inputs, {"y": [2, 5, 24]}, {"w": normal(8, 56), "b": normal(56)})


@pytest.mark.parametrize("form", ["with a bias", "a cross attention"])
def test_an_attention_of_projections(form, same):
    inputs = {"q": [2, 5, 32], "k": [2, 5, 32], "v": [2, 5, 32]}
    names = ["q", "k", "v", "b"]
    if form == "a cross attention":
        inputs, names = {"q": [2, 5, 32], "k": [2, 4, 9, 8], "v": [2, 4, 9, 8]}, ["q", "k", "v", ""]
    node = helper.make_node("MultiHeadAttention", names, ["y"], domain=MICROSOFT, num_heads=4)
    same(node, inputs, {"y": [2, 5, 32]}, {"b": normal(96)} if names[3] else {})


def test_an_attention_of_projections_with_a_past(same):
    names = ["q", "k", "v", "", "mask", "bias", "pk", "pv"]
    inputs = {
        "q": [2, 1, 32],
        "k": [2, 1, 32],
        "v": [2, 1, 32],
        "mask": (TensorProto.INT32, [2, 7]),
        "bias": [1, 4, 1, 7],
        "pk": [2, 4, 6, 8],
        "pv": [2, 4, 6, 8],
    }
    outputs = {"y": [2, 1, 32], "nk": [2, 4, 7, 8], "nv": [2, 4, 7, 8]}
    node = helper.make_node(
        "MultiHeadAttention", names, list(outputs), domain=MICROSOFT, num_heads=4, unidirectional=1
    )
    same(node, inputs, outputs, {}, mask=mask_values("of keys"))


@pytest.mark.parametrize(
    ("shape", "positions", "attributes"),
    [
        ([2, 5, 32], [2, 5], {}),
        ([2, 4, 5, 8], [1], {"interleaved": 1}),
        ([2, 5, 32], [2, 5], {"num_heads": 2, "rotary_embedding_dim": 8}),
    ],
)
def test_a_rotary_embedding(shape, positions, attributes, same):
    node = helper.make_node(
        "RotaryEmbedding", ["x", "at", "cos", "sin"], ["y"], domain=MICROSOFT, **attributes
    )
    values = {"at": np.array([3]) if positions == [1] else np.arange(10).reshape(2, 5)}
    inputs = {"x": shape, "at": (TensorProto.INT64, positions)}
    same(node, inputs, {"y": shape}, angles(16, 4), **values)


@pytest.mark.parametrize("bias", [False, True])
def test_a_norm_by_the_root_of_the_mean_square(bias, onnx_file, load, agree):
    skip = ["x", "skip", "g", *(["b"] if bias else [])]
    nodes = [
        helper.make_node(
            "SkipSimplifiedLayerNormalization",
            skip,
            ["y", "", "", "sum"],
            domain=MICROSOFT,
            epsilon=1e-6,
        ),
        helper.make_node("SimplifiedLayerNormalization", ["sum", "g"], ["z"], axis=-1),
    ]
    outputs = {name: [2, 3, 16] for name in ("y", "sum", "z")}
    weights = {"g": normal(16), **({"b": normal(16)} if bias else {})}
    inputs = {"x": [2, 3, 16], "skip": [2, 3, 16]}
    agree(load(onnx_file(nodes, inputs, outputs, weights, opsets=OPSETS)))


@pytest.mark.parametrize(
    ("bits", "zeros", "rows"), [(4, True, 16), (8, False, 16), (4, False, 10), (8, True, 10)]
)  # 10: they fill no vectors; rows out of range are zero
def test_rows_of_a_weight_of_few_bits(bits, zeros, rows, same):
    bytes_of_row = 48 * bits // 8
    weights = {
        "w": random.integers(0, 256, (rows, bytes_of_row), dtype=np.uint8),
        "s": random.uniform(0.01, 0.02, (rows, 3)).astype("float32"),
    }
    if zeros:
        weights["z"] = random.integers(0, 256, (rows, -(-3 * bits // 8)), dtype=np.uint8)
    node = helper.make_node(
        "GatherBlockQuantized",
        ["w", "at", "s", *(["z"] if zeros else [])],
        ["y"],
        domain=MICROSOFT,
        bits=bits,
        block_size=16,
        gather_axis=0,
        quantize_axis=1,
    )
    inputs = {"at": (TensorProto.INT64, [2, 3])}
    same(
        node,
        inputs,
        {"y": [2, 3, 48]},
        weights,
        at=np.array([[0, rows, -1], [-rows - 1, 2, -rows]]),
    )


@pytest.mark.parametrize("kind", [0, 1], ids=["FP4", "NF4"])
def test_a_product_with_codes_of_a_table(kind, same):
    weights = {
        "w": random.integers(0, 256, 64 * 24 // 2, dtype=np.uint8),
        "s": random.uniform(0.5, 2, 64 * 24 // 32).astype("float32"),
    }
    node = helper.make_node(
        "MatMulBnb4",
        ["x", "w", "s"],
        ["y"],
        domain=MICROSOFT,
        K=64,
        N=24,
        block_size=32,
        quant_type=kind,
    )
    same(node, {"x": [2, 3, 64]}, {"y": [2, 3, 24]}, weights)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"smooth_softmax": 1}, "smooth_softmax"),
        ({"qk_output": 1}, "qk_output"),
        ({"sliding_window_cache": 1, "local_window_size": 4}, "a cache of a window"),
    ],
)
def test_what_is_not_converted_is_refused_by_name(change, why, onnx_file, load):
    node, inputs, outputs, weights = grouped(1, 6, 7, **change)
    with pytest.raises(ModelError, match=f"GroupQueryAttention with {why}"):
        load(onnx_file([node], inputs, outputs, weights, opsets=OPSETS))
