"""Few outputs of a 1 x 1 convolution over a concatenation come of its parts, and nothing is
concatenated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, compute
from torch.nn import functional
from tvm import relax

OP = relax.op
numbers = np.random.default_rng(3)


def draw(*shape: int) -> Any:
    return numbers.standard_normal(shape).astype("float32")


def joined(emit, *parts, axis=1):
    return emit(OP.concat(list(parts), axis=axis))


def is_joined(answer):
    return any("concatenate" in kernel.name for kernel in answer.kernels)


def expected(parts, weight, stride=1):
    tensors = [torch.from_numpy(part).double() for part in parts]
    return functional.conv2d(
        torch.cat(tensors, 1), torch.from_numpy(weight).double(), stride=stride
    ).numpy()


@pytest.mark.parametrize("cpu", CPUS)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=some.data())
def test_a_convolution_over_parts_of_any_shape_is_right(cpu, data):
    batch, high, wide, stride = (data.draw(some.integers(1, most)) for most in (3, 9, 9, 2))
    channels = data.draw(some.lists(some.sampled_from([1, 3, 8, 16, 17]), min_size=2, max_size=4))
    outputs = data.draw(some.integers(1, max(1, sum(channels) // (2 * len(channels) - 2))))
    parts = {f"p{at}": draw(batch, count, high, wide) for at, count in enumerate(channels)}
    weight, bias = draw(outputs, sum(channels), 1, 1), draw(outputs, 1, 1)

    def body(emit, *given):
        *inputs, w, b = given
        return emit(
            OP.nn.relu(
                emit(OP.add(emit(OP.nn.conv2d(joined(emit, *inputs), w, strides=stride)), b))
            )
        )

    answer = compute(parts, body, {"w": weight, "b": bias}, cpu)
    wanted = np.maximum(expected(parts.values(), weight, stride) + bias, 0)
    np.testing.assert_allclose(answer.outputs[0], wanted, atol=2e-5, rtol=2e-5)
    assert is_joined(answer) == (2 * (len(parts) - 1) * outputs > sum(channels))


@pytest.mark.parametrize(
    "kept", ["outputs", "parts", "second use", "kernel", "result", "axis", "padding", "groups"]
)
def test_what_is_concatenated_for_others_or_for_many_outputs_stays_so(kept):
    inputs = {"axis": 16, "groups": 16, "parts": 48}.get(kept, 32)
    outputs = {"outputs": 17, "parts": 13}.get(kept, 8)
    weight = draw(outputs, inputs, *((3, 3) if kept == "kernel" else (1, 1)))
    how = {"padding": {"padding": 1}, "groups": {"groups": 2}}.get(kept, {})

    def body(emit, x, y, w):
        parts = (x, y, x) if kept == "parts" else (x, y)
        both = joined(emit, *parts, axis=2 if kept == "axis" else 1)
        made = emit(OP.nn.conv2d(both, w, **how))
        if kept == "second use":
            return emit(OP.add(emit(OP.mean(both, [1], keepdims=True)), made))
        return emit(relax.Tuple([made, both])) if kept == "result" else made

    answer = compute({"x": draw(1, 16, 6, 6), "y": draw(1, 16, 6, 6)}, body, {"w": weight})
    assert is_joined(answer)


def test_the_parts_sum_and_what_follows_are_two_kernels():
    weights = {
        "a": draw(32, 16, 1, 1),
        "b": draw(32, 16, 3, 3),
        "w": draw(16, 64, 1, 1),
        "v": draw(16, 1, 1),
    }

    def body(emit, x, a, b, w, v):
        wide = (
            emit(OP.nn.relu(emit(OP.nn.conv2d(x, a)))),
            emit(OP.nn.relu(emit(OP.nn.conv2d(x, b, padding=1)))),
        )
        return emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv2d(joined(emit, *wide), w)), v))))

    answer = compute({"x": draw(1, 16, 12, 12)}, body, weights)
    heavy = [kernel.name for kernel in answer.kernels if kernel.operations > 100_000]
    assert len(heavy) == 4 and sum("add" in name for name in heavy) == 1, heavy
    assert (
        sum("transpose" in kernel.name for kernel in answer.kernels) == 2
    )  # the input and the output
