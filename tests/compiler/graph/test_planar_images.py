"""Convolutions of images read planes as they are; others get a transpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, compute, lowered, module, run
from target_profiles import ARM64
from torch.nn import functional
from tvm import relax, tirx

from farm.compiler.lower import lower_module, resolve_target

OP = relax.op
numbers = np.random.default_rng(5)


def draw(*shape: int) -> Any:
    return numbers.standard_normal(shape).astype("float32")


def network(emit, x, w, **geometry):
    return emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, **geometry))))


@pytest.mark.parametrize("cpu", CPUS)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=some.data())
def test_a_convolution_of_planes_is_right_without_a_transpose_before_it(cpu, data):
    kernel = data.draw(some.tuples(some.integers(1, 5), some.integers(1, 5)))
    dilation = data.draw(some.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)]))
    strides = data.draw(some.tuples(some.integers(1, 3), some.integers(1, 3)))
    padding = tuple(data.draw(some.integers(0, 3)) for _ in range(4))
    least = [(size - 1) * apart + 1 for size, apart in zip(kernel, dilation, strict=True)]
    size = [data.draw(some.integers(one, one + 25)) for one in least]
    channels, outputs = data.draw(some.integers(1, 4)), data.draw(some.sampled_from([1, 8, 24, 33]))
    x = draw(data.draw(some.sampled_from([1, 2])), channels, *size)
    w = draw(outputs, channels, *kernel)
    answer = compute(
        {"x": x},
        lambda emit, x, w: network(emit, x, w, strides=strides, padding=padding, dilation=dilation),
        {"w": w},
        cpu,
    )
    top, left, bottom, right = padding
    padded = functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    exact = functional.conv2d(padded, torch.from_numpy(w), stride=strides, dilation=dilation).relu()
    np.testing.assert_allclose(answer.outputs[0], exact.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 4])
def test_no_kernel_comes_before_the_convolution_of_an_image(channels):
    answer = compute(
        {"x": draw(1, channels, 40, 40)},
        lambda emit, x, w: network(emit, x, w, strides=(2, 2), padding=(1, 1, 1, 1)),
        {"w": draw(32, channels, 3, 3)},
    )
    kernels = [kernel.name for kernel in answer.kernels]
    assert [name for name in kernels if "transpose" not in name] == ["fused_convolution_relu"]
    assert len(kernels) == 2  # with the transpose of the output


def test_an_open_batch_of_planes_is_right():
    x, w = draw(3, 3, 20, 20), draw(16, 3, 3, 3)
    n = tirx.Var("n", "int64")
    low = lowered(
        {"x": relax.TensorType((n, 3, 20, 20), "float32")},
        lambda emit, x, w: network(emit, x, w, padding=(1, 1, 1, 1)),
        {"w": w},
    )
    exact = functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).relu()
    np.testing.assert_allclose(run(low, [x])[0], exact.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("channels", "groups"), [(5, 1), (4, 2)])
def test_more_channels_and_groups_are_right_with_a_transpose(channels, groups):
    x, w = draw(1, channels, 18, 18), draw(16, channels // groups, 3, 3)
    answer = compute(
        {"x": x},
        lambda emit, x, w: network(emit, x, w, groups=groups, padding=(1, 1, 1, 1)),
        {"w": w},
    )
    assert len([kernel for kernel in answer.kernels if "transpose" in kernel.name]) == 2
    exact = functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1, groups=groups)
    np.testing.assert_allclose(answer.outputs[0], exact.relu().numpy(), rtol=1e-4, atol=1e-4)


def test_an_image_that_is_normalized_first_is_right():
    x, w = draw(1, 3, 18, 18), draw(16, 3, 3, 3)
    mean = draw(1, 3, 1, 1)
    answer = compute(
        {"x": x},
        lambda emit, x, w: network(
            emit, emit(OP.subtract(x, relax.const(mean))), w, padding=(1, 1, 1, 1)
        ),
        {"w": w},
    )
    exact = functional.conv2d(torch.from_numpy(x - mean), torch.from_numpy(w), padding=1).relu()
    np.testing.assert_allclose(answer.outputs[0], exact.numpy(), rtol=1e-4, atol=1e-4)


def test_kernels_that_load_several_numbers_of_a_pixel_at_once_get_a_transpose():
    x, w = draw(1, 3, 18, 18), draw(16, 3, 3, 3)
    given = module({"x": x}, lambda emit, x, w: network(emit, x, w), {"w": w})
    low = lower_module(given, [w], resolve_target(ARM64), {})
    assert len([kernel for kernel in low.kernels if "transpose" in kernel.name]) == 2
