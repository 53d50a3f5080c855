"""Products of few rows with the rows of a tensor, which is not transposed for them."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered, runner
from tvm import relax, tirx

OP = relax.op
RULE = "dot_products"
random = np.random.default_rng(3)


def normal(*shape):
    return random.standard_normal(shape).astype("float32")


def product(axes):
    return lambda emit, rows, keys: emit(OP.matmul(rows, emit(OP.permute_dims(keys, axes))))


CASES = {  # the rows, the keys, and the axes that turn them
    "one row of a head": ((2, 1, 64), (2, 33, 64), [0, 2, 1]),
    "rows of heads that share keys": ((1, 3, 4, 32), (1, 3, 40, 32), [0, 1, 3, 2]),
    "keys before their heads": ((2, 3, 2, 16), (2, 17, 3, 16), [0, 2, 3, 1]),
    "vectors of half the lanes": ((1, 2, 24), (1, 20, 24), [0, 2, 1]),
    "enough for threads": ((4, 1, 64), (4, 2000, 64), [0, 2, 1]),
}


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CASES)
def test_a_product_with_keys_is_right(name, cpu):
    first, second, axes = CASES[name]
    rows, keys = normal(*first), normal(*second)
    answer = compute({"rows": rows, "keys": keys}, product(axes), cpu=cpu)
    np.testing.assert_allclose(answer.outputs[0], rows @ keys.transpose(axes), atol=1e-4)
    assert [kernel.rule for kernel in answer.kernels] == [RULE] and answer.notes == []


def test_what_follows_is_computed_with_it():
    rows, keys, mask = normal(2, 1, 64), normal(2, 40, 64), normal(1, 1, 40)

    def body(emit, rows, keys, mask):
        scores = product([0, 2, 1])(emit, rows, keys)
        return emit(OP.add(emit(OP.multiply(scores, relax.const(np.float32(0.125)))), mask))

    answer = compute({"rows": rows, "keys": keys, "mask": mask}, body)
    wanted = rows @ keys.transpose(0, 2, 1) * np.float32(0.125) + mask
    np.testing.assert_allclose(answer.outputs[0], wanted, atol=1e-5)
    assert [kernel.rule for kernel in answer.kernels] == [RULE]


def test_the_batch_may_be_open():
    batch = tirx.Var("n", "int64")
    types = {
        name: relax.TensorType((batch, *shape), "float32")
        for name, shape in (("rows", (2, 32)), ("keys", (24, 32)))
    }
    run = runner(lowered(types, product([0, 2, 1])))
    for count in (1, 3):
        rows, keys = normal(count, 2, 32), normal(count, 24, 32)
        wanted = rows @ keys.transpose(0, 2, 1)
        np.testing.assert_allclose(run([rows, keys])[0], wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 8, 64), (1, 40, 64)),
        ((1, 2, 64), (1, 8, 64)),
        ((1, 2, 18), (1, 40, 18)),
        ((3, 1, 2, 64), (1, 40, 64)),
    ],
    ids=["many rows", "few keys", "no vectors", "other axes"],
)
def test_other_products_are_left_to_other_rules(first, second):
    rows, keys = normal(*first), normal(*second)
    answer = compute({"rows": rows, "keys": keys}, product([0, 2, 1]))
    np.testing.assert_allclose(answer.outputs[0], rows @ keys.transpose(0, 2, 1), atol=1e-4)
    assert RULE not in answer.rules
