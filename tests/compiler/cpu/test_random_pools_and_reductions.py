"""Windows, reductions and rows of any shape against torch: many generated kernels in one module,
compiled once for each kind of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, Array, compute
from torch.nn import functional
from tvm import relax

Case = tuple[Array, Callable[[Any, Any], Any], Callable[[torch.Tensor], torch.Tensor]]
LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
numbers = np.random.default_rng(3)


def draw(*shape: int) -> Array:
    return np.asarray(numbers.standard_normal(shape), "float32")


def first(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 3, 1, 2)


def last(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 2, 3, 1)


@some.composite
def windows(chosen: Any) -> Case:
    """A depthwise convolution or a pool; images of one pixel, strides beyond the window, padding
    that differs on each side.
    """
    batch, height, width = (
        chosen(some.sampled_from(values)) for values in ([1, 3], [1, 2, 7, 17], [1, 5, 9, 20])
    )
    channels = chosen(some.sampled_from([2, 3, 8, 16, 24, 17, 58]))
    kernel, strides = ((chosen(some.integers(1, 4)), chosen(some.integers(1, 4))) for _ in range(2))
    padding = chosen(some.tuples(*[some.integers(0, 2)] * 4))
    dilation = chosen(some.sampled_from([1, 1, 2]))
    top, left, bottom, right = padding
    height = max(height, dilation * (kernel[0] - 1) + 1 - top - bottom)
    width = max(width, dilation * (kernel[1] - 1) + 1 - left - right)
    data = draw(batch, height, width, channels)
    kind = chosen(some.sampled_from(["depthwise", "multiplied", "largest", "mean"]))
    if kind in ("depthwise", "multiplied"):
        weight = draw(
            *kernel, 1, channels * (1 if kind == "depthwise" else chosen(some.sampled_from([2, 3])))
        )
        given = relax.const(weight)
        options = {"strides": strides, "padding": padding, "dilation": dilation, "groups": channels}

        def convolved(x: torch.Tensor) -> torch.Tensor:
            around = functional.pad(first(x), (left, right, top, bottom))
            kernels = torch.from_numpy(weight).permute(3, 2, 0, 1)
            return last(
                functional.conv2d(around, kernels, None, strides, 0, dilation, channels)
            ).clamp(0, 6)

        return (
            data,
            lambda emit, x: emit(
                relax.op.clip(emit(relax.op.nn.conv2d(x, given, **options, **LAYOUT)), 0, 6)
            ),
            convolved,
        )
    even = (min(top, kernel[0] // 2), min(left, kernel[1] // 2))
    ceil = chosen(some.booleans())
    height, width = max(height, kernel[0]), max(width, kernel[1])
    data = draw(batch, height, width, channels)
    options = {"strides": strides, "padding": (*even, *even), "layout": "NHWC", "ceil_mode": ceil}
    if kind == "largest":
        largest = lambda emit, x: emit(relax.op.nn.max_pool2d(x, kernel, **options))  # noqa: E731
        return (
            data,
            largest,
            lambda x: last(functional.max_pool2d(first(x), kernel, strides, even, 1, ceil)),
        )
    counted = chosen(some.booleans())

    def mean(emit: Any, x: Any) -> Any:
        return emit(relax.op.nn.avg_pool2d(x, kernel, count_include_pad=counted, **options))

    return (
        data,
        mean,
        lambda x: last(functional.avg_pool2d(first(x), kernel, strides, even, ceil, counted)),
    )


@some.composite
def rows(chosen: Any) -> Case:
    """A reduction, softmax, layer norm or resize."""
    shape = chosen(some.tuples(*[some.sampled_from([1, 2, 3, 5, 16, 17, 33])] * 4))
    axes = sorted(chosen(some.sets(some.integers(0, 3), min_size=1, max_size=3)))
    width, size = shape[-1], chosen(some.tuples(some.integers(1, 9), some.integers(1, 9)))
    gain, shift = (
        relax.const(np.linspace(1, 2, width, dtype="float32")),
        relax.const(np.full(width, 0.5, "float32")),
    )
    cases: list[tuple[Callable[[Any, Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = [
        (lambda emit, x: emit(relax.op.mean(x, axes)), lambda x: x.mean(axes)),
        (lambda emit, x: emit(relax.op.sum(x, axes, keepdims=True)), lambda x: x.sum(axes, True)),
        (lambda emit, x: emit(relax.op.max(x, axes)), lambda x: x.amax(axes)),
        (lambda emit, x: emit(relax.op.nn.softmax(x, axes[0])), lambda x: x.softmax(axes[0])),
        (
            lambda emit, x: emit(relax.op.nn.layer_norm(x, gain, shift, [-1], 1e-5)),
            lambda x: functional.layer_norm(
                x, (width,), torch.linspace(1, 2, width), torch.full((width,), 0.5)
            ),
        ),
        (
            lambda emit, x: emit(
                relax.op.image.resize2d(
                    x, size, method="linear", coordinate_transformation_mode="half_pixel"
                )
            ),
            lambda x: functional.interpolate(x, size, mode="bilinear"),
        ),
    ]
    return draw(*shape), *chosen(some.sampled_from(cases))


@pytest.mark.parametrize("cpu", CPUS)
@settings(max_examples=2, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(cases=some.lists(some.one_of(windows(), windows(), rows()), min_size=25, max_size=25))
def test_windows_reductions_and_rows_of_any_shape_are_right(cases, cpu):
    inputs = {f"x{index}": data for index, (data, _, _) in enumerate(cases)}
    answer = compute(
        inputs,
        lambda emit, *xs: [body(emit, x) for x, (_, body, _) in zip(xs, cases, strict=True)],
        cpu=cpu,
    )
    for got, (data, _, exact) in zip(answer.outputs, cases, strict=True):
        wanted = exact(torch.from_numpy(data)).numpy()
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=1e-4)
    assert answer.notes == []
    assert "none" not in answer.rules
