"""Norms over groups of channels, as ONNX has them, against torch; and what stays apart from a
transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, compute, lowered, run
from torch.nn import functional
from tvm import relax, tirx

OP = relax.op
numbers = np.random.default_rng(7)
EPSILON = 0.02  # so large that a norm with another one differs


def draw(*shape: int) -> Any:
    return numbers.standard_normal(shape).astype("float32")


def norm_of(emit, x, groups, gain, bias):
    """As TVM imports what torch writes of a group norm: an instance norm of groups between two
    reshapes, then factors and summands.
    """
    shape = list(x.ty.shape.values)
    x = emit(OP.reshape(x, [shape[0], groups, -1]))
    mean, variance = emit(OP.mean(x, [2], keepdims=True)), emit(OP.variance(x, [2], keepdims=True))
    root = emit(OP.sqrt(emit(OP.add(variance, relax.const(EPSILON, "float32")))))
    result = emit(OP.divide(emit(OP.subtract(x, mean)), root))
    ones, zeros = (
        relax.const(np.ones((groups, 1), "float32")),
        relax.const(np.zeros((groups, 1), "float32")),
    )
    result = emit(OP.reshape(emit(OP.add(emit(OP.multiply(result, ones)), zeros)), shape))
    return emit(OP.add(emit(OP.multiply(result, gain)), bias))


@pytest.mark.parametrize("cpu", CPUS)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=some.data())
def test_a_group_norm_of_any_shape_is_right(cpu, data):
    groups, each = (
        data.draw(some.sampled_from([1, 1, 2, 3, 8])),
        data.draw(some.sampled_from([1, 2, 5, 16])),
    )
    pixels = data.draw(
        some.one_of(
            some.tuples(some.integers(1, 40)), some.tuples(some.integers(1, 9), some.integers(1, 9))
        )
    )
    shape = data.draw(some.sampled_from([1, 3])), groups * each, *pixels
    x, gain, bias = (
        3 + draw(*shape),
        draw(shape[1], *[1] * len(pixels)),
        draw(shape[1], *[1] * len(pixels)),
    )
    (ours,) = compute(
        {"x": x}, lambda emit, x, g, b: norm_of(emit, x, groups, g, b), {"g": gain, "b": bias}, cpu
    ).outputs
    apart = x.astype("float64").reshape(shape[0], groups, -1)
    normed = (apart - apart.mean(2, keepdims=True)) / np.sqrt(apart.var(2, keepdims=True) + EPSILON)
    np.testing.assert_allclose(ours, normed.reshape(shape) * gain + bias, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("groups", [1, 32])
def test_a_group_norm_between_convolutions_turns_no_image_around(groups):
    def body(emit, x, v, w, g, b):
        return emit(OP.nn.conv2d(norm_of(emit, emit(OP.nn.conv2d(x, v)), groups, g, b), w))

    x, weights = (
        draw(1, 16, 12, 12),
        {
            "v": draw(32, 16, 1, 1),
            "w": draw(16, 32, 1, 1),
            "g": draw(32, 1, 1),
            "b": draw(32, 1, 1),
        },
    )
    answer = compute({"x": x}, body, weights)
    turned = [
        kernel
        for kernel in answer.kernels
        if "transpose" in kernel.name and kernel.operations >= x.size
    ]
    assert len(turned) == 2  # the input and the output
    assert not any("variance" in kernel.name for kernel in answer.kernels)
    with torch.no_grad():
        first = functional.conv2d(
            torch.from_numpy(x).double(), torch.from_numpy(weights["v"]).double()
        )
        normed = functional.group_norm(first, groups, eps=EPSILON) * torch.from_numpy(
            weights["g"]
        ) + torch.from_numpy(weights["b"])
        wanted = functional.conv2d(normed, torch.from_numpy(weights["w"]).double()).numpy()
    np.testing.assert_allclose(answer.outputs[0], wanted, atol=2e-3, rtol=1e-3)


def test_a_group_norm_of_an_open_batch_is_right_at_every_size():
    open_type = relax.TensorType([tirx.Var("batch", "int64"), 8, 5, 5], "float32")
    gain, bias = draw(8, 1, 1), draw(8, 1, 1)
    low = lowered(
        {"x": open_type}, lambda emit, x, g, b: norm_of(emit, x, 2, g, b), {"g": gain, "b": bias}
    )
    for batch in (1, 4):
        x = draw(batch, 8, 5, 5)
        wanted = functional.group_norm(torch.from_numpy(x), 2, eps=EPSILON).numpy() * gain + bias
        np.testing.assert_allclose(run(low, [x])[0], wanted, atol=1e-4)


def test_another_quotient_is_left_alone():
    x = draw(2, 6, 7)

    def body(emit, x):
        variance = emit(
            OP.add(emit(OP.variance(x, [1], keepdims=True)), relax.const(EPSILON, "float32"))
        )
        return emit(
            OP.divide(
                emit(OP.subtract(x, emit(OP.mean(x, [2], keepdims=True)))), emit(OP.sqrt(variance))
            )
        )

    (ours,) = compute({"x": x}, body).outputs
    np.testing.assert_allclose(
        ours, (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON), atol=1e-4
    )


def test_the_spread_of_another_tensor_is_no_norm():
    x, y = draw(2, 6, 7), 3 * draw(2, 6, 7)

    def body(emit, x, y):
        of_other = emit(
            OP.add(emit(OP.variance(y, [2], keepdims=True)), relax.const(EPSILON, "float32"))
        )
        centred = emit(OP.subtract(x, emit(OP.mean(x, [2], keepdims=True))))
        return emit(OP.divide(centred, emit(OP.sqrt(of_other))))

    (ours,) = compute({"x": x, "y": y}, body).outputs
    wanted = (x - x.mean(2, keepdims=True)) / np.sqrt(y.var(2, keepdims=True) + EPSILON)
    np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_factors_of_which_some_are_one_and_summands_of_which_some_are_zero_count():
    x, row = draw(2, 3, 4), draw(4)
    factors = np.array([[1], [2], [1]], "float32")
    summands = np.array([[0], [0], [5]], "float32")
    ones = np.ones((2, 3, 4), "float32")

    def body(emit, x, row, factors, summands, ones):
        return [
            emit(OP.multiply(x, factors)),
            emit(OP.add(summands, x)),
            emit(OP.multiply(row, ones)),  # which repeats the row
        ]

    weights = {"factors": factors, "summands": summands, "ones": ones}
    found = compute({"x": x, "row": row}, body, weights).outputs
    for ours, theirs in zip(found, (x * factors, x + summands, row * ones), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_sum_over_rows_takes_is_kept_nowhere():
    x, y = draw(64, 32), draw(32)
    answer = compute(
        {"x": x, "y": y},
        lambda emit, x, y: emit(OP.sum(emit(OP.multiply(d := emit(OP.subtract(x, y)), d)), [0])),
    )
    (kernel,) = (
        function
        for name, function in answer.lowered.module.functions_items()
        if "sum" in str(name.name_hint)
    )
    assert "sblock_alloc_buffer" not in kernel.script()
    np.testing.assert_allclose(answer.outputs[0], ((x - y) ** 2).sum(0), rtol=1e-4)


def test_a_reshape_of_a_transpose_that_is_summed_is_a_view():
    x = draw(1, 12, 10, 32)

    def body(emit, x):
        turned = emit(OP.reshape(emit(OP.permute_dims(x, [0, 3, 1, 2])), [1, 2, 16, 12, 10]))
        return [emit(OP.multiply(turned, relax.const(2.0, "float32"))), emit(OP.sum(turned, [1]))]

    answer = compute({"x": x}, body)
    assert not any(
        "transpose" in kernel.name and "reshape" in kernel.name for kernel in answer.kernels
    )
    turned = x.transpose(0, 3, 1, 2).reshape(1, 2, 16, 12, 10)
    np.testing.assert_array_equal(answer.outputs[0], 2 * turned)
    np.testing.assert_allclose(answer.outputs[1], turned.sum(1), rtol=1e-5, atol=1e-6)


def test_a_reshape_of_a_transpose_is_fused_with_what_is_done_to_each_element():
    def body(emit, x):
        return emit(OP.nn.relu(emit(OP.reshape(emit(OP.permute_dims(x, [0, 3, 1, 2])), [1, 384]))))

    x = draw(1, 4, 3, 32)
    answer = compute({"x": x}, body)
    assert len(answer.kernels) == 1
    np.testing.assert_array_equal(
        answer.outputs[0], np.maximum(x.transpose(0, 3, 1, 2).reshape(1, 384), 0)
    )


def test_an_image_is_resized_before_it_is_transposed():
    def body(emit, x, w):
        convolved = emit(OP.nn.conv2d(x, w))
        return emit(
            OP.image.resize2d(
                convolved,
                (24, 30),
                layout="NCHW",
                method="linear",
                coordinate_transformation_mode="half_pixel",
            )
        )

    x, w = draw(1, 8, 6, 5), draw(21, 8, 1, 1)
    answer = compute({"x": x}, body, {"w": w})
    assert not any(
        "resize" in kernel.name and "transpose" in kernel.name for kernel in answer.kernels
    )
    wanted = functional.interpolate(
        functional.conv2d(torch.from_numpy(x), torch.from_numpy(w)), (24, 30), mode="bilinear"
    ).numpy()
    np.testing.assert_allclose(answer.outputs[0], wanted, atol=1e-4)


@pytest.mark.parametrize("pixels", [(31,), (9, 7)])
@pytest.mark.parametrize("groups", [1, 3, 12, None])
def test_a_norm_as_torch_writes_it_keeps_the_digits_of_data_far_from_zero(groups, pixels):
    """The mean of squares less the square of the mean would keep two digits of this."""
    x, gain, bias = 100 + draw(2, 12, *pixels), draw(12), draw(12)
    axes = list(range(2, 2 + len(pixels)))

    def norm(emit, x, gain, bias):
        if groups is None:
            return emit(OP.nn.instance_norm(x, gain, bias, 1, axes, EPSILON))
        return emit(OP.nn.group_norm(x, gain, bias, groups, 1, axes, EPSILON))

    (ours,) = compute({"x": x}, norm, {"g": gain, "b": bias}).outputs
    data, weight, shift = (torch.from_numpy(one).double() for one in (x, gain, bias))
    theirs = functional.group_norm(data, groups or 12, weight, shift, EPSILON)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 6, 50), (1, 6, 9, 11), (2, 6, 9, 11), (1, 6, 4, 5, 6)])
def test_a_norm_over_the_batch_too_keeps_the_digits_of_data_far_from_zero(shape):
    """torch writes an instance norm so, of one image that has the channels of all."""
    x, gain, bias = 100 + draw(*shape), draw(6), draw(6)
    axes = [0, *range(2, len(shape))]

    def body(emit, x, gain, bias):
        return emit(OP.nn.instance_norm(x, gain, bias, channel_axis=1, axes=axes, epsilon=EPSILON))

    [found] = compute({"x": x}, body, {"gain": gain, "bias": bias}).outputs
    exact = functional.batch_norm(
        *(torch.from_numpy(x).double(), None, None),
        *(torch.from_numpy(gain).double(), torch.from_numpy(bias).double()),
        training=True,
        eps=EPSILON,
    )
    np.testing.assert_allclose(found, exact.numpy(), atol=5e-4)


def test_a_norm_of_groups_of_volumes_keeps_the_digits_of_data_far_from_zero():
    x, gain, bias = 100 + draw(2, 6, 4, 5, 6), draw(6), draw(6)

    def body(emit, x, gain, bias):
        return emit(OP.nn.group_norm(x, gain, bias, 3, 1, [2, 3, 4], EPSILON))

    [found] = compute({"x": x}, body, {"gain": gain, "bias": bias}).outputs
    exact = functional.group_norm(
        torch.from_numpy(x).double(),
        3,
        torch.from_numpy(gain).double(),
        torch.from_numpy(bias).double(),
        EPSILON,
    )
    np.testing.assert_allclose(found, exact.numpy(), atol=5e-4)


def test_a_layer_norm_over_several_axes_is_one_over_their_product():
    x, gain, bias = 100 + draw(3, 4, 5, 8), draw(4, 5, 8), draw(4, 5, 8)

    def body(emit, x, gain, bias):
        return emit(OP.nn.layer_norm(x, gain, bias, axes=[-3, -2, -1], epsilon=EPSILON))

    answer = compute({"x": x}, body, {"gain": gain, "bias": bias})
    exact = functional.layer_norm(
        torch.from_numpy(x).double(),
        (4, 5, 8),
        torch.from_numpy(gain).double(),
        torch.from_numpy(bias).double(),
        EPSILON,
    )
    np.testing.assert_allclose(answer.outputs[0], exact.numpy(), atol=1e-4)
    assert answer.rules == ["layer_norm"]


def test_the_norm_of_a_constant_is_a_constant():
    """As weight standardization of convolutions is."""
    weight = 5 + draw(1, 8, 3 * 9)
    ones, zeros = np.ones(8, "float32"), np.zeros(8, "float32")

    def network(emit, x, weight, ones, zeros):
        normed = emit(OP.nn.instance_norm(weight, ones, zeros, 1, [2], EPSILON))
        return emit(OP.nn.conv2d(x, emit(OP.reshape(normed, [8, 3, 3, 3])), padding=[1, 1]))

    constants = {"w": weight, "ones": ones, "zeros": zeros}
    made = compute({"x": draw(1, 3, 9, 9)}, network, constants)
    assert [kernel.rule for kernel in made.kernels if "mean" in kernel.name] == []
