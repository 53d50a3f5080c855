"""Transposes by register tiles move every element to its place."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered, runner, target
from tvm import relax, te, tirx, topi

from farm.compiler.cpu.transposes import transpose_by_register_tiles
from farm.compiler.target.cpu_model import cpu_model_of

OP = relax.op
TRANSPOSES = {
    "whole tiles": ((64, 48), (1, 0)),
    "one tile": ((8, 8), (1, 0)),
    "tiles that overlap along both axes": ((37, 53), (1, 0)),
    "just more than a tile": ((9, 17), (1, 0)),
    "images to channels last": ((2, 24, 7, 5), (0, 2, 3, 1)),
    "images to channels first": ((1, 14, 14, 40), (0, 3, 1, 2)),
    "heads of keys": ((2, 3, 19, 16), (0, 1, 3, 2)),
    "all axes": ((9, 3, 4, 10), (3, 2, 1, 0)),
    "axes between": ((11, 2, 3, 12), (3, 1, 2, 0)),
    "enough for threads": ((300, 700), (1, 0)),
}


def numbers(shape, dtype="float32"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def rules(low):
    return [kernel.rule for kernel in low.kernels]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", TRANSPOSES)
def test_every_element_is_at_its_place(name, cpu):
    shape, axes = TRANSPOSES[name]
    x = numbers(shape)
    answer = compute({"x": x}, lambda emit, x: emit(OP.permute_dims(x, axes)), cpu=cpu)
    np.testing.assert_array_equal(answer.outputs[0], x.transpose(axes))
    assert rules(answer.lowered) == ["transpose"]


def test_integers_too():
    x = numbers((33, 20), "int32") - 300
    answer = compute({"x": x}, lambda emit, x: emit(OP.permute_dims(x, (1, 0))))
    np.testing.assert_array_equal(answer.outputs[0], x.T)
    assert rules(answer.lowered) == ["transpose"]


@pytest.mark.parametrize("cpu", CPUS)
def test_views_before_and_after_become_part_of_it(cpu):
    x = numbers((2, 9, 16, 3, 8))

    def body(emit, x):
        joined = emit(OP.reshape(x, (2, 9, 16, 24)))
        moved = emit(OP.permute_dims(joined, (0, 3, 1, 2)))
        return emit(OP.reshape(moved, (2, 24, 144)))

    answer = compute({"x": x}, body, cpu=cpu)
    np.testing.assert_array_equal(
        answer.outputs[0], x.reshape(2, 9, 16, 24).transpose(0, 3, 1, 2).reshape(2, 24, 144)
    )
    assert rules(answer.lowered) == ["transpose"]


def test_a_slice_is_read_from_where_it_begins():
    x = numbers((40, 50))

    def body(emit, x):
        part = emit(OP.strided_slice(x, [0, 1], [3, 7], [35, 43]))
        return emit(OP.permute_dims(part, (1, 0)))

    answer = compute({"x": x}, body)
    np.testing.assert_array_equal(answer.outputs[0], x[3:35, 7:43].T)
    assert rules(answer.lowered) == ["transpose"]


def test_rows_in_reverse_and_every_second_one_too():
    x = numbers((40, 50))
    for ours, theirs in (
        (lambda x: OP.flip(x, 0), x[::-1]),
        (lambda x: OP.strided_slice(x, [0], [1], [40], [2]), x[1::2]),
    ):

        def body(emit, x, ours=ours):
            return emit(OP.permute_dims(emit(ours(x)), (1, 0)))

        answer = compute({"x": x}, body)
        np.testing.assert_array_equal(answer.outputs[0], theirs.T)


def test_no_element_is_moved_where_there_is_none():
    core = cpu_model_of(target())
    data = te.placeholder((0, 24, 40), "float32")
    kernel = te.create_prim_func([data, topi.transpose(data, (0, 2, 1))])
    assert transpose_by_register_tiles(kernel, core) is None


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((1, 3, 224, 224), (0, 2, 3, 1), "float32"),  # an axis is shorter than a vector
        ((64, 64), (1, 0), "int64"),
        ((512, 1024), (1, 0), "float32"),  # all lines of a tile are in the same sets of the cache
        ((4, 8, 16), (1, 0, 2), "float32"),  # the last axis stays
    ],
    ids=str,
)
def test_others_go_by_the_general_rule(shape, axes, dtype):
    x = numbers(shape, dtype)
    answer = compute({"x": x}, lambda emit, x: emit(OP.permute_dims(x, axes)))
    np.testing.assert_array_equal(answer.outputs[0], x.transpose(axes))
    assert rules(answer.lowered) == ["general"]


def test_an_open_batch_goes_by_the_general_rule():
    batch = tirx.Var("batch", "int64")
    inputs = {"x": relax.TensorType((batch, 24, 40), "float32")}
    low = lowered(inputs, lambda emit, x: emit(OP.permute_dims(x, (0, 2, 1))))
    assert rules(low) == ["general"]
    run = runner(low)
    for count in (1, 3):
        x = numbers((count, 24, 40))
        np.testing.assert_array_equal(run([x])[0], x.transpose(0, 2, 1))
