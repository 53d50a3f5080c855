"""Products of the steps of a sequence, as unrolled recurrent layers have."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import compute, module
from tvm import relax

from farm.compiler.graph.loop_input_products import LoopInputProductRewriter
from farm.compiler.ir.relax_rewriter import op_name, rewrite_module

STEPS, BATCH, FEATURES, RESULTS = 8, 2, 5, 7
random = np.random.default_rng(0)
X = random.standard_normal((BATCH, STEPS, FEATURES)).astype("float32")
W = random.standard_normal((FEATURES, RESULTS)).astype("float32")
U = random.standard_normal((RESULTS, RESULTS)).astype("float32")


def take(emit, x, step):
    return emit(relax.op.take(x, relax.const(step, "int32"), 1))


def cut(emit, x, step):
    return emit(relax.op.squeeze(emit(relax.op.strided_slice(x, [1], [step], [step + 1])), [1]))


def cut_and_kept(emit, x, step):
    """Keep the axis of steps, as slices for a product of batches do."""
    return emit(
        relax.op.reshape(emit(relax.op.strided_slice(x, [1], [step], [step + 1])), [-1, FEATURES])
    )


def split(emit, x, step):
    parts = emit(relax.op.split(x, STEPS, 1))
    return emit(relax.op.squeeze(emit(relax.TupleGetItem(parts, step)), [1]))


def recurrent(order, step_of=take, weight=lambda step: relax.const(W.copy())):
    """A layer h = tanh(x[t] W + h U) over these steps, each with a weight of its own object."""

    def body(emit, x):
        h = None
        for step in order:
            total = emit(relax.op.matmul(step_of(emit, x, step), weight(step)))
            if h is not None:
                total = emit(relax.op.add(total, emit(relax.op.matmul(h, relax.const(U)))))
            h = emit(relax.op.tanh(total))
        return h

    return body


def expected(order, weight=lambda step: W):
    h = np.zeros((BATCH, RESULTS), "float32")
    for step in order:
        h = np.tanh(X[:, step] @ weight(step) + h @ U)
    return h


def products(body, x=X):
    """The shapes of the products of the inputs that are left."""
    found = rewrite_module(module({"x": x}, body, {}), LoopInputProductRewriter)["main"]
    shapes = []

    def look(expression):
        if op_name(expression) == "relax.matmul" and expression.args[1].ty.shape[0] == FEATURES:
            shapes.append([int(extent) for extent in expression.ty.shape])

    relax.analysis.post_order_visit(found.body, look)
    return shapes


@pytest.mark.parametrize("order", [range(STEPS), range(STEPS - 1, -1, -1), range(2, 6)])
@pytest.mark.parametrize("step_of", [take, cut, cut_and_kept, split])
def test_the_steps_of_a_sequence_are_multiplied_at_once(step_of, order):
    body = recurrent(order, step_of)
    assert products(body) == [[BATCH, STEPS, RESULTS]]
    np.testing.assert_allclose(
        compute({"x": X}, body, {}).outputs[0], expected(order), rtol=1e-5, atol=1e-6
    )


def test_steps_of_different_weights_are_multiplied_one_by_one():
    weights = [W * np.float32(1 + step) for step in range(STEPS)]
    body = recurrent(range(STEPS), weight=lambda step: relax.const(weights[step]))
    assert len(products(body)) == STEPS
    np.testing.assert_allclose(
        compute({"x": X}, body, {}).outputs[0],
        expected(range(STEPS), weights.__getitem__),
        rtol=1e-5,
        atol=1e-6,
    )


def test_two_layers_have_two_products():
    def body(emit, x):
        forward = recurrent(range(STEPS))(emit, x)
        other = relax.const(W * np.float32(2))
        backward = recurrent(range(STEPS - 1, -1, -1), weight=lambda _: other)(emit, x)
        return emit(relax.op.concat([forward, backward], 1))

    assert products(body) == [[BATCH, STEPS, RESULTS]] * 2
    reverse = expected(range(STEPS - 1, -1, -1), lambda _: W * 2)
    np.testing.assert_allclose(
        compute({"x": X}, body, {}).outputs[0],
        np.concatenate([expected(range(STEPS)), reverse], 1),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("order", [range(3), [1] * STEPS])
def test_a_product_of_few_steps_is_not_one_of_all(order):
    assert len(products(recurrent(order))) == len(order)


def test_elements_of_the_features_are_no_steps():
    """Each product adds up steps, of which there are as many as features."""
    x, w = (random.standard_normal(shape).astype("float32") for shape in ((2, 5, 5), (5, 3)))

    def body(emit, x):
        rows = [emit(relax.op.take(x, relax.const(k, "int32"), 2)) for k in range(5)]
        made = [emit(relax.op.matmul(row, relax.const(w))) for row in rows]
        return emit(relax.op.concat(made, 1))

    assert products(body, x) == [[2, 3]] * 5
    np.testing.assert_allclose(
        compute({"x": x}, body, {}).outputs[0],
        np.concatenate([x[:, :, k] @ w for k in range(5)], 1),
        rtol=1e-5,
        atol=1e-6,
    )
