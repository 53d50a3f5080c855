"""Concatenations of concatenations, as recommenders and detectors have."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import compute, module
from tvm import relax, tirx

from farm.compiler.graph.concats.nested_concats import NestedConcatRewriter
from farm.compiler.graph.concats.wide_concats import MOST_JOINED
from farm.compiler.ir.relax_rewriter import op_name, rewrite_module

OP = relax.op
RANDOM = np.random.default_rng(0)


def draw(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def widths(inputs, body):
    """How many tensors each concatenation joins that a result needs."""
    given = rewrite_module(module(inputs, body), NestedConcatRewriter)
    given = relax.transform.CanonicalizeBindings()(given)
    given = relax.transform.DeadCodeElimination()(given)
    return [
        len(binding.value.args[0].fields)
        for block in given["main"].body.blocks
        for binding in block.bindings
        if op_name(binding.value) == "relax.concat"
    ]


def test_parts_of_one_axis_are_joined_at_once():
    inputs = {"a": draw(3, 4, 2), "b": draw(3, 5, 2), "c": draw(3, 1, 2)}

    def body(emit, a, b, c):
        inner = emit(OP.concat([emit(OP.concat([a, b], 1)), c], -2))
        return OP.concat([c, inner, a], 1)

    a, b, c = inputs.values()
    assert widths(inputs, body) == [5]
    (ours,) = compute(inputs, body).outputs
    np.testing.assert_array_equal(ours, np.concatenate([c, a, b, c, a], 1))


@pytest.mark.parametrize(
    "reshapes", [["squeeze"], ["reshape"], ["expand_dims", "squeeze"]], ids=str
)
def test_between_them_an_axis_of_one_may_be_dropped(reshapes):
    inputs = {"a": draw(3, 1, 4), "b": draw(3, 1, 6), "c": draw(3, 7)}

    def body(emit, a, b, c):
        inner = emit(OP.concat([a, b], -1))
        for name in reshapes:
            made = {
                "squeeze": lambda x: OP.squeeze(x),
                "reshape": lambda x: OP.reshape(x, (3, 10)),
                "expand_dims": lambda x: OP.expand_dims(x, 0),
            }[name]
            inner = emit(made(inner))
        return OP.concat([inner, c], 1)

    a, b, c = inputs.values()
    assert widths(inputs, body) == [3]
    (ours,) = compute(inputs, body).outputs
    np.testing.assert_array_equal(ours, np.concatenate([a[:, 0], b[:, 0], c], 1))


def test_an_axis_of_one_may_be_added_and_the_batch_open():
    batch = tirx.Var("batch", "int64")
    inputs = {name: relax.TensorType((batch, n), "float32") for name, n in (("a", 4), ("b", 5))}

    def body(emit, a, b):
        inner = emit(OP.expand_dims(emit(OP.concat([a, b], 1)), 1))
        return OP.concat([inner, emit(OP.expand_dims(a, 1))], 2)

    assert widths(inputs, body) == [3]


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_parts_of_different_axes_stay_apart(axes):
    inputs = {"a": draw(4, 4), "b": draw(4, 4)}

    def body(emit, a, b):
        inner = emit(OP.concat([a, b], axes[0]))
        return OP.concat([inner, inner], axes[1])

    assert widths(inputs, body) == [2, 2]


def test_a_change_of_shape_that_divides_the_axis_keeps_them_apart():
    inputs = {"a": draw(3, 4), "b": draw(3, 6), "c": draw(3, 2, 5)}

    def body(emit, a, b, c):
        inner = emit(OP.reshape(emit(OP.concat([a, b], 1)), (3, 2, 5)))
        return OP.concat([inner, c], 2)

    a, b, c = inputs.values()
    assert widths(inputs, body) == [2, 2]
    (ours,) = compute(inputs, body).outputs
    expected = np.concatenate([np.concatenate([a, b], 1).reshape(3, 2, 5), c], 2)
    np.testing.assert_array_equal(ours, expected)


def test_what_is_read_elsewhere_too_is_computed_once():
    inputs = {"a": draw(3, 4), "b": draw(3, 6)}

    def body(emit, a, b):
        inner = emit(OP.concat([a, b], 1))
        return [emit(OP.concat([inner, a], 1)), emit(OP.negative(inner))]

    assert widths(inputs, body) == [2, 2]


def test_no_more_are_joined_than_one_kernel_can():
    inputs = {"a": draw(2, 3)}

    def body(emit, a):
        inner = emit(OP.concat([a] * MOST_JOINED, 1))
        return OP.concat([inner, a], 1)

    assert widths(inputs, body) == [MOST_JOINED, 2]
