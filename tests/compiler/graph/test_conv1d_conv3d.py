"""Convolutions and pools over one axis and over three have the schedules of those over two, and are
right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from relax_models import Answer, compute, const, lowered, run
from torch import nn
from torch.nn import functional
from tvm import relax, tirx

OP = relax.op
numbers = np.random.default_rng(20)


def draw(*shape: int) -> Any:
    return numbers.standard_normal(shape).astype("float32")


def agree(ours: Answer, *theirs: torch.Tensor) -> None:
    assert len(ours.outputs) == len(theirs)
    for one, other in zip(ours.outputs, theirs, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-4)


@settings(max_examples=12)
@given(
    batch=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 6]),
    channels=st.sampled_from([6, 12]),
    length=st.integers(9, 40),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_a_convolution_over_rows_is_right_and_scheduled(
    batch, groups, channels, length, kernel, stride, dilation, padding
):
    x, w = draw(batch, 6, length), draw(channels, 6 // groups, kernel)
    ours = compute(
        {"x": x},
        lambda emit, x, w: emit(OP.nn.conv1d(x, w, stride, padding, dilation, groups)),
        {"w": w},
    )
    padded = functional.pad(torch.from_numpy(x), padding)
    agree(
        ours,
        functional.conv1d(
            padded, torch.from_numpy(w), stride=stride, dilation=dilation, groups=groups
        ),
    )
    assert ours.rules or groups > 1, (
        ours.kernels
    )  # groups of few channels have no schedule over planes either


@settings(max_examples=8)
@given(
    batch=st.integers(1, 2),
    sizes=st.tuples(st.integers(3, 7), st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 2)] * 6),
)
@example(1, (4, 5, 6), (2, 3, 3), (1, 2, 1), (0, 1, 2, 1, 2, 0))
def test_a_convolution_over_volumes_is_right_and_scheduled(batch, sizes, kernel, stride, padding):
    x, w = draw(batch, 3, *sizes), draw(5, 3, *kernel)
    ours = compute({"x": x}, lambda emit, x, w: emit(OP.nn.conv3d(x, w, stride, padding)), {"w": w})
    front, top, left, back, bottom, right = padding
    padded = functional.pad(torch.from_numpy(x), (left, right, top, bottom, front, back))
    agree(ours, functional.conv3d(padded, torch.from_numpy(w), stride=stride))
    assert ours.rules, ours.kernels


@pytest.mark.parametrize(
    ("more", "dilation", "groups"), [(0, 1, 1), (1, 1, 1), (0, 2, 1), (1, 1, 2)]
)
def test_a_transposed_convolution_over_rows_is_right(more, dilation, groups):
    x, w = draw(2, 6, 9), draw(6, 4, 5)
    geometry = {"strides": 2, "padding": (1, 1), "output_padding": more}
    geometry |= {"dilation": dilation, "groups": groups}
    ours = compute(
        {"x": x}, lambda emit, x, w: emit(OP.nn.conv1d_transpose(x, w, **geometry)), {"w": w}
    )
    agree(
        ours,
        functional.conv_transpose1d(
            torch.from_numpy(x), torch.from_numpy(w), None, 2, 1, more, groups, dilation
        ),
    )
    assert {*ours.rules} == {"convolution", "interleaved"}


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "more", "dilation"),
    [
        ((1, 6, 4, 5, 3), (2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
        ((2, 3, 3, 4, 4), (3, 3, 3), (2, 1, 2), (1, 1, 1), (1, 0, 1), (1, 1, 1)),
        (
            (1, 3, 4, 2, 3),
            (2, 3, 1),
            (3, 2, 1),
            (0, 1, 0),
            (2, 0, 0),
            (2, 1, 1),
        ),  # phases that meet no plane
        ((1, 3, 3, 4, 5), (3, 3, 3), (2, 1, 2), (0, 1, 2, 1, 0, 1), (0, 0, 0), (1, 1, 1)),
    ],
)
def test_a_transposed_convolution_over_volumes_is_right_and_scheduled(
    shape, kernel, stride, padding, more, dilation
):
    x, w, v = draw(*shape), draw(shape[1], 5, *kernel), draw(4, 5, 1, 1, 1)

    def body(emit, x, w, v):
        grown = emit(OP.nn.conv3d_transpose(x, w, stride, padding, more, dilation))
        return emit(OP.nn.conv3d(emit(OP.nn.relu(grown)), v))

    ours = compute({"x": x}, body, {"w": w, "v": v})
    grown = functional.conv_transpose3d(
        torch.from_numpy(x), torch.from_numpy(w), None, stride, 0, more, 1, dilation
    )
    begin, end = padding[:3], padding[-3:]
    for axis, extent in enumerate(grown.shape[2:]):
        kept = torch.arange(begin[axis], extent - end[axis])
        grown = grown.index_select(axis + 2, kept)
    agree(ours, functional.conv3d(grown.relu(), torch.from_numpy(v)))
    assert {"convolution", "interleaved"} <= {*ours.rules}, ours.kernels


def test_a_dilated_convolution_over_volumes_skips_planes():
    x, w = draw(1, 2, 7, 6, 6), draw(4, 2, 3, 3, 3)
    ours = compute(
        {"x": x}, lambda emit, x, w: emit(OP.nn.conv3d(x, w, dilation=(2, 1, 2))), {"w": w}
    )
    agree(ours, functional.conv3d(torch.from_numpy(x), torch.from_numpy(w), dilation=(2, 1, 2)))


def test_pools_over_rows_are_those_of_torch():
    x = draw(2, 5, 18)

    def body(emit, x):
        largest = emit(OP.nn.max_pool1d(x, 3, 2, (1, 1)))
        of_all = emit(OP.nn.max_pool1d(x, 3, 2, (1, 1), ceil_mode=True))
        mean = emit(OP.nn.avg_pool1d(x, 4, 3, (2, 2), count_include_pad=True))
        of_inside = emit(OP.nn.avg_pool1d(x, 4, 3, (2, 2), count_include_pad=False))
        apart = emit(OP.nn.max_pool1d(x, 3, 2, (1, 1), dilation=2))
        adapted = [emit(OP.nn.adaptive_avg_pool1d(x, length)) for length in (1, 7)]
        return [largest, of_all, mean, of_inside, apart, *adapted]

    t = torch.from_numpy(x)
    agree(
        compute({"x": x}, body),
        *(
            functional.max_pool1d(t, 3, 2, 1),
            functional.max_pool1d(t, 3, 2, 1, ceil_mode=True),
            functional.avg_pool1d(t, 4, 3, 2),
            functional.avg_pool1d(t, 4, 3, 2, count_include_pad=False),
            functional.max_pool1d(t, 3, 2, 1, dilation=2),
            t.mean(2, keepdim=True),
            functional.adaptive_avg_pool1d(t, 7),
        ),
    )


def test_a_row_is_cut_and_joined_along_itself():
    x, w = draw(2, 3, 20), draw(8, 3, 3)

    def body(emit, x, w):
        made = emit(OP.nn.conv1d(x, w))
        parts = [
            emit(OP.strided_slice(made, [2, 1], [1, 0], [16, 8], [3, 1])),
            emit(OP.strided_slice(made, [-1], [2], [6], [1])),
        ]
        return emit(OP.concat(parts, -1))

    made = functional.conv1d(torch.from_numpy(x), torch.from_numpy(w))
    agree(compute({"x": x}, body, {"w": w}), torch.cat([made[..., 1:16:3], made[..., 2:6]], 2))


def test_between_convolutions_over_rows_nothing_is_moved():
    """Bias, activation, gates of halves, residuals, concatenations: a wave net's layers."""
    x, u, v, w = draw(1, 3, 50), draw(8, 3, 1), draw(16, 8, 3), draw(8, 16, 3)
    bias = draw(16, 1)

    def body(emit, x, u, v, w):
        begin = emit(OP.nn.conv1d(x, u))
        gates = emit(OP.add(emit(OP.nn.conv1d(begin, v, padding=(2, 2), dilation=2)), const(bias)))
        halves = [emit(OP.strided_slice(gates, [1], [first], [first + 8], [1])) for first in (0, 8)]
        gated = emit(OP.multiply(emit(OP.tanh(halves[0])), emit(OP.sigmoid(halves[1]))))
        both = emit(OP.concat([gated, begin], 1))
        return emit(OP.nn.relu(emit(OP.add(emit(OP.nn.conv1d(both, w, padding=(1, 1))), begin))))

    ours = compute({"x": x}, body, {"u": u, "v": v, "w": w})
    begin = functional.conv1d(torch.from_numpy(x), torch.from_numpy(u))
    gates = functional.conv1d(begin, torch.from_numpy(v), padding=2, dilation=2) + torch.from_numpy(
        bias
    )
    gated = torch.tanh(gates[:, :8]) * torch.sigmoid(gates[:, 8:])
    agree(
        ours,
        functional.relu(
            functional.conv1d(torch.cat([gated, begin], 1), torch.from_numpy(w), padding=1) + begin
        ),
    )
    assert ours.rules == ["convolution"] * 3
    moved = [kernel.name for kernel in ours.kernels if "transpose" in kernel.name]
    assert len(moved) == 1, ours.kernels  # at the end: the first convolution reads planes


