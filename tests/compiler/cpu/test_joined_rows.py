"""Convolutions of single pixels, with the rows of each image joined into one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relax_models import CPUS, compute, lowered, module, run, runner, target
from torch.nn import functional
from tvm import relax, tirx

from farm.compiler.cpu.kernel_config import KernelConfig, Workload
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.lower import lower_module

OP = relax.op
AVX2 = [cpu for cpu in CPUS if cpu == "x86-64-v3"] or CPUS[-1:]
random = np.random.default_rng(53)


def drawn(*shape):
    return random.standard_normal(shape).astype("float32")


def weight_of(outputs, inputs):
    return drawn(outputs, inputs, 1, 1) / np.float32(np.sqrt(inputs))


def methods(low):
    return {kernel.choice.split()[0] for kernel in low.kernels if kernel.rule == "convolution"}


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=2e-5 * float(np.abs(wanted).max()))


def convolved(x, weight):
    return functional.conv2d(torch.from_numpy(x), torch.from_numpy(weight))


AFTER = {
    "nothing": (lambda emit, y, _: y, lambda y, _: y),
    "a bias and an activation": (
        lambda emit, y, b: emit(OP.nn.relu(emit(OP.add(y, relax.const(b[:1, :, :1, :1]))))),
        lambda y, b: (y + torch.from_numpy(b[:1, :, :1, :1])).relu(),
    ),
    "a factor of each row": (
        lambda emit, y, b: emit(OP.multiply(y, relax.const(b[:1, :1, :, :1]))),
        lambda y, b: y * torch.from_numpy(b[:1, :1, :, :1]),
    ),
    "a factor of each column": (
        lambda emit, y, b: emit(OP.multiply(y, relax.const(b[:1, :1, :1]))),
        lambda y, b: y * torch.from_numpy(b[:1, :1, :1]),
    ),
    "another image": (
        lambda emit, y, b: emit(OP.nn.relu(emit(OP.add(y, relax.const(b))))),
        lambda y, b: (y + torch.from_numpy(b)).relu(),
    ),
    "a padding": (
        lambda emit, y, _: emit(OP.nn.pad(y, [0, 0, 0, 0, 1, 2, 2, 1])),
        lambda y, _: functional.pad(y, (2, 1, 1, 2)),
    ),
    "a mean of each channel": (
        lambda emit, y, _: emit(OP.multiply(y, emit(OP.mean(y, [2, 3], keepdims=True)))),
        lambda y, _: y * y.mean((2, 3), keepdim=True),
    ),
    "channels last": (
        lambda emit, y, _: emit(OP.permute_dims(y, [0, 2, 3, 1])),
        lambda y, _: y.permute(0, 2, 3, 1),
    ),
    "rows before channels": (
        lambda emit, y, _: emit(OP.permute_dims(y, [0, 2, 1, 3])),
        lambda y, _: y.permute(0, 2, 1, 3),
    ),
    "turned images": (
        lambda emit, y, _: emit(OP.permute_dims(emit(OP.nn.relu(y)), [0, 1, 3, 2])),
        lambda y, _: y.relu().permute(0, 1, 3, 2),
    ),
    "groups of columns": (
        lambda emit, y, _: emit(OP.reshape(emit(OP.nn.relu(y)), (y.ty.shape[0], -1))),
        lambda y, _: y.relu().flatten(1),
    ),
    "a function that reads it twice": (
        lambda emit, y, _: emit(OP.multiply(y, emit(OP.sigmoid(y)))),
        lambda y, _: functional.silu(y),
    ),
    "its halves": (
        lambda emit, y, _: emit(OP.split(y, 2, axis=1))[1],
        lambda y, _: y.chunk(2, 1)[1],
    ),
}


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    ("count", "inputs", "outputs", "height", "width"),
    [(1, 128, 64, 14, 14), (2, 96, 40, 7, 9), (1, 64, 48, 5, 13)],
    ids=str,
)
def test_the_answer_is_right_whatever_follows(count, inputs, outputs, height, width, after, cpu):
    x, weight = drawn(count, inputs, height, width), weight_of(outputs, inputs)
    other = drawn(count, outputs, height, width)
    ours, theirs = AFTER[after]

    def body(emit, x, weight):
        return ours(emit, emit(OP.nn.conv2d(x, weight)), other)

    answer = compute({"x": x}, body, {"weight": weight}, cpu)
    close(answer.outputs[0], theirs(convolved(x, weight), other).numpy())
    assert answer.notes == [] and "convolution" in answer.rules


@pytest.mark.parametrize("cpu", AVX2)
def test_rows_that_fill_no_tiles_are_joined(cpu):
    for size, joined in ((14, True), (12, False)):  # 14 pixels are three tiles of 5
        x, weight = drawn(1, 256, size, size), weight_of(64, 256)
        low = lowered({"x": x}, lambda emit, x, w: emit(OP.nn.conv2d(x, w)), {"w": weight}, cpu)
        assert methods(low) == {"joined_rows" if joined else "direct"}


@pytest.mark.parametrize("cpu", AVX2)
def test_blocks_of_channels_are_used_together(cpu):
    """Several blocks of few inputs stay in the cache: the next ones are prefetched."""
    x, weight = drawn(1, 64, 13, 13), weight_of(256, 64)
    answer = compute({"x": x}, lambda emit, x, w: emit(OP.nn.conv2d(x, w)), {"w": weight}, cpu)
    close(answer.outputs[0], convolved(x, weight).numpy())
    assert methods(answer.lowered) == {"joined_rows"} and answer.notes == []


@pytest.mark.parametrize("cpu", AVX2)
def test_the_batch_may_be_open(cpu):
    batch, weight = tirx.Var("n", "int64"), weight_of(64, 128)
    inputs = {"x": relax.TensorType((batch, 128, 14, 14), "float32")}

    def body(emit, x, w):
        return emit(OP.nn.relu(emit(OP.nn.conv2d(x, w))))

    low = lowered(inputs, body, {"w": weight}, cpu)
    assert methods(low) == {"joined_rows"}
    run = runner(low, cpu)
    for count in (1, 3):
        x = drawn(count, 128, 14, 14)
        close(run([x])[0], convolved(x, weight).relu().numpy())


@pytest.mark.parametrize("cpu", AVX2)
@pytest.mark.parametrize("windows", ["depthwise", "pool"])
def test_rows_are_kept_where_windows_slide_over_them(windows, cpu):
    x, weight, slid = drawn(1, 64, 14, 14), weight_of(96, 64), drawn(96, 1, 3, 3)

    def body(emit, x, w, d):
        y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w))))
        if windows == "pool":
            return emit(OP.nn.max_pool2d(y, (3, 3), (2, 2)))
        return emit(OP.nn.conv2d(y, d, padding=(1, 1), groups=96))

    low = lowered({"x": x}, body, {"w": weight, "d": slid}, cpu)
    assert not any("joined_rows" in kernel.choice for kernel in low.kernels)


@pytest.mark.parametrize("cpu", AVX2)
def test_rows_are_kept_by_all_convolutions_of_a_shape_that_windows_follow_once(cpu):
    """They have one configuration: that of the one must not be taken for that of the other."""
    x, first, second = drawn(1, 64, 14, 14), weight_of(64, 64), weight_of(64, 64)
    slid = drawn(64, 1, 3, 3) / np.float32(3)

    def body(emit, x, v, d, w):
        y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, v))))
        y = emit(OP.nn.conv2d(y, d, padding=(1, 1), groups=64))
        return emit(OP.nn.relu(emit(OP.nn.conv2d(y, w))))

    answer = compute({"x": x}, body, {"v": first, "d": slid, "w": second}, cpu)
    between = functional.conv2d(
        convolved(x, first).relu(), torch.from_numpy(slid), padding=1, groups=64
    )
    close(answer.outputs[0], functional.conv2d(between, torch.from_numpy(second)).relu().numpy())
    assert sorted(answer.rules) == ["convolution", "depth_first"]
    assert methods(answer.lowered) == {"direct"}


@pytest.mark.parametrize("cpu", AVX2)
def test_a_record_decides_and_one_that_does_not_fit_is_passed_over(cpu):
    x, weight = drawn(1, 256, 14, 14), weight_of(64, 256)

    def body(emit, x, w):
        return emit(OP.nn.conv2d(x, w))

    for size, recorded in ((14, True), (1, False)):
        x = drawn(1, 256, 1 if size == 1 else size, size)
        workload = Workload("convolution", (1, x.shape[2], size, 256), (1, 1, 256, 64))
        config = KernelConfig("joined_rows", Tile(min(4, size), 2, 8))
        low = lower_module(
            module({"x": x}, body, {"w": weight}),
            [weight],
            target(cpu),
            {},
            records={workload.key: config},
        )
        (kernel,) = [one for one in low.kernels if one.rule == "convolution"]
        assert kernel.recorded == recorded
        close(run(low, [x], cpu)[0], convolved(x, weight).numpy())


@pytest.mark.parametrize(
    "workload",
    [
        Workload("convolution", (1, 14, 14, 64), (3, 3, 64, 64), padding=(1, 1, 1, 1)),
        Workload("convolution", (1, 14, 14, 64), (1, 1, 64, 64), strides=(2, 2)),
        Workload("convolution", (1, 14, 14, 64), (1, 1, 64, 64), padding=(0, 1, 0, 1)),
        Workload("convolution", (1, 14, 14, 64), (1, 1, 32, 64), groups=2),
        Workload("convolution", (1, 1, 196, 64), (1, 1, 64, 64)),
    ],
    ids=lambda workload: workload.key,
)
def test_what_depends_on_rows_has_none_joined(workload):
    assert workload.with_joined_rows is None
