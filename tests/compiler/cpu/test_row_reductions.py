"""Sums, means, maxima and minima of rows."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered, runner
from tvm import relax, tirx

OP = relax.op
random = np.random.default_rng(0)
REDUCTIONS = {
    "max": (OP.max, np.max),
    "min": (OP.min, np.min),
    "sum": (OP.sum, np.sum),
    "mean": (OP.mean, np.mean),
}
SHAPES = {  # with the axes that are reduced
    "whole vectors": ((3, 128), [1]),
    "a rest of one": ((2, 5, 129), [2]),
    "a rest that is nearly a step": ((127,), [0]),
    "two vectors": ((4, 32), [-1]),
    "all": ((2, 7, 33), None),
    "several axes": ((3, 2, 9, 11), [2, 3]),
    "all axes by name": ((5, 40), [1, 0]),
    "one long row": ((1, 1, 5000), [2]),
    "enough for threads": ((600, 700), [1]),
}


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_reduction_of_rows_is_right(shape, name, cpu):
    extents, axes = SHAPES[shape]
    ours, theirs = REDUCTIONS[name]
    x = random.standard_normal(extents).astype("float32")
    over = None if axes is None else tuple(axes)

    def body(emit, x):
        return [emit(ours(x, axes, keepdims=keep)) for keep in (False, True)]

    answer = compute({"x": x}, body, cpu=cpu)
    for keep, found in zip((False, True), answer.outputs, strict=True):
        wanted = theirs(x.astype("float64"), axis=over, keepdims=keep)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert set(answer.rules) == {"row_reduction"} and answer.notes == []


@pytest.mark.parametrize(("name", "value"), [("max", -np.inf), ("min", np.inf)])
@pytest.mark.parametrize("width", [7, 65])
def test_a_row_of_infinities_has_an_infinity(width, name, value):
    """TVM's reductions begin with the largest finite number."""
    x = np.full((2, width), value, "float32")
    for axes in ([1], None):
        found = compute({"x": x}, lambda emit, x, axes=axes: emit(REDUCTIONS[name][0](x, axes)))
        assert (found.outputs[0] == value).all()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("extents", [(3, 129), (1, 5000), (2, 9, 11)], ids=str)
def test_a_product_of_rows_is_right(extents, cpu):
    x = (1 + random.standard_normal(extents) / 100).astype("float32")
    answer = compute({"x": x}, lambda emit, x: emit(OP.prod(x, [-1])), cpu=cpu)
    wanted = x.astype("float64").prod(-1)
    if extents[-1] > 2 * 8:
        assert answer.rules == ["row_reduction"]
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-5)


def test_what_follows_a_row_is_computed_with_it_and_what_is_longer_after_it():
    """RMS norm, whose factor of a row is a function."""
    x = random.standard_normal((2, 17, 200)).astype("float32")
    scale = random.standard_normal(200).astype("float32")

    def body(emit, x, scale):
        squares = emit(OP.mean(emit(OP.multiply(x, x)), [-1], keepdims=True))
        factor = emit(OP.rsqrt(emit(OP.add(squares, relax.const(np.float32(1e-5))))))
        return emit(OP.multiply(emit(OP.multiply(x, factor)), scale))

    answer = compute({"x": x}, body, {"scale": scale})
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-5, atol=1e-5)
    assert (answer.rules, answer.notes) == (["row_reduction"], [])


def test_the_number_of_rows_may_be_open():
    rows = tirx.Var("n", "int64")

    def body(emit, x):
        return emit(OP.max(x, [-1]))

    run = runner(lowered({"x": relax.TensorType((rows, 3, 70), "float32")}, body))
    for count in (1, 4):
        x = random.standard_normal((count, 3, 70)).astype("float32")
        np.testing.assert_array_equal(run([x])[0], x.max(-1))


@pytest.mark.parametrize("axes", [[0], [0, 2], [1]])
def test_other_axes_than_the_last_ones_go_by_the_general_rule(axes):
    x = random.standard_normal((40, 50, 40)).astype("float32")
    answer = compute({"x": x}, lambda emit, x: emit(OP.sum(x, axes)))
    np.testing.assert_allclose(answer.outputs[0], x.sum(tuple(axes)), rtol=1e-4, atol=1e-3)
    assert answer.rules == []