def test_a_row_is_turned_for_a_product_and_back_without_a_copy():
    x, v, w = draw(1, 12, 30), draw(8, 12, 3), draw(8, 6)

    def body(emit, x, v, w):
        return emit(OP.matmul(emit(OP.permute_dims(emit(OP.nn.conv1d(x, v)), [0, 2, 1])), w))

    ours = compute({"x": x}, body, {"v": v, "w": w})
    agree(
        ours,
        functional.conv1d(torch.from_numpy(x), torch.from_numpy(v)).transpose(1, 2)
        @ torch.from_numpy(w),
    )
    assert ours.rules == ["convolution", "dense"]
    moved = [kernel.name for kernel in ours.kernels if "transpose" in kernel.name]
    assert [name for name in moved if "convolution" not in name] == ["fused_expand_dims_transpose"]


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("name", ["max", "min", "mean", "sum"])
def test_a_row_is_reduced_to_one_value_for_each_channel(name, keepdims):
    x, w = draw(2, 3, 20), draw(4, 3, 3)
    ours = compute(
        {"x": x},
        lambda emit, x, w: emit(getattr(OP, name)(emit(OP.nn.conv1d(x, w)), 2, keepdims)),
        {"w": w},
    )
    reduce = {"max": torch.amax, "min": torch.amin, "mean": torch.mean, "sum": torch.sum}[name]
    agree(
        ours,
        reduce(functional.conv1d(torch.from_numpy(x), torch.from_numpy(w)), 2, keepdim=keepdims),
    )


