"""Einsum: what is a product of matrices becomes one, and every equation is right."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import node

from farm.compiler.ir.relax_rewriter import op_name
from farm.compiler.lower import lower_module, resolve_target
from farm.types import Profile

SHAPES = {"b": 2, "h": 3, "l": 5, "t": 7, "k": 4, "v": 6, "n": 8, "c": 4, "w": 5}
PRODUCTS = [
    "bhlk,bhtk->bhlt",
    "bhlt,bhtv->bhlv",
    "blhk,bthk->bhlt",  # heads after tokens
    "lk,kt->lt",
    "lk,tk",  # implicit
    "bhlt,bhtv->lbvh",
    "blk,hkv->bhlv",  # no batch
    "lbk,vhk->bvlh",
    "blkt,nkt->bln",  # several summed
    "blhk,btk->blt",  # a label of one operand only
    "...lk,...tk->...lt",
    "b...k,kv->b...v",
    "lkn,tnk->tl",
]
# Vectors: a loop for each label is faster
VECTORS = ["bl,bl->b", "bhlkt,lkt->bh", "bk,bk->k", "bchw,bchw->bhw", "...k,k->...", "bhl,bhl->bhl"]
OTHERS = [
    "blh,btk->blt",
    "bb,bk->bk",
    "bhl->hl",
    "bll->b",
    "bl,lk,kt->bt",
    "bl->lb",
    "...l,l->...",
    "ij,ij->",
]


def shape_of(term: str) -> list[int]:
    term = term.replace("...", "nh")
    return [SHAPES.get(label, 5) for label in term]


def model(equation: str, onnx_file):
    sources = equation.replace(" ", "").split("->")[0].split(",")
    names = [f"x{place}" for place in range(len(sources))]
    shapes = dict(zip(names, map(shape_of, sources), strict=True))
    made = np.einsum(equation, *(np.zeros(shape, np.float32) for shape in shapes.values()))
    nodes = [node("Einsum", names, ["y"], equation=equation)]
    return onnx_file(nodes, shapes, {"y": list(made.shape)}, {}, 17)


@pytest.mark.parametrize("equation", [*PRODUCTS, *VECTORS, *OTHERS])
def test_an_equation_is_right(equation, onnx_file, load, agree):
    agree(load(model(equation, onnx_file)))


@pytest.mark.parametrize("equation", PRODUCTS)
def test_a_product_of_matrices_has_a_rule_of_its_own(equation, onnx_file, load):
    imported = load(model(equation, onnx_file))
    assert "relax.matmul" in operators(imported)


@pytest.mark.parametrize("equation", VECTORS)
def test_what_is_hardly_a_product_of_matrices_is_none(equation, onnx_file, load):
    assert "relax.matmul" not in operators(load(model(equation, onnx_file)))


@pytest.mark.parametrize("equation", ["lk,nkt->nlt", "nkt,lk->nlt", "lkz,nkt->nlt"])
def test_the_factor_with_the_open_batch_is_the_first(equation, onnx_file, load, agree):
    shapes = {"lk": [6, 4], "lkz": [6, 4, 2], "nkt": ["n", 4, 7]}
    terms = equation.split("->")[0].split(",")
    inputs = {f"x{place}": shapes[term] for place, term in enumerate(terms) if "n" in term}
    weights = {
        f"x{place}": np.random.default_rng(0).standard_normal(shapes[term]).astype(np.float32)
        for place, term in enumerate(terms)
        if "n" not in term
    }
    nodes = [node("Einsum", ["x0", "x1"], ["y"], equation=equation)]
    imported = load(onnx_file(nodes, inputs, {"y": ["n", 6, 7]}, weights, 17))
    agree(imported)
    target = resolve_target(Profile("host", {"kind": "llvm", "mcpu": "native"}, ""))
    low = lower_module(imported.module, imported.weights, target, {})
    assert "dense" in [kernel.rule for kernel in low.kernels]


def operators(imported):
    return [
        op_name(binding.value)
        for block in imported.module["main"].body.blocks
        for binding in block.bindings
    ]


def test_attention_written_by_labels_is_attention(onnx_file, load, agree):
    """As Convolutional Vision Transformers are exported."""
    nodes = [
        node("Einsum", ["q", "k"], ["s"], equation="bhlk,bhtk->bhlt"),
        node("Mul", ["s", "scale"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("Einsum", ["p", "w"], ["y"], equation="bhlt,bhtv->bhlv"),
    ]
    inputs = {"q": [1, 4, 100, 16], "k": [1, 4, 90, 16], "w": [1, 4, 90, 24]}
    weights = {"scale": np.array(0.25, np.float32)}
    imported = load(onnx_file(nodes, inputs, {"y": [1, 4, 100, 24]}, weights, 17))
    agree(imported)
    target = resolve_target(Profile("host", {"kind": "llvm", "mcpu": "native"}, ""))
    low = lower_module(imported.module, imported.weights, target, {})
    assert "attention" in [kernel.rule for kernel in low.kernels]


def test_a_weight_is_the_second_factor_and_the_batch_may_be_open(onnx_file, load, agree):
    nodes = [node("Einsum", ["w", "x"], ["y"], equation="hvk,blk->blhv")]
    weights = {"w": np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)}
    path = onnx_file(nodes, {"x": ["n", 5, 4]}, {"y": ["n", 5, 3, 6]}, weights, 17)
    agree(load(path))
