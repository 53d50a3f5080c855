"""Every kind of kernel but convolutions against torch and numpy, and which rule each of them
gets.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_models import CPUS, compute, const, lowered, module, run, target
from torch.nn import functional
from tvm import relax, tirx

from farm.compiler.graph.convolutions.transposed_conv import fastest_axis_plans
from farm.compiler.lower import lower_module

numbers = np.random.default_rng(1)


def draw(*shape: int, dtype: str = "float32") -> Any:
    return numbers.standard_normal(shape).astype(dtype)


def close(ours, theirs):
    for one, other in zip(ours, theirs if isinstance(theirs, list) else [theirs], strict=True):
        other = other.numpy() if isinstance(other, torch.Tensor) else np.asarray(other)
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize(
    ("depth", "width"), [(16, 64), (7, 8), (33, 1000), (5, 10), (1, 1), (700, 200)]
)
def test_a_dense_layer(rows, depth, width, cpu):
    x, w, b = draw(rows, depth), draw(depth, width), draw(width)
    answer = compute(
        {"x": x},
        lambda emit, x, w, b: emit(
            relax.op.nn.relu(emit(relax.op.add(emit(relax.op.matmul(x, w)), b)))
        ),
        {"w": w, "b": b},
        cpu,
    )
    close(answer.outputs, np.maximum(x.astype("float64") @ w + b, 0))
    assert (answer.rules, answer.notes) == (["dense"], [])


def test_a_dense_layer_without_anything_after_it():
    x, w = draw(3, 16), draw(16, 32)
    answer = compute({"x": x}, lambda emit, x, w: emit(relax.op.matmul(x, w)), {"w": w})
    close(answer.outputs, x @ w)
    assert answer.rules == ["dense"]


SEQUENCES = [(50, 1, 24), (1, 33, 1, 64), (7, 1, 1, 16), (200, 1, 80)]  # [time, a batch of one, K]


def of_sequence(emit, x, w, b, more):
    """A product, and what follows it in sequences: a bias, an activation, and a sum."""
    made = emit(relax.op.nn.silu(emit(relax.op.add(emit(relax.op.matmul(x, w)), b))))
    return emit(relax.op.add(emit(relax.op.multiply(made, const(0.5))), more))


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("width", [32, 40, 5])
@pytest.mark.parametrize("shape", SEQUENCES)
def test_rows_of_a_product_may_be_on_an_axis_before_a_batch_of_one(shape, width, cpu):
    x, more = draw(*shape), draw(*shape[:-1], width)
    weights = {"w": draw(shape[-1], width), "b": draw(width)}

    def body(emit, x, more, w, b):
        return of_sequence(emit, x, w, b, more)

    answer = compute({"x": x, "more": more}, body, weights, cpu)
    [kernel] = [one for one in answer.kernels if one.rule == "dense"]
    assert f"x{max(shape[:-1])}x{shape[-1]} " in kernel.workload
    assert (answer.rules, answer.notes) == (["dense"], [])
    made = x.astype("float64") @ weights["w"] + weights["b"]
    wanted = made / (1 + np.exp(-made)) / 2 + more
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("cpu", CPUS)
def test_such_rows_may_be_exchanged_or_all_there_is_after_the_product(cpu):
    x, w = draw(50, 1, 24), draw(24, 48)

    def body(emit, x, w):
        made = emit(relax.op.matmul(x, w))
        heads = emit(relax.op.reshape(made, [50, 1, 4, 12]))
        return emit(relax.op.permute_dims(heads, [1, 2, 0, 3]))

    answer = compute({"x": x}, body, {"w": w}, cpu)
    assert "dense" in answer.rules and not any(answer.notes)
    wanted = (x @ w).reshape(50, 1, 4, 12).transpose(1, 2, 0, 3)
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-4, atol=1e-4)
    alone = compute({"x": x}, lambda emit, x, w: emit(relax.op.matmul(x, w)), {"w": w}, cpu)
    assert (alone.rules, alone.notes) == (["dense"], [])
    np.testing.assert_allclose(alone.outputs[0], x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("shape", [(2, 5, 16), (1, 1, 16), (3, 2, 17, 16), (1, 197, 16)], ids=str)
def test_a_dense_layer_over_further_axes(shape, cpu):
    x, w, b = draw(*shape), draw(16, 40), draw(40)
    answer = compute(
        {"x": x},
        lambda emit, x, w, b: emit(relax.op.add(emit(relax.op.matmul(x, w)), b)),
        {"w": w, "b": b},
        cpu,
    )
    close(answer.outputs, x @ w + b)
    assert (answer.rules, answer.notes) == (["dense"], [])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 16), (16, 32)),
        ((2, 4, 16), (2, 16, 8)),
        ((1, 3, 19, 8), (1, 3, 8, 19)),  # as in attention, the tokens filling no vectors
        ((4, 1, 5, 7), (1, 3, 7, 16)),
        ((2, 1, 1), (2, 1, 1)),
    ],
    ids=str,
)
def test_a_product_of_two_inputs(shapes, cpu):
    x, y = (draw(*shape) for shape in shapes)
    answer = compute(
        {"x": x, "y": y},
        lambda emit, x, y: emit(relax.op.multiply(emit(relax.op.matmul(x, y)), const(0.5))),
        cpu=cpu,
    )
    close(answer.outputs, x @ y / 2)
    assert (answer.rules, answer.notes) == (["product"], [])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("width", "matrices", "rules"),
    [
        (501, 3, []),
        (512, 3, ["product"]),  # it fills blocks
        (501, 1, ["product"]),  # six rows share it
        (131, 3, ["product"]),  # 17 or 33 vectors of sums: one at a time, or few, is in flight
    ],
)
def test_a_right_operand_is_not_put_into_blocks_for_few_rows(width, matrices, rules, cpu):
    x, y = draw(3, 2, 24), draw(matrices, 24, width)
    answer = compute({"x": x, "y": y}, lambda emit, x, y: emit(relax.op.matmul(x, y)), cpu=cpu)
    close(answer.outputs, x @ y)
    assert (answer.rules, answer.notes) == (rules, [])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "activate", [relax.op.sigmoid, relax.op.nn.silu, None], ids=["sigmoid", "silu", "nothing"]
)
def test_the_factor_of_a_channel_is_computed_once_and_not_for_each_pixel(activate, cpu):
    factors, image, w, b = draw(3, 1, 1, 12), draw(3, 7, 5, 40), draw(1, 1, 12, 40), draw(40)

    def gated(emit, factors, image, w, b):
        factor = emit(
            relax.op.add(
                emit(relax.op.nn.conv2d(factors, w, data_layout="NHWC", kernel_layout="HWIO")), b
            )
        )
        return emit(
            relax.op.nn.relu(
                emit(relax.op.multiply(image, emit(activate(factor)) if activate else factor))
            )
        )

    answer = compute({"factors": factors, "image": image}, gated, {"w": w, "b": b}, cpu)
    named = {None: lambda x: x, relax.op.sigmoid: torch.sigmoid, relax.op.nn.silu: functional.silu}
    close(
        answer.outputs,
        (torch.tensor(image) * named[activate](torch.tensor(factors @ w[0] + b))).relu(),
    )
    assert (answer.rules, answer.notes) == (["convolution"], [])
    (kernel,) = (
        function.script()
        for variable, function in answer.lowered.module.functions_items()
        if "convolution" in variable.name_hint
    )
    *_, last = kernel.split("T.sblock(")
    assert "exp" not in last and "T.Let" not in last, (
        "what is made of a factor is not made of it again for each pixel"
    )


@pytest.mark.parametrize("cpu", CPUS)
def test_what_a_depthwise_convolution_is_added_to_may_be_taken_again(cpu):
    x, factor, w = draw(1, 6, 9, 16), draw(16), draw(3, 3, 16, 1)

    def mixed(emit, x, factor, w):
        scaled = emit(relax.op.multiply(x, factor))
        sums = emit(
            relax.op.nn.conv2d(x, w, padding=1, groups=16, data_layout="NHWC", kernel_layout="HWOI")
        )
        return emit(
            relax.op.subtract(emit(relax.op.nn.relu(emit(relax.op.add(scaled, sums)))), scaled)
        )

    answer = compute({"x": x}, mixed, {"factor": factor, "w": w}, cpu)
    image, scaled = (torch.tensor(value).permute(0, 3, 1, 2) for value in (x, x * factor))
    theirs = (
        scaled + functional.conv2d(image, torch.tensor(w).permute(2, 3, 0, 1), padding=1, groups=16)
    ).relu() - scaled
    close(answer.outputs, theirs.permute(0, 2, 3, 1))
    assert (answer.rules, answer.notes) == (["depthwise"], [])


def convolved(emit, x, w):
    return emit(relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"))


def slid(emit, x, w):
    attributes = {"groups": 16, "data_layout": "NHWC", "kernel_layout": "HWOI"}
    return emit(relax.op.nn.conv2d(x, w, padding=1, **attributes))


@pytest.mark.parametrize(
    ("sums", "weight", "rule"),
    [
        (convolved, (1, 1, 16, 16), "convolution"),
        (slid, (3, 3, 16, 1), "depthwise"),
        (lambda emit, x, w: emit(relax.op.matmul(x, w)), (16, 16), "dense"),
    ],
    ids=["convolution", "depthwise", "dense"],
)
def test_what_is_added_to_sums_may_be_computed_in_their_kernel(sums, weight, rule):
    x, w, a, b = draw(1, 6, 14, 16), draw(*weight), draw(1, 6, 14, 16), draw(1, 1, 1, 16)

    def mixed(emit, x, a, b, w):
        added = sums(emit, x, w)  # first: TVM fuses what follows it with it
        scaled = emit(relax.op.multiply(emit(relax.op.multiply(a, b)), const(0.5)))
        return emit(relax.op.add(scaled, added))

    answer = compute({"x": x, "a": a, "b": b}, mixed, {"w": w})
    alone = compute({"x": x}, lambda emit, x, w: sums(emit, x, w), {"w": w})
    close(answer.outputs, alone.outputs[0] + a * b / 2)
    assert (answer.rules, answer.notes) == ([rule], [])


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, -1, 2.5])
def test_whole_powers_are_products(exponent):
    x = np.array(
        [[-np.inf, -2.5, -0.0, 0.0, 1e-20, 0.3, 7.0, np.inf, np.nan, 1e13, -1e-13]], "float32"
    )
    answer = compute({"x": x}, lambda emit, x: emit(relax.op.power(x, const(exponent))))
    with np.errstate(all="ignore"):
        theirs = np.power(x.astype("float64"), exponent).astype("float32")
    np.testing.assert_allclose(answer.outputs[0], theirs, rtol=3e-7)
    code = "".join(str(function) for _, function in answer.lowered.module.functions_items())
    assert ("pow" in code) == (exponent not in (2, 3, 4))


def test_concatenations_of_slices_of_concatenations_do_not_grow_without_end():
    x = draw(4, 8, 8)

    def mixed(emit, x):
        for axis in (1, 2, 1, 2):
            parts = emit(relax.op.split(emit(relax.op.add(x, const(1))), 8, axis=axis))
            x = emit(
                relax.op.concat(
                    [emit(relax.TupleGetItem(parts, place)) for place in (3, 1, 4, 0, 5, 2, 7, 6)],
                    axis,
                )
            )
        return x

    answer = compute({"x": x}, mixed)
    turned = [3, 1, 4, 0, 5, 2, 7, 6]
    close(answer.outputs, (x + 4)[:, turned][:, turned][:, :, turned][:, :, turned])


@pytest.mark.parametrize(
    "shapes",
    [((16,), (16, 32)), ((3, 16), (16,)), ((2, 4, 16), (2, 16, 8)), ((0, 16), (16, 8))],
    ids=str,
)
def test_a_product_of_any_shape_is_right(shapes):
    x, w = (draw(*shape) for shape in shapes)
    answer = compute({"x": x}, lambda emit, x, w: emit(relax.op.matmul(x, w)), {"w": w})
    close(answer.outputs, x @ w)


IMAGE = draw(2, 5, 9, 7)
ROWS = draw(3, 4, 10)
KERNELS = {
    "max pool": (
        IMAGE,
        lambda emit, x: emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1))),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
    ),
    "average pool": (
        IMAGE,
        lambda emit, x: emit(relax.op.nn.avg_pool2d(x, (3, 2), (2, 1), (1, 0, 1, 0))),
        lambda x: functional.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False),
    ),
    "global average pool": (
        IMAGE,
        lambda emit, x: emit(relax.op.nn.adaptive_avg_pool2d(x, (1, 1))),
        lambda x: x.mean((2, 3), True),
    ),
    "softmax": (ROWS, lambda emit, x: emit(relax.op.nn.softmax(x, -1)), lambda x: x.softmax(-1)),
    "softmax over another axis": (
        ROWS,
        lambda emit, x: emit(relax.op.nn.softmax(x, 1)),
        lambda x: x.softmax(1),
    ),
    "log softmax": (
        ROWS,
        lambda emit, x: emit(relax.op.nn.log_softmax(x, -1)),
        lambda x: x.log_softmax(-1),
    ),
    "mean": (
        ROWS,
        lambda emit, x: emit(relax.op.mean(x, [1], keepdims=True)),
        lambda x: x.mean(1, True),
    ),
    "mean of everything": (ROWS, lambda emit, x: emit(relax.op.mean(x)), lambda x: x.mean()),
    "variance": (
        ROWS,
        lambda emit, x: emit(relax.op.variance(x, [0, 2])),
        lambda x: x.var((0, 2), unbiased=False),
    ),
    "largest of all": (
        ROWS,
        lambda emit, x: emit(relax.op.max(emit(relax.op.where(x > const(0), x, const(0))))),
        lambda x: x.relu().amax(),
    ),
    "largest": (ROWS, lambda emit, x: emit(relax.op.max(x, [2])), lambda x: x.amax(2)),
    "place of the largest": (
        ROWS,
        lambda emit, x: emit(relax.op.argmax(x, 1)),
        lambda x: x.argmax(1),
    ),
    "running sum": (ROWS, lambda emit, x: emit(relax.op.cumsum(x, 2)), lambda x: x.cumsum(2)),
    "concatenation": (
        ROWS,
        lambda emit, x: emit(relax.op.concat([x, emit(relax.op.exp(x))], 1)),
        lambda x: torch.cat([x, x.exp()], 1),
    ),
    "split": (
        ROWS,
        lambda emit, x: [
            emit(relax.TupleGetItem(emit(relax.op.split(x, [3], axis=2)), part)) for part in (0, 1)
        ],
        lambda x: [x[:, :, :3], x[:, :, 3:]],
    ),
    "transpose": (
        IMAGE,
        lambda emit, x: emit(relax.op.permute_dims(x, [0, 3, 1, 2])),
        lambda x: x.permute(0, 3, 1, 2),
    ),
    "reshape": (
        IMAGE,
        lambda emit, x: emit(relax.op.reshape(x, (2, 45, 7))),
        lambda x: x.reshape(2, 45, 7),
    ),
    "nearest resize": (
        IMAGE,
        lambda emit, x: emit(
            relax.op.image.resize2d(
                x, (18, 14), None, "NCHW", "nearest_neighbor", "asymmetric", "floor"
            )
        ),
        lambda x: functional.interpolate(x, scale_factor=2.0),
    ),
    "bilinear resize": (
        IMAGE,
        lambda emit, x: emit(
            relax.op.image.resize2d(
                x, (13, 20), method="linear", coordinate_transformation_mode="half_pixel"
            )
        ),
        lambda x: functional.interpolate(x, (13, 20), mode="bilinear"),
    ),
    "padding": (
        IMAGE,
        lambda emit, x: emit(relax.op.nn.pad(x, (0, 0, 0, 0, 1, 2, 3, 0))),
        lambda x: functional.pad(x, (3, 0, 1, 2)),
    ),
    "slice": (
        ROWS,
        lambda emit, x: emit(relax.op.strided_slice(x, [2], [9], [-11], [-2])),
        lambda x: x.flip(2)[:, :, ::2],
    ),
    "gelu": (ROWS, lambda emit, x: emit(relax.op.nn.gelu(x)), lambda x: functional.gelu(x)),
    "silu": (ROWS, lambda emit, x: emit(relax.op.nn.silu(x)), lambda x: functional.silu(x)),
    "choice": (
        ROWS,
        lambda emit, x: emit(
            relax.op.where(emit(relax.op.greater(x, const(0))), x, emit(relax.op.negative(x)))
        ),
        lambda x: x.abs(),
    ),
}


OWN_RULES = {
    "softmax": ["softmax"],
    "log softmax": ["log_softmax"],
    "mean of everything": ["row_reduction"],
    "largest of all": ["row_reduction"],
}
RULES_OF_NARROW_VECTORS = {"x86-64": {"largest": ["row_reduction"]}}


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_right(name, cpu):
    data, body, expected = KERNELS[name]
    answer = compute({"x": data}, body, cpu=cpu)
    close(answer.outputs, expected(torch.from_numpy(data)))
    if name != "running sum":  # TVM's scan is no loop nest
        rules = OWN_RULES | RULES_OF_NARROW_VECTORS.get(cpu, {})
        assert (answer.rules, answer.notes) == (rules.get(name, []), [])


@pytest.mark.parametrize("channels", [7, 16])
def test_an_average_counts_its_padding_but_nothing_behind_it(channels):
    x = draw(2, 5, 9, channels)
    answer = compute(
        {"x": x},
        lambda emit, x: emit(
            relax.op.nn.avg_pool2d(
                x, (3, 3), (3, 3), (0, 1), ceil_mode=True, layout="NHWC", count_include_pad=True
            )
        ),
    )
    image = torch.from_numpy(x).permute(0, 3, 1, 2)
    expected = functional.avg_pool2d(image, 3, 3, (0, 1), ceil_mode=True)
    close(answer.outputs, expected.permute(0, 2, 3, 1))


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding", "ceil", "rule"),
    [
        ((1, 16, 9, 7), 3, 2, 1, False, ["max_pool"]),
        ((3, 24, 13, 13), 2, 2, 0, False, ["max_pool"]),
        ((1, 16, 4, 5), 2, 3, 0, False, ["max_pool"]),  # strides larger than the window
        ((1, 58, 13, 13), 3, 1, 1, False, ["max_pool"]),
        ((1, 16, 8, 8), 3, 2, 0, True, ["max_pool"]),  # windows that reach beyond the image
        ((1, 17, 9, 7), 3, 2, 1, False, ["max_pool"]),
    ],
    ids=str,
)
def test_a_maximum_over_windows_after_a_convolution(shape, size, stride, padding, ceil, rule, cpu):
    x, w = draw(*shape), draw(shape[1], shape[1], 1, 1)

    def body(emit, x, w):
        image = emit(relax.op.nn.conv2d(x, w))
        sizes = (size, size), (stride, stride), (padding,) * 4
        return [emit(relax.op.nn.max_pool2d(image, *sizes, ceil_mode=ceil)), image]

    answer = compute({"x": x}, body, {"w": w}, cpu)
    exact = functional.max_pool2d(
        functional.conv2d(torch.from_numpy(x), torch.from_numpy(w)), size, stride, padding, 1, ceil
    )
    close(answer.outputs[:1], exact)
    assert (answer.rules, answer.notes) == (["convolution", *rule], [])


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("image", "weight", "stride", "padding", "dilation"),
    [
        ((1, 64, 10, 9), (32, 64, 1, 1), 1, 0, 1),
        ((1, 16, 11, 12), (48, 16, 3, 3), 2, 1, 1),
        ((3, 24, 9, 9), (10, 24, 5, 5), 1, 0, 1),  # no whole block of output channels
        ((1, 8, 14, 14), (16, 8, 3, 3), 1, 2, 2),
    ],
    ids=str,
)
def test_a_convolution_with_a_weight_that_is_computed(
    image, weight, stride, padding, dilation, cpu
):
    x, w = draw(*image), draw(*weight)

    def body(emit, x, w):
        return emit(
            relax.op.nn.conv2d(
                x, emit(relax.op.nn.relu(w)), stride, (padding,) * 4, (dilation, dilation)
            )
        )

    answer = compute({"x": x, "w": w}, body, {}, cpu)
    exact = functional.conv2d(
        torch.from_numpy(x), torch.from_numpy(w).relu(), None, stride, padding, dilation
    )
    close(answer.outputs, exact)
    assert (answer.rules, answer.notes) == (["convolution"], [])


def test_a_grouped_convolution_with_a_weight_that_is_computed_is_right():
    x, w = draw(1, 12, 9, 8), draw(8, 3, 3, 3)
    answer = compute({"x": x, "w": w}, lambda emit, x, w: emit(relax.op.nn.conv2d(x, w, groups=4)))
    exact = functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), groups=4)
    close(answer.outputs, exact)


def test_a_maximum_of_nothing_but_minus_infinity_is_minus_infinity():
    x, w = np.full((1, 16, 9, 7), -np.inf, "float32"), np.ones((16, 1, 1, 1), "float32")
    x[0, 3, 4, 4] = 2

    def body(emit, x, w):
        image = emit(relax.op.nn.conv2d(x, w, groups=16))
        return emit(relax.op.nn.max_pool2d(image, (3, 3), (2, 2), (1, 1, 1, 1)))

    answer = compute({"x": x}, body, {"w": w})
    exact = functional.max_pool2d(torch.from_numpy(x), 3, 2, 1)
    np.testing.assert_array_equal(answer.outputs[0], exact.numpy())
    assert "max_pool" in answer.rules


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("channels", [(16, 48), (58, 58), (3, 40), (1, 1)], ids=str)
def test_a_concatenation_of_channels_after_convolutions(channels, cpu):
    x, v, w = draw(1, 8, 9, 9), draw(channels[0], 8, 1, 1), draw(channels[1], 8, 1, 1)

    def body(emit, x, v, w):
        return emit(
            relax.op.concat([emit(relax.op.nn.conv2d(x, v)), emit(relax.op.nn.conv2d(x, w))], 1)
        )

    exact = [functional.conv2d(torch.from_numpy(x), torch.from_numpy(weight)) for weight in (v, w)]
    close(compute({"x": x}, body, {"v": v, "w": w}, cpu).outputs, torch.cat(exact, 1))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("shape", [(3, 197), (2, 3, 33, 64), (1, 7), (5, 16), (2, 1)], ids=str)
def test_a_softmax(shape, cpu):
    x = 9 * draw(*shape)
    answer = compute(
        {"x": x},
        lambda emit, x: emit(relax.op.multiply(emit(relax.op.nn.softmax(x, -1)), const(2))),
        cpu=cpu,
    )
    close(answer.outputs, 2 * torch.from_numpy(x).softmax(-1))
    assert (answer.rules, answer.notes) == (["softmax"], [])


def test_the_logarithm_of_a_softmax_is_exact_where_the_softmax_is_zero():
    x = np.array([[0, -200, -np.inf, 3], [-np.inf, 5, 5, 5], [300, 1, 2, -1e30]], "float32")
    answer = compute({"x": x}, lambda emit, x: emit(relax.op.nn.log_softmax(x, -1)))
    exact = torch.from_numpy(x).double().log_softmax(-1)
    np.testing.assert_allclose(answer.outputs[0], exact.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["softmax", "layer_norm"])
def test_a_padding_may_follow_the_rows_of_a_softmax_or_a_norm(rule):
    x, gain, bias = draw(1, 16, 16, 96), draw(96), draw(96)

    def body(emit, x, g, b):
        normed = relax.op.nn.layer_norm(x, g, b, axes=[-1])
        rows = emit(relax.op.nn.softmax(x, -1) if rule == "softmax" else normed)
        return emit(relax.op.nn.pad(rows, (0, 0, 0, 5, 0, 5, 0, 0), "constant", 0.0))

    answer = compute({"x": x}, body, {"g": gain, "b": bias})
    data, weight, shift = (torch.from_numpy(one) for one in (x, gain, bias))
    normed = functional.layer_norm(data, (96,), weight, shift)
    rows = data.softmax(-1) if rule == "softmax" else normed
    close(answer.outputs, functional.pad(rows, (0, 0, 0, 5, 0, 5)))
    assert (answer.rules, answer.notes) == ([rule], [])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("axis", [-1, 1])
def test_a_layer_norm_has_its_own_epsilon_and_axis(axis, cpu):
    x, gain, bias = draw(3, 16, 16), draw(16), draw(16)
    answer = compute(
        {"x": x},
        lambda emit, x, g, b: emit(
            relax.op.nn.layer_norm(x, g, b, axes=[axis], epsilon=0.3, center=True, scale=True)
        ),
        {"g": gain, "b": bias},
        cpu,
    )
    data, weight, shift = (torch.from_numpy(one) for one in (x, gain, bias))
    exact = functional.layer_norm(data.transpose(axis, -1), (16,), weight, shift, 0.3)
    close(answer.outputs, exact.transpose(axis, -1))
    assert (answer.rules, answer.notes) == (["layer_norm"] if axis == -1 else [], [])


def test_a_softmax_of_what_a_mask_hid_is_zero_there():
    x = draw(3, 40)
    x[:, 20:] = -np.inf
    close(
        compute({"x": x}, lambda emit, x: emit(relax.op.nn.softmax(x, -1))).outputs,
        torch.from_numpy(x).softmax(-1),
    )


AWKWARD = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        0,
        -0.0,
        1e-30,
        -1e-30,
        3e38,
        -3e38,
        88.7,
        88.8,
        -87.2,
        -103,
        0.5,
        -0.625,
        1e-3,
    ],
    "float32",
)
FUNCTIONS = {
    "exp": (relax.op.exp, torch.exp),
    "sigmoid": (relax.op.sigmoid, torch.sigmoid),
    "tanh": (relax.op.tanh, torch.tanh),
    "erf": (relax.op.erf, torch.erf),
    # The limit; torch computes infinity times 0
    "silu": (relax.op.nn.silu, lambda x: functional.silu(x).where(x != -np.inf, 0.0)),
    "gelu": (relax.op.nn.gelu, functional.gelu),
}


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "erf", "silu", "gelu"])
@pytest.mark.parametrize(
    ("options", "divides"),
    [
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, True),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, True),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"}, True),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, False),
    ],
    ids=lambda value: value["mcpu"] if isinstance(value, dict) else "",
)
def test_only_a_cpu_whose_division_is_fast_divides(name, options, divides):
    chosen = tvm.target.Target({"kind": "llvm", **options})
    called = module({"x": draw(64)}, lambda emit, x: emit(FUNCTIONS[name][0](x)))
    low = lower_module(called, [], chosen, {})
    code = tvm.compile(low.module, target=chosen).mod.imports[0].inspect_source("ll")
    assert (" fdiv " in code) == divides


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_to_six_digits_everywhere(name, cpu):
    ours, theirs = FUNCTIONS[name]
    x = np.concatenate(
        [
            AWKWARD,
            np.linspace(-100, 88, 2048, dtype="float32"),
            np.linspace(-6, 6, 4096, dtype="float32"),
        ]
    )
    answer = compute({"x": x}, lambda emit, x: emit(ours(x)), cpu=cpu)
    exact = theirs(torch.from_numpy(x).double()).float().numpy()
    np.testing.assert_allclose(answer.outputs[0], exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("cpu", CPUS)
def test_functions_with_limits_reach_them_to_the_bit(cpu):
    x = np.array([4.5, 6, 11, 88, 1e30, np.inf], "float32")
    x = np.concatenate([x, -x])
    tanh, erf = (
        compute({"x": 3 * x}, lambda emit, x, ours=ours: emit(ours(x)), cpu=cpu).outputs[0]
        for ours in (relax.op.tanh, relax.op.erf)
    )
    assert tanh.tolist() == erf.tolist() == np.sign(x).tolist()
    gelu = compute({"x": 3 * x[:-1]}, lambda emit, x: emit(relax.op.nn.gelu(x)), cpu=cpu)
    assert gelu.outputs[0].tolist() == np.maximum(3 * x[:-1], 0).tolist()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("width", [10, 192, 17])
def test_a_layer_norm(width, cpu):
    x, gain, bias = draw(2, 3, width), draw(width), draw(width)
    answer = compute(
        {"x": x},
        lambda emit, x, g, b: emit(relax.op.nn.layer_norm(x, g, b, [-1], 1e-3)),
        {"g": gain, "b": bias},
        cpu,
    )
    close(
        answer.outputs,
        functional.layer_norm(
            *map(torch.from_numpy, (x,)),
            (width,),
            torch.from_numpy(gain),
            torch.from_numpy(bias),
            1e-3,
        ),
    )
    assert (answer.rules, answer.notes) == (["layer_norm"], [])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("width", [3, 10, 192])
def test_a_layer_norm_of_rows_that_hardly_vary_is_precise(width, cpu):
    def normed(x):
        return compute(
            {"x": x},
            lambda emit, x, g, b: emit(relax.op.nn.layer_norm(x, g, b, [-1], 1e-5)),
            {"g": np.ones(width, "float32"), "b": np.full(width, 0.25, "float32")},
            cpu,
        ).outputs[0]

    assert (normed(np.repeat(40 * draw(64, 1), width, axis=1)) == 0.25).all()
    high = 1000 + draw(64, width)
    exact = functional.layer_norm(torch.from_numpy(high).double(), (width,)).numpy() + 0.25
    # half a unit in the last place of the mean, over the deviation
    spread = high.astype("float64").std(axis=1, keepdims=True)
    assert (np.abs(normed(high) - exact) * spread < 0.51 * np.spacing(np.float32(1000))).all()


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("shape", "weight", "strides", "padding", "extra"),
    [
        ((1, 3, 5, 5), (3, 16, 3, 3), (2, 2), (1, 1), (1, 1)),
        ((1, 8, 6, 9), (8, 32, 2, 2), (2, 2), (0, 0), (0, 0)),
        ((3, 5, 4, 3), (5, 7, 4, 3), (2, 1), (1, 2), (0, 0)),
        ((1, 4, 1, 1), (4, 58, 5, 5), (1, 1), (0, 0), (0, 0)),
        ((1, 4, 3, 3), (4, 16, 2, 1), (3, 4), (0, 0), (1, 2)),  # strides larger than the kernel
        (
            (2, 4, 7, 5),
            (4, 3, 3, 4),
            (2, 2),
            (2, 3),
            (1, 0),
        ),  # side by side, and more padding than a phase reaches
        (
            (1, 3, 3, 2),
            (3, 64, 6, 6),
            (2, 3),
            (3, 4),
            (1, 2),
        ),  # phases that meet a part of the image
    ],
    ids=str,
)
def test_a_transposed_convolution(shape, weight, strides, padding, extra, cpu):
    x, w, b = draw(*shape), draw(*weight), draw(1, weight[1], 1, 1)
    both = (*padding, *padding)

    def body(emit, x, w, b):
        return emit(
            relax.op.nn.relu(
                emit(
                    relax.op.add(emit(relax.op.nn.conv2d_transpose(x, w, strides, both, extra)), b)
                )
            )
        )

    answer = compute({"x": x}, body, {"w": w, "b": b}, cpu)
    exact = functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), None, strides, padding, extra
    )
    close(answer.outputs, (exact + torch.from_numpy(b)).relu())
    expected = {"convolution"} if strides == (1, 1) else {"convolution", "interleaved"}
    assert ({*answer.rules} - {"winograd"} | {"convolution"}, answer.notes) == (expected, [])


@pytest.mark.parametrize(
    ("groups", "dilation", "strides"),
    [(2, (1, 1), 2), (1, (2, 1), 2), (1, (2, 4), (4, 6)), (4, (1, 1), 2), (4, (3, 1), (2, 3))],
)
def test_a_transposed_convolution_in_groups_or_dilated(groups, dilation, strides):
    x, w = draw(1, 4, 5, 5), draw(4, 8 // groups, 3, 3)
    answer = compute(
        {"x": x},
        lambda emit, x, w: emit(
            relax.op.nn.conv2d_transpose(x, w, strides, dilation=dilation, groups=groups)
        ),
        {"w": w},
    )
    close(
        answer.outputs,
        functional.conv_transpose2d(
            torch.from_numpy(x), torch.from_numpy(w), None, strides, 0, 0, groups, dilation
        ),
    )
    assert "interleaved" in answer.rules


def test_a_transposed_depthwise_convolution_is_made_of_depthwise_ones():
    x, w = draw(1, 16, 5, 5), draw(16, 1, 4, 4)
    answer = compute(
        {"x": x},
        lambda emit, x, w: emit(relax.op.nn.conv2d_transpose(x, w, (2, 2), (1, 1), groups=16)),
        {"w": w},
    )
    close(
        answer.outputs,
        functional.conv_transpose2d(
            torch.from_numpy(x), torch.from_numpy(w), None, 2, 1, groups=16
        ),
    )
    assert {*answer.rules} == {"depthwise", "interleaved"}


@pytest.mark.parametrize(("groups", "dilation"), [(1, (1, 1)), (2, (1, 1)), (1, (1, 2))])
def test_a_transposed_convolution_by_a_kernel_that_is_an_input_is_right(groups, dilation):
    x, w = draw(1, 4, 5, 6), draw(4, 8 // groups, 3, 2)
    answer = compute(
        {"x": x, "w": w},
        lambda emit, x, w: emit(
            relax.op.nn.conv2d_transpose(x, w, (2, 3), (1, 0, 0, 1), (1, 2), dilation, groups)
        ),
    )
    whole = functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(w), None, (2, 3), 0, (1, 2), groups, dilation
    )
    close(answer.outputs, whole[:, :, 1:, :-1])


def test_phases_are_channels_of_one_convolution_where_they_fill_its_vectors():
    given = SimpleNamespace(strides=(2, 2), dilation=(1, 1), padding=(0, 0), groups=1)
    parts = {
        channels: [
            len(axis.parts) for axis in fastest_axis_plans(given, (3, 3), (9, 9, channels), 16)
        ]
        for channels in (1, 4, 8, 16, 64)
    }
    assert parts == {1: [1, 1], 4: [1, 1], 8: [2, 1], 16: [2, 2], 64: [2, 2]}


def test_what_follows_a_transposed_convolution_may_have_another_shape():
    x, w, v = draw(1, 4, 5, 5), draw(4, 8, 4, 4), draw(8, 8, 1, 1)

    def body(emit, x, w, v):
        grown = emit(relax.op.nn.conv2d_transpose(x, w, (2, 2), (1, 1)))
        return [
            emit(relax.op.mean(grown, [2, 3])),
            emit(relax.op.nn.conv2d(emit(relax.op.concat([grown, grown], 2)), v)),
        ]

    answer = compute({"x": x}, body, {"w": w, "v": v})
    grown = functional.conv_transpose2d(torch.from_numpy(x), torch.from_numpy(w), None, 2, 1)
    close(answer.outputs[:1], grown.mean((2, 3)))
    close(answer.outputs[1:], functional.conv2d(torch.cat([grown, grown], 2), torch.from_numpy(v)))


TURNED = [
    ((1, 37, 53), (0, 2, 1)),
    ((2, 16, 40, 24), (0, 3, 1, 2)),
    ((2, 33, 5, 17), (2, 3, 1, 0)),
    ((1, 19, 7, 16), (0, 3, 2, 1)),
    ((64, 64), (1, 0)),
]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("shape", "axes"), TURNED)
def test_a_transpose_in_tiles_moves_every_element_to_its_place(shape, axes, cpu):
    x, bias = draw(*shape), draw(shape[axes[-1]])
    (ours,) = compute(
        {"x": x},
        lambda emit, x: emit(relax.op.add(emit(relax.op.permute_dims(x, axes)), const(bias))),
        cpu=cpu,
    ).outputs
    np.testing.assert_array_equal(ours, x.transpose(axes) + bias)


@pytest.mark.parametrize("cpu", CPUS)
def test_a_transpose_goes_along_a_cache_line_of_its_input_before_the_next(cpu):
    """Around the vector, the innermost loop is over 16 elements of the input's last axis."""
    bias = draw(256)

    def body(emit, x):
        return emit(relax.op.add(emit(relax.op.permute_dims(x, [0, 2, 1])), const(bias)))

    low = lowered({"x": draw(1, 256, 640)}, body, cpu=cpu)
    *_, innermost = re.findall(r"range\((\d+)\)", low.module.script())
    assert innermost == "16"


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("width", "times"), [(37, 6), (8, 6), (3, 6), (64, 64)])
def test_what_repeats_along_the_last_axis_is_read_period_by_period(width, times, cpu):
    x = draw(20, width)
    low = lowered({"x": x}, lambda emit, x: emit(relax.op.tile(x, (1, times))), cpu=cpu)
    np.testing.assert_array_equal(run(low, [x], cpu)[0], np.tile(x, (1, times)))
    by_period = re.search(rf"(range|parallel)\({20 * times}\)", low.module.script()) is not None
    lanes = {"x86-64": 4, "x86-64-v3": 8}.get(cpu, 16)
    assert by_period == (2 * width >= lanes)