@pytest.mark.parametrize("axes", [1, 3])
def test_a_batch_norm_goes_into_the_convolution_before_it(axes):
    """Over rows and volumes, as over planes: two kernels for two such pairs, with what is added and
    activated.
    """
    convolution, norm = (nn.Conv1d, nn.BatchNorm1d) if axes == 1 else (nn.Conv3d, nn.BatchNorm3d)
    network = nn.Sequential(convolution(3, 8, 3, padding=1), norm(8), nn.ReLU()).eval()
    norm_ = network[1]
    norm_.running_mean.uniform_(-1, 1)
    norm_.running_var.uniform_(0.5, 2)
    x = draw(2, 3, *[7] * axes)
    weights = {
        name: value.detach().numpy() for name, value in network.state_dict().items() if value.ndim
    }
    operator = OP.nn.conv1d if axes == 1 else OP.nn.conv3d

    def body(emit, x, weight, bias, *normal):
        made = emit(
            OP.add(
                emit(operator(x, weight, padding=1)), emit(OP.reshape(bias, [1, 8, *[1] * axes]))
            )
        )
        return emit(
            OP.nn.relu(emit(relax.TupleGetItem(emit(OP.nn.batch_norm(made, *normal, axis=1)), 0)))
        )

    ours = compute({"x": x}, body, weights)
    agree(ours, network(torch.from_numpy(x)).detach())
    assert ours.rules == ["convolution"] or ours.rules == ["winograd"], ours.kernels


@pytest.mark.parametrize("axes", [1, 3])
def test_numbers_of_64_bits_keep_them(axes):
    x, w = (numbers.standard_normal(shape) for shape in ((1, 3, *[6] * axes), (4, 3, *[3] * axes)))
    operator, theirs = (
        (OP.nn.conv1d, functional.conv1d) if axes == 1 else (OP.nn.conv3d, functional.conv3d)
    )
    (ours,) = compute({"x": x}, lambda emit, x, w: emit(operator(x, w)), {"w": w}).outputs
    np.testing.assert_allclose(
        ours, theirs(torch.from_numpy(x), torch.from_numpy(w)).numpy(), rtol=1e-12, atol=1e-12
    )


