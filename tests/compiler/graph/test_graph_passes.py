"""The graph passes: what they rewrite computes the same as before, and weights leave the code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from relax_models import compute, const, lowered, run
from relax_models import module as made
from torch.nn import functional
from tvm import relax

from farm.compiler import relax_pipeline
from farm.errors import BuildError

OP = relax.op
numbers = np.random.default_rng(4)


def draw(*shape: int) -> Any:
    return numbers.standard_normal(shape).astype("float32")


AWKWARD = np.array([np.nan, np.inf, -np.inf, -1, -0.0, 0.5, 6, 7], "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "bounds", [(0, 6), (-0.5, 0.5), (6, 0), (0, np.inf), (-np.inf, 1e4)], ids=str
)
def test_clip_is_what_it_is_in_torch_for_nan_infinities_and_bounds_in_the_wrong_order(
    bounds, dtype
):
    x = AWKWARD.astype(dtype)
    (ours,) = compute({"x": x}, lambda emit, x: emit(OP.clip(x, *bounds))).outputs
    np.testing.assert_array_equal(ours, torch.from_numpy(x).clamp(*bounds).numpy())


def test_clip_of_integers_keeps_every_bit():
    x = np.array([1 << 60, -(1 << 60), 5, (1 << 53) + 1])
    (ours,) = compute({"x": x}, lambda emit, x: emit(OP.clip(x, -7, (1 << 60) - 1))).outputs
    np.testing.assert_array_equal(ours, [(1 << 60) - 1, -7, 5, (1 << 53) + 1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_finite_and_infinite_numbers_are_told_apart_in_one_comparison(dtype):
    """A kernel has one copy of what is tested, and of all that is fused into it."""
    x = AWKWARD.astype(dtype)

    def graph(emit, x):
        one = relax.const(1, dtype)
        return [emit(test(emit(OP.add(x, one)))) for test in (OP.isfinite, OP.isinf)]

    finite, infinite = compute({"x": x}, graph).outputs
    np.testing.assert_array_equal(finite, np.isfinite(x))
    np.testing.assert_array_equal(infinite, np.isinf(x))
    kernel = str(lowered({"x": x}, lambda emit, x: graph(emit, x)[0]).module)
    assert len(re.findall(r"\+ T\.float\d\d\(1\.0\)", kernel)) == 1


def test_clip_between_convolutions_needs_no_transposes():
    def body(emit, x, v, w):
        return emit(OP.nn.conv2d(emit(OP.clip(emit(OP.nn.conv2d(x, v)), 0, 6)), w))

    answer = compute(
        {"x": draw(1, 8, 9, 9)}, body, {"v": draw(16, 8, 3, 3), "w": draw(16, 16, 3, 3)}
    )
    assert answer.rules == ["convolution", "convolution"]
    assert len(answer.kernels) <= 4  # and a transpose at both ends


def test_dropout_is_its_input():
    x = draw(2, 5)
    (ours,) = compute(
        {"x": x},
        lambda emit, x: emit(OP.negative(emit(relax.TupleGetItem(emit(OP.nn.dropout(x, 0.5)), 0)))),
    ).outputs
    np.testing.assert_array_equal(ours, -x)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.5], ids=str)
def test_a_tensor_may_be_full_of_anything(value, dtype):
    x = np.zeros((2, 3), dtype)

    def body(emit, x):
        return [
            emit(OP.full((2, 3), const(value, dtype), dtype)),
            emit(OP.full_like(x, const(value, dtype))),
        ]

    for ours in compute({"x": x}, body).outputs:
        np.testing.assert_array_equal(ours, np.full((2, 3), value, dtype))


def test_a_causal_mask_is_minus_infinity_before_a_softmax():
    x = draw(5, 5)

    def body(emit, x):
        hidden = emit(OP.less(emit(OP.tril(emit(OP.ones_like(x)))), const(1)))
        return emit(
            OP.nn.softmax(emit(OP.where(hidden, emit(OP.full((), const(-np.inf), "float32")), x)))
        )

    expected = torch.from_numpy(x).masked_fill(torch.ones(5, 5).tril() < 1, -torch.inf).softmax(-1)
    np.testing.assert_allclose(compute({"x": x}, body).outputs[0], expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("groups", [1, 8])
def test_a_model_that_tvm_cannot_lay_out_still_gets_fast_convolutions(groups):
    x, w = draw(1, 8, 6, 7), draw(16 // (2 if groups > 1 else 1), 8 // groups, 3, 3)

    def body(emit, x, w):
        y = emit(OP.nn.conv2d(x, w, strides=(2, 1), padding=(1, 0, 1, 2), groups=groups))
        return emit(
            OP.stack([y, emit(OP.nn.relu(y))], 0)
        )  # TVM's ConvertLayout has no rule for stack, and fails

    answer = compute({"x": x}, body, {"w": w})
    exact = functional.conv2d(
        functional.pad(torch.from_numpy(x), (0, 2, 1, 1)),
        torch.from_numpy(w),
        None,
        (2, 1),
        groups=groups,
    )
    np.testing.assert_allclose(
        answer.outputs[0], torch.stack([exact, exact.relu()]).numpy(), atol=1e-4
    )
    assert answer.rules == ["convolution" if groups == 1 else "depthwise"]


def test_a_model_that_tvm_cannot_lay_out_still_gets_fast_transposed_convolutions():
    x, w = draw(1, 8, 6, 7), draw(8, 4, 4, 1)

    def body(emit, x, w):
        y = emit(OP.nn.conv2d_transpose(x, w, (2, 1), (1, 0, 1, 0), (1, 0), groups=2))
        return emit(OP.stack([y, emit(OP.nn.relu(y))], 0))

    answer = compute({"x": x}, body, {"w": w})
    exact = functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), None, (2, 1), (1, 0), (1, 0), groups=2
    )
    np.testing.assert_allclose(
        answer.outputs[0], torch.stack([exact, exact.relu()]).numpy(), atol=1e-4
    )
    assert "interleaved" in answer.rules


AFTER_A_CONVOLUTION = {
    "1-d": (
        lambda emit, y, w: emit(OP.nn.conv1d(emit(OP.reshape(y, (1, 16, 36))), w)),
        (8, 16, 3),
        lambda y, w: functional.conv1d(y.flatten(2), w),
    ),
    "3-d": (
        lambda emit, y, w: emit(OP.nn.conv3d(emit(OP.expand_dims(y, 1)), w)),
        (8, 1, 3, 3, 3),
        lambda y, w: functional.conv3d(y.unsqueeze(1), w),
    ),
    "transposed": (
        lambda emit, y, w: emit(OP.nn.conv2d_transpose(y, w, (2, 2))),
        (16, 8, 2, 2),
        lambda y, w: functional.conv_transpose2d(y, w, None, 2),
    ),
}


@pytest.mark.parametrize("kind", AFTER_A_CONVOLUTION)
def test_a_convolution_of_another_kind_may_follow(kind):
    body, shape, expected = AFTER_A_CONVOLUTION[kind]
    x, v, w = draw(1, 3, 8, 8), draw(16, 3, 3, 3), draw(*shape)
    answer = compute(
        {"x": x}, lambda emit, x, v, w: body(emit, emit(OP.nn.conv2d(x, v)), w), {"v": v, "w": w}
    )
    exact = expected(
        *(functional.conv2d(torch.from_numpy(x), torch.from_numpy(v)), torch.from_numpy(w))
    )
    np.testing.assert_allclose(answer.outputs[0], exact.numpy(), atol=1e-3)
    assert answer.rules == [
        "convolution",
        "convolution",
        *(["interleaved"] if kind == "transposed" else []),
    ]


def test_an_input_may_have_the_name_of_a_weight():
    x, w = draw(2, 16), draw(16, 16)
    both = [relax.Var("w", relax.TensorType(value.shape, "float32")) for value in (x, w)]
    builder = relax.BlockBuilder()
    with builder.function("main", both, attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(OP.matmul(*both))
        builder.emit_func_output(result)
    bound = relax_pipeline.bind_weights(builder.get(), [w])
    assert [parameter.name for parameter in bound["main"].params] == ["w"]


def parameters_of(body, weights, x=None):
    return lowered({"x": draw(2, 32) if x is None else x}, body, weights).parameters


def test_constants_larger_than_64_bytes_become_parameters_once_each():
    weight = draw(32, 32)

    def body(emit, x, first, second, third):
        for w in (first, second, third):
            x = emit(OP.matmul(x, w))
        return emit(OP.add(x, const(3)))

    parameters = parameters_of(body, {"first": weight, "second": draw(32, 32), "third": weight})
    assert [
        parameter.shape[0] * parameter.shape[1] * parameter.shape[2] for parameter in parameters
    ] == [32 * 32] * 2


def test_equal_bytes_of_another_type_or_shape_are_another_parameter():
    zeros = np.zeros(32, "float32")
    values = {"a": zeros, "b": zeros.view("int32"), "c": zeros.reshape(1, 32), "d": zeros.copy()}
    low = lowered({"x": draw(1)}, lambda emit, x, *weights: list(weights), values)
    assert [(value.dtype, value.shape) for value in low.parameters] == [
        ("float32", (32,)),
        ("int32", (32,)),
        ("float32", (1, 32)),
    ]
    for ours, theirs in zip(run(low, [draw(1)]), values.values(), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def test_outputs_may_be_inputs_constants_and_the_same_twice():
    x, w = draw(2, 5), draw(30)
    low = lowered({"x": x}, lambda emit, x, w: [x, w, const(7), emit(OP.exp(x)), x, w], {"w": w})
    outputs = run(low, [x])
    for ours, theirs in zip(outputs, [x, w, np.float32(7), np.exp(x), x, w], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert ours.shape == theirs.shape
    assert len(low.parameters) == 1


def test_a_model_without_weights_has_no_parameters():
    low = lowered({"x": draw(2, 5)}, lambda emit, x: emit(OP.exp(x)))
    assert low.parameters == []
    assert len(low.module["main"].params) == 1


@pytest.mark.parametrize(
    ("body", "function"),
    [
        (lambda emit, x: emit(OP.sort(x)), "tvm.contrib.sort.sort"),
        (lambda emit, x: emit(OP.nonzero(x)), "relax.run.nonzero"),
    ],
)
def test_functions_that_are_not_on_a_board_are_refused_by_name(body, function):
    with pytest.raises(BuildError) as caught:
        lowered({"x": draw(2, 5)}, body)
    assert function in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("axis", [1, -1])
def test_a_batch_norm_without_a_convolution_is_a_factor_and_a_summand(axis):
    x, rest = draw(3, 5, 4, 5), [draw(5) for _ in range(3)] + [np.abs(draw(5))]

    def body(emit, x, *rest):
        return emit(
            relax.TupleGetItem(emit(OP.nn.batch_norm(x, *rest, axis=axis, epsilon=1e-3)), 0)
        )

    answer = compute({"x": x}, body, {f"w{index}": value for index, value in enumerate(rest)})
    gamma, beta, mean, variance = (torch.from_numpy(value) for value in rest)
    first = np.moveaxis(x, axis, 1).copy()
    expected = functional.batch_norm(
        torch.from_numpy(first), mean, variance, gamma, beta, eps=1e-3
    ).numpy()
    np.testing.assert_allclose(
        answer.outputs[0], np.moveaxis(expected, 1, axis), rtol=1e-5, atol=1e-5
    )
    assert [
        kernel.name for kernel in answer.kernels if "divide" in kernel.name or "sqrt" in kernel.name
    ] == []


def shuffled(emit, x, groups, channels, height, width):
    apart = emit(OP.reshape(x, (2, groups, channels // groups, height, width)))
    return emit(
        OP.reshape(emit(OP.permute_dims(apart, [0, 2, 1, 3, 4])), (2, channels, height, width))
    )


def test_channel_shuffles_slices_and_concatenations_leave_no_transposes_between_convolutions():
    def body(emit, x, v, w):
        y = shuffled(emit, emit(OP.nn.conv2d(x, v)), 3, 12, 5, 7)
        left = emit(OP.strided_slice(y, [1, -1], [0, 1], [6, 7], [1, 2]))
        right = emit(OP.nn.conv2d(emit(OP.strided_slice(y, [1, 3], [6, 1], [12, 7], [1, 2])), w))
        both = shuffled(emit, emit(OP.concat([left, right], 1)), 2, 12, 5, 3)
        return emit(OP.nn.conv2d(both, v))

    x, v, w = draw(2, 12, 5, 7), draw(12, 12, 1, 1), draw(6, 6, 1, 1)
    answer = compute({"x": x}, body, {"v": v, "w": w})
    first, second = (torch.from_numpy(value) for value in (v, w))
    y = functional.channel_shuffle(functional.conv2d(torch.from_numpy(x), first), 3)[..., 1:7:2]
    both = torch.cat([y[:, :6], functional.conv2d(y[:, 6:], second)], 1)
    np.testing.assert_allclose(
        answer.outputs[0],
        functional.conv2d(functional.channel_shuffle(both, 2), first),
        rtol=1e-4,
        atol=1e-4,
    )
    module = relax_pipeline.run_passes_before_legalization(
        relax_pipeline.bind_weights(made({"x": x}, body, {"v": v, "w": w}), [v, w])
    )
    turns: list[list[int]] = []

    def note(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(node.op, "name", "") == "relax.permute_dims":
            turns.append([int(axis) for axis in node.attrs.axes])

    relax.analysis.post_order_visit(module["main"], note)
    assert sorted(turns) == sorted([[0, 2, 3, 1], [0, 1, 2, 4, 3], [0, 1, 2, 4, 3], [0, 3, 1, 2]])


def test_padding_between_convolutions_is_of_its_axes_and_with_its_value():
    def body(emit, x, v, w):
        made = emit(OP.nn.conv2d(x, v))
        return emit(OP.nn.conv2d(emit(OP.nn.pad(made, [0, 0, 1, 0, 0, 2, 3, 0], "constant", 7)), w))

    x, v, w = draw(2, 4, 5, 7), draw(12, 4, 1, 1), draw(6, 13, 2, 3)
    first, second = (torch.from_numpy(value) for value in (v, w))
    padded = functional.pad(
        functional.conv2d(torch.from_numpy(x), first), (3, 0, 0, 2, 1, 0), value=7
    )
    answer = compute({"x": x}, body, {"v": v, "w": w})
    np.testing.assert_allclose(
        answer.outputs[0], functional.conv2d(padded, second), rtol=1e-4, atol=1e-4
    )


def test_a_transpose_that_is_no_shuffle_stays_what_it_is():
    def body(emit, x, v):
        y = emit(OP.nn.conv2d(x, v))
        apart = emit(
            OP.reshape(y, (2, 3, 4, 7, 5))
        )  # height and width changed places in memory, too
        return emit(OP.reshape(emit(OP.permute_dims(apart, [0, 2, 1, 3, 4])), (2, 12, 5, 7)))

    x, v = draw(2, 12, 5, 7), draw(12, 12, 1, 1)
    y = functional.conv2d(torch.from_numpy(x), torch.from_numpy(v)).numpy()
    expected = y.reshape(2, 3, 4, 7, 5).transpose(0, 2, 1, 3, 4).reshape(2, 12, 5, 7)
    np.testing.assert_allclose(
        compute({"x": x}, body, {"v": v}).outputs[0], expected, rtol=1e-4, atol=1e-4
    )


def test_hundreds_of_joined_parts_are_several_kernels():
    """TVM inlines the parts of one kernel in the square of their number: minutes for 500."""
    parts, x = 150, np.arange(450, dtype=np.float32).reshape(150, 3)

    def body(emit, given):
        rows = [
            emit(relax.op.abs(emit(relax.op.strided_slice(given, [0], [row], [row + 1]))))
            for row in reversed(range(parts))
        ]
        return relax.op.concat(rows, 0)

    answer = compute({"x": x}, body)
    np.testing.assert_array_equal(answer.outputs[0], x[::-1])
    assert max(kernel.name.count("abs") for kernel in answer.lowered.kernels) < parts / 2
