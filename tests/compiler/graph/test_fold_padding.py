"""A padding of zeros costs no copy where its consumer pads as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relax_models import compute
from torch.nn import functional
from tvm import relax


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def has_padding(answer):
    return any("pad" in kernel.name for kernel in answer.kernels)


@pytest.mark.parametrize(
    ("widths", "value", "folded"),
    [
        ([0, 0, 0, 0, 0, 1, 2, 0], 0.0, True),
        ([0, 0, 0, 0, 0, 1, 2, 0], 0.5, False),
        ([0, 0, 1, 0, 0, 1, 2, 0], 0.0, False),
        ([1, 0, 0, 0, 0, 1, 2, 0], 0.0, False),
        ([0, 0, 0, 0, 0, 1, -2, 0], 0.0, False),
    ],
    ids=["pixels", "of another value", "channels", "images", "cropped"],
)
def test_a_padding_before_a_convolution(widths, value, folded):
    x = draw(2, 8, 9, 10)
    weight = draw(16, 8 + widths[2], 3, 3)

    def body(emit, x, weight):
        padded = emit(relax.op.nn.pad(x, widths, "constant", value))
        return relax.op.nn.conv2d(padded, weight, strides=2, padding=[1, 0, 0, 1])

    answer = compute({"x": x}, body, {"weight": weight})
    pairs = [tuple(widths[axis : axis + 2]) for axis in range(0, 8, 2)]
    cropped = x[..., max(0, -widths[6]) :]
    pairs = [(max(0, before), after) for before, after in pairs]
    padded = torch.tensor(np.pad(cropped, pairs, constant_values=value)).double()
    wanted = functional.conv2d(
        functional.pad(padded, (0, 1, 1, 0)), torch.tensor(weight).double(), stride=2
    )
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-4, atol=1e-4)
    assert has_padding(answer) is not folded


def test_a_causal_convolution_of_rows():
    x, weight = draw(1, 8, 33), draw(16, 8, 3)

    def body(emit, x, weight):
        padded = emit(relax.op.nn.pad(x, [0, 0, 0, 0, 4, 0]))
        return relax.op.nn.conv1d(padded, weight, dilation=2)

    answer = compute({"x": x}, body, {"weight": weight})
    wanted = functional.conv1d(
        functional.pad(torch.tensor(x), (4, 0)), torch.tensor(weight), dilation=2
    )
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-4, atol=1e-4)
    assert not has_padding(answer)


def test_other_consumers_of_a_padding_have_it():
    x, weight = draw(1, 8, 9, 10), draw(16, 8, 3, 3)

    def body(emit, x, weight):
        padded = emit(relax.op.nn.pad(x, [0, 0, 0, 0, 0, 1, 2, 0]))
        return [emit(relax.op.nn.conv2d(padded, weight)), emit(relax.op.abs(padded))]

    answer = compute({"x": x}, body, {"weight": weight})
    convolved, padded = answer.outputs
    wanted = functional.pad(torch.tensor(x), (2, 0, 0, 1))
    np.testing.assert_array_equal(padded, wanted.abs())
    assert [rule for rule in answer.rules if rule] == ["convolution"]
    np.testing.assert_allclose(
        convolved, functional.conv2d(wanted, torch.tensor(weight)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("positive", "width", "ceil", "folded"),
    [
        (True, 1, False, True),
        (False, 1, False, False),
        (True, 3, False, False),
        (True, 1, True, False),
    ],
    ids=["behind a relu", "of negative values", "as wide as a window", "rounded up"],
)
def test_a_padding_before_a_max_pool(positive, width, ceil, folded):
    x = draw(2, 8, 9, 10) - 1  # mostly negative

    def body(emit, x):
        data = emit(relax.op.nn.relu(x) if positive else relax.op.negative(emit(relax.op.abs(x))))
        padded = emit(relax.op.nn.pad(data, [0, 0, 0, 0, width, 0, 0, width]))
        return relax.op.nn.max_pool2d(padded, [3, 3], [2, 2], ceil_mode=ceil)

    answer = compute({"x": x}, body)
    data = torch.tensor(x).relu() if positive else -torch.tensor(x).abs()
    padded = functional.pad(data, (0, width, width, 0))
    wanted = functional.max_pool2d(padded, 3, 2, ceil_mode=ceil)
    np.testing.assert_array_equal(answer.outputs[0], wanted)
    assert has_padding(answer) is not folded


def test_a_volume_in_channels_last_order():
    x, weight = draw(1, 4, 5, 6, 8), draw(16, 8, 3, 3, 3)

    def body(emit, x, weight):
        padded = emit(relax.op.nn.pad(x, [0, 0, 1, 0, 2, 0, 0, 3, 0, 0]))
        layouts = {"data_layout": "NDHWC", "kernel_layout": "OIDHW", "out_layout": "NDHWC"}
        return relax.op.nn.conv3d(padded, weight, **layouts)

    answer = compute({"x": x}, body, {"weight": weight})
    padded = functional.pad(torch.tensor(x).permute(0, 4, 1, 2, 3), (0, 3, 2, 0, 1, 0))
    wanted = functional.conv3d(padded, torch.tensor(weight)).permute(0, 2, 3, 4, 1)
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-3, atol=1e-3)