def test_an_embedding_with_indices_of_64_bits():
    table, tokens = draw(20, 8), np.array([[0, 19, 7]])
    close(
        compute(
            {"tokens": tokens}, lambda emit, x, w: emit(relax.op.take(w, x, 0)), {"w": table}
        ).outputs,
        table[tokens],
    )


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_other_types_than_float32_go_by_the_general_rule(dtype):
    x, w = (np.asarray(8 * draw(*shape), dtype) for shape in ((3, 8), (8, 16)))
    answer = compute({"x": x}, lambda emit, x, w: emit(relax.op.matmul(x, w)), {"w": w})
    np.testing.assert_allclose(
        answer.outputs[0], x.astype("float64") @ w.astype("float64"), rtol=2e-2, atol=1e-3
    )
    assert answer.outputs[0].dtype == dtype
    assert answer.rules == []


def test_a_batch_of_open_size_is_right_at_every_size():
    batch = tirx.Var("n", "int64")
    weight = draw(16, 3, 3, 3)

    def body(emit, x, w):
        return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w))))

    low = lowered({"x": relax.TensorType((batch, 3, 8, 8), "float32")}, body, {"w": weight})
    for count in (1, 3):
        x = draw(count, 3, 8, 8)
        close(
            run(low, [x]), functional.conv2d(torch.from_numpy(x), torch.from_numpy(weight)).relu()
        )


def test_scheduling_leaves_the_module_that_it_was_given_as_it_was():
    given = module({"x": IMAGE}, lambda emit, x: emit(relax.op.clip(x, 0, 1)))
    before = given.script()
    lower_module(given, [], target(), {})
    assert given.script() == before
