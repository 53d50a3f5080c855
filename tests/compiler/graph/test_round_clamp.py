"""Rounding within bounds with a zero point, to float32 and to 8-bit integers, is one step."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_models import CPUS, compute, const
from tvm import relax

X = np.random.default_rng(4).uniform(-300, 300, (3, 37)).astype("float32")
X[0, :6] = (0.5, 1.5, 2.5, -0.5, -1.5, 254.5)  # halves are rounded to even


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("zero", "low", "high", "dtype"),
    [
        (3.0, 0.0, 255.0, "float32"),
        (-7.0, -128.0, 127.0, "float32"),
        (0.0, -100.0, 90.0, "float32"),
        (11.0, 0.0, 255.0, "uint8"),
        (-7.0, -128.0, 127.0, "int8"),
        (0.0, 0.0, 255.0, "uint8"),
    ],
)
def test_the_zero_point_is_added_before_the_bounds(zero, low, high, dtype, cpu):
    def body(emit, x):
        moved = emit(relax.op.round(x))
        if zero:
            moved = emit(relax.op.add(moved, const(zero)))
        bounded = emit(relax.op.minimum(emit(relax.op.maximum(moved, const(low))), const(high)))
        return bounded if dtype == "float32" else emit(relax.op.astype(bounded, dtype))

    answer = compute({"x": X}, body, cpu=cpu)
    expected = np.clip(np.round(X) + zero, low, high).astype(dtype)
    np.testing.assert_array_equal(answer.outputs[0], expected)
    assert len(answer.kernels) == 1


FAR = np.array(
    [1e12, -1e12, 2**31, -(2**31), 3e38, -3e38, 2**22, 254.5, 255.5, -0.5, 141.5, -113.5], "float32"
)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("zero", "low", "high"),
    [(0, 0, 255), (113, 0, 255), (113, 113, 255), (255, 0, 255), (7, 7, 90)],
)
def test_numbers_far_outside_become_the_bounds(zero, low, high, cpu):
    answer = compute({"x": FAR}, lambda emit, x: quantized(emit, x, zero, low, high), cpu=cpu)
    expected = np.clip(np.round(FAR.astype("float64")) + zero, low, high)
    np.testing.assert_array_equal(answer.outputs[0], expected)


def quantized(emit, x, zero, low=0, high=255):
    moved = emit(relax.op.add(emit(relax.op.round(x)), const(zero)))
    bounded = emit(relax.op.minimum(emit(relax.op.maximum(moved, const(low))), const(high)))
    return emit(relax.op.astype(bounded, "uint8"))


def dequantized(emit, q, zero, scale):
    whole = emit(relax.op.subtract(emit(relax.op.astype(q, "float32")), const(zero)))
    return emit(relax.op.multiply(whole, const(scale)))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("zero", "other"), [(113, 113), (0, 113), (113, 0)])
def test_a_quantized_tensor_that_is_only_dequantized_is_never_bytes(zero, other, cpu):
    def body(emit, x):
        return dequantized(emit, quantized(emit, x, zero), other, 0.25)

    answer = compute({"x": X}, body, cpu=cpu)
    expected = (np.clip(np.round(X) + zero, 0, 255) - other) * np.float32(0.25)
    np.testing.assert_array_equal(answer.outputs[0], expected)
    assert "int8" not in answer.lowered.module.script()


def test_a_number_that_is_no_zero_point_is_subtracted_from_the_bytes():
    answer = compute(
        {"x": X}, lambda emit, x: dequantized(emit, quantized(emit, x, 113), 0.1, 0.25)
    )
    bytes_ = np.clip(np.round(X) + 113, 0, 255).astype("float32")
    np.testing.assert_array_equal(answer.outputs[0], (bytes_ - np.float32(0.1)) * np.float32(0.25))


def test_bytes_that_are_read_are_written():
    def body(emit, x):
        q = quantized(emit, x, 113)
        return [q, dequantized(emit, q, 113, 0.25)]

    q, floats = compute({"x": X}, body).outputs
    expected = np.clip(np.round(X) + 113, 0, 255)
    np.testing.assert_array_equal(q, expected.astype("uint8"))
    np.testing.assert_array_equal(floats, (expected - 113) * np.float32(0.25))


def convolved(emit, x, weight):
    sums = emit(
        relax.op.nn.conv2d(x, weight, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32")
    )
    return emit(relax.op.multiply(emit(relax.op.astype(sums, "float32")), const(1 / 512)))


@pytest.mark.parametrize("swapped", [False, True])
def test_two_convolutions_of_different_heights_are_added(swapped):
    numbers = np.random.default_rng(0)
    inputs = {
        name: numbers.integers(0, 256, (1, height, 7, 16), "uint8")
        for name, height in (("x", 5), ("row", 1))
    }
    weight = numbers.integers(-127, 128, (1, 1, 16, 24), "int8")

    def body(emit, x, row, weight):
        terms = [
            dequantized(emit, quantized(emit, convolved(emit, data, weight), 9), 9, 0.5)
            for data in (x, row)
        ]
        return emit(relax.op.add(*(terms[::-1] if swapped else terms)))

    answer = compute(inputs, body, {"weight": weight})
    x, row = (
        np.clip(np.round(data.astype("int64") @ weight[0, 0] / 512) + 9, 0, 255) - 9
        for data in inputs.values()
    )
    np.testing.assert_array_equal(answer.outputs[0], (x + row) * np.float32(0.5))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_convolutions_that_are_added_one_writes_bytes_and_the_other_the_sum(swapped, cpu):
    numbers = np.random.default_rng(0)
    x = numbers.integers(0, 256, (1, 5, 7, 16), "uint8")
    weights = {name: numbers.integers(-127, 128, (1, 1, 16, 24), "int8") for name in ("v", "w")}
    zeros, scales = (113, 9), (0.5, 0.125)

    def body(emit, x, *weights):
        terms = []
        for weight, zero, scale in zip(weights, zeros, scales, strict=True):
            steps = convolved(emit, x, weight)
            terms.append(dequantized(emit, quantized(emit, steps, zero), zero, scale))
        return quantized(emit, emit(relax.op.add(*(terms[::-1] if swapped else terms))), 20)

    answer = compute({"x": x}, body, weights, cpu)
    terms = [
        (np.clip(np.round(x.astype("int64") @ weight[0, 0] / 512) + zero, 0, 255) - zero) * scale
        for weight, zero, scale in zip(weights.values(), zeros, scales, strict=True)
    ]
    expected = np.clip(np.round(sum(terms)) + 20, 0, 255)
    np.testing.assert_array_equal(answer.outputs[0], expected)
    written = [
        str(function.params[-1].dtype)
        for function in answer.lowered.module.functions.values()
        if isinstance(function, tvm.tirx.PrimFunc) and function.params
    ]
    assert written == ["uint8", "uint8"]
