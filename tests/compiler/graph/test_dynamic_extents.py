"""A batch that is left open: one build, right for every batch, by the same rules as a build for one
batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_models import CPUS, Array, lowered, runner
from torch.nn import functional
from tvm import relax, tirx
from tvm.sym import Analyzer

from farm.compiler.codegen import executable
from farm.compiler.cpu.winograd.compute import WINOGRAD
from farm.compiler.ir.dynamic_extents import round_up_extent, shapes_are_equal, value_at_batch_one

BATCHES = (1, 2, 3, 7)
OP = relax.op
numbers = np.random.default_rng(11)


def draw(*shape: int) -> Array:
    return (numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")


def right(
    shape: tuple[int, ...],
    body: Callable[..., Any],
    weights: Mapping[str, Array],
    reference: Callable[..., Any],
    cpu: str = "native",
) -> set[str]:
    """Whether one build for [batch, *shape] agrees with torch at every batch; the rules that
    scheduled it.
    """
    batch = tirx.Var("batch", "int64")
    low = lowered({"x": relax.TensorType((batch, *shape), "float32")}, body, weights, cpu)
    answer = runner(low, cpu)
    for count in BATCHES:
        x = numbers.standard_normal((count, *shape)).astype("float32")
        expected = reference(torch.from_numpy(x), *map(torch.from_numpy, weights.values())).numpy()
        (found,) = answer([x])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert [kernel.note for kernel in low.kernels if kernel.note] == []
    return {kernel.rule for kernel in low.kernels}


@pytest.mark.parametrize("cpu", CPUS)
def test_convolutions_pools_and_products_of_an_open_batch_are_scheduled_and_right(cpu):
    weights = {
        "a": draw(24, 3, 3, 3),
        "d": draw(24, 1, 3, 3),
        "t": draw(24, 8, 2, 2),
        "f": draw(8, 10),
    }

    def body(emit, x, a, d, t, f):
        x = emit(OP.nn.relu(emit(OP.nn.conv2d(x, a, strides=2, padding=1))))
        x = emit(OP.nn.conv2d(x, d, padding=1, groups=24))
        x = emit(OP.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)))
        x = emit(OP.nn.avg_pool2d(emit(OP.nn.conv2d_transpose(x, t, strides=2)), (2, 2), (2, 2)))
        return emit(OP.nn.softmax(emit(OP.matmul(emit(OP.mean(x, [2, 3])), f))))

    def reference(x, a, d, t, f):
        x = functional.conv2d(
            functional.relu(functional.conv2d(x, a, stride=2, padding=1)), d, padding=1, groups=24
        )
        x = functional.conv_transpose2d(functional.max_pool2d(x, 3, 2, 1), t, stride=2)
        return torch.softmax(functional.avg_pool2d(x, 2).mean((2, 3)) @ f, -1)

    rules = right((3, 17, 19), body, weights, reference, cpu)
    assert rules >= {
        "convolution",
        "depthwise",
        "max_pool",
        "interleaved",
        "average_pool",
        "dense",
        "softmax",
    }


def test_winograd_takes_an_open_batch():
    weights = {"w": draw(64, 64, 3, 3), "b": draw(1, 64, 1, 1)}

    def body(emit, x, w, b):
        return emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv2d(x, w, padding=1)), b))))

    rules = right(
        (64, 30, 30),
        body,
        weights,
        lambda x, w, b: torch.relu(functional.conv2d(x, w, padding=1) + b),
    )
    assert WINOGRAD in rules


def test_rows_that_hold_the_batch_and_products_of_two_open_tensors_are_right():
    weights = {"w": draw(24, 48), "g": draw(48), "b": draw(48)}

    def body(emit, x, w, g, b):
        batch = x.ty.shape[0]
        flat = emit(
            OP.matmul(emit(OP.reshape(x, (batch * 5, 24))), w)
        )  # as exporters write a product over [batch, 5, 24]
        x = emit(OP.nn.layer_norm(emit(OP.reshape(flat, (batch, 5, 48))), g, b, axes=[-1]))
        scores = emit(OP.nn.softmax(emit(OP.matmul(x, emit(OP.permute_dims(x, [0, 2, 1]))))))
        return emit(OP.matmul(scores, x))

    def reference(x, w, g, b):
        x = functional.layer_norm(x @ w, (48,), g, b)
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x

    assert right((5, 24), body, weights, reference) >= {"dense", "layer_norm", "product", "softmax"}


def test_what_mixes_the_samples_of_a_batch_is_right():
    def body(emit, x, w):
        centred = emit(OP.subtract(x, emit(OP.mean(x, [0], keepdims=True))))
        return emit(OP.matmul(emit(OP.permute_dims(centred, [1, 0])), emit(OP.matmul(centred, w))))

    def reference(x, w):
        centred = x - x.mean(0, keepdim=True)
        return centred.T @ (centred @ w)

    right((24,), body, {"w": draw(24, 16)}, reference)


def test_storage_is_as_large_as_the_larger_of_its_tensors_at_every_batch():
    batch = tirx.Var("batch", "int64")
    sizes = [batch * 40, batch * 16, batch * 4 + 90, tirx.const(100, "int64")]

    def at(size: Any, count: int) -> int:
        analyzer = Analyzer()
        analyzer.bind(batch, tirx.const(count, "int64"))
        return int(analyzer.simplify(size))

    for one, other in itertools.permutations(sizes, 2):
        larger = executable._larger(one, other)
        for count in (1, 2, 3, 30):
            assert at(larger, count) == max(at(one, count), at(other, count))


def test_extents_of_a_batch_are_numbers_at_one():
    batch, other = tirx.Var("batch", "int64"), tirx.Var("other", "int64")
    assert [
        value_at_batch_one(extent)
        for extent in (7, batch, batch * 197 + 3, round_up_extent(batch * 197, 8))
    ] == [7, 1, 200, 200]
    assert (
        shapes_are_equal([batch * 2, 3], [batch + batch, 3])
        and not shapes_are_equal([batch, 3], [other, 3])
        and not shapes_are_equal([batch], [1])
    )
    assert isinstance(round_up_extent(tvm.tirx.const(9, "int64"), 4), tvm.tirx.IntImm)