def test_a_residual_of_volumes_and_one_that_is_none_are_right():
    x, v, w = draw(1, 4, 5, 6, 6), draw(4, 4, 3, 3, 3), draw(4, 4, 1, 1, 1)

    def body(emit, x, v, w):
        one, other = emit(OP.nn.conv3d(x, v, padding=1)), emit(OP.nn.conv3d(x, w))
        return emit(OP.multiply(emit(OP.add(emit(OP.add(one, other)), x)), const(np.float32(0.5))))

    t, tv, tw = map(torch.from_numpy, (x, v, w))
    agree(
        compute({"x": x}, body, {"v": v, "w": w}),
        0.5 * (functional.conv3d(t, tv, padding=1) + functional.conv3d(t, tw) + t),
    )


def test_an_open_batch_of_rows_and_volumes_stays_open():
    batch = tirx.Var("batch", "int64")
    rows, volumes = (
        relax.TensorType([batch, 3, *extents], "float32") for extents in ([12], [4, 6, 6])
    )
    v, w = draw(8, 3, 3), draw(8, 3, 3, 3, 3)

    def body(emit, x, y, v, w):
        return [
            emit(OP.nn.relu(emit(OP.nn.conv1d(x, v)))),
            emit(OP.nn.relu(emit(OP.nn.conv3d(y, w, padding=1)))),
        ]

    x, y = draw(3, 3, 12), draw(3, 3, 4, 6, 6)
    low = lowered({"x": rows, "y": volumes}, body, {"v": v, "w": w})
    t, u, tv, tw = map(torch.from_numpy, (x, y, v, w))
    expected = (
        functional.relu(functional.conv1d(t, tv)),
        functional.relu(functional.conv3d(u, tw, padding=1)),
    )
    agree(Answer(run(low, [x, y]), low.kernels, low), *expected)


def test_grouped_volumes_are_left_to_the_general_rule_and_right():
    x, w = draw(1, 4, 4, 5, 5), draw(4, 1, 2, 3, 3)
    ours = compute({"x": x}, lambda emit, x, w: emit(OP.nn.conv3d(x, w, groups=4)), {"w": w})
    agree(ours, functional.conv3d(torch.from_numpy(x), torch.from_numpy(w), groups=4))
    assert ours.rules == []


def test_a_channel_shuffle_is_no_volume():
    x = draw(1, 8, 6, 6)

    def body(emit, x):
        turned = emit(OP.permute_dims(emit(OP.reshape(x, (1, 2, 4, 6, 6))), [0, 2, 1, 3, 4]))
        return emit(OP.reshape(emit(OP.nn.relu(turned)), (1, 8, 6, 6)))

    agree(
        compute({"x": x}, body),
        functional.relu(torch.from_numpy(x))
        .reshape(1, 2, 4, 6, 6)
        .transpose(1, 2)
        .reshape(1, 8, 6, 6),
    )


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 1, 20), (2, 1, 1, 1, 1)], ids=str)
def test_a_row_meets_an_operand_of_more_axes(shape):
    x, w, other = draw(1, 3, 20), draw(8, 3, 1), draw(*shape)
    ours = compute(
        {"x": x},
        lambda emit, x, w: emit(OP.multiply(emit(OP.nn.conv1d(x, w)), const(other))),
        {"w": w},
    )
    agree(
        ours, functional.conv1d(torch.from_numpy(x), torch.from_numpy(w)) * torch.from_numpy(other)
    )


@pytest.mark.parametrize("axis", [1, 2])
def test_a_slope_for_each_channel_or_each_place_of_a_row(axis):
    x, w = draw(1, 3, 20), draw(8, 3, 1)
    slope = draw((8, 20)[axis - 1])
    ours = compute(
        {"x": x},
        lambda emit, x, w, slope: emit(OP.nn.prelu(emit(OP.nn.conv1d(x, w)), slope, axis)),
        {"w": w, "slope": slope},
    )
    made = functional.conv1d(torch.from_numpy(x), torch.from_numpy(w))
    shaped = torch.from_numpy(slope).reshape((1, 8, 1) if axis == 1 else (1, 1, 20))
    agree(ours, torch.where(made > 0, made, made * shaped))
