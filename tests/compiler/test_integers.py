"""Convolutions and products of 8-bit integers: the very numbers of 64-bit arithmetic, by the instructions that there are for them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from integers import Case, convolutions, module_of, products, rounded
from relax_models import CPUS, compute, const, lowered, target
from tvm import relax

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from inner_loops import assembly

generated = settings(derandomize=True, deadline=None, max_examples=2, database=None, suppress_health_check=list(HealthCheck))
HERE = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
LAYER = Case((1, 64, 14, 14), (96, 64, 3, 3), padding=(1, 1, 1, 1), zero=7)
DENSE = Case((4, 96), (96, 64))


@pytest.mark.parametrize("cpu", [*CPUS, "native"])
@pytest.mark.parametrize("kind", [convolutions(), convolutions(depthwise=True), products()], ids=["convolutions", "depthwise", "products"])
def test_sums_and_what_is_made_of_them_are_exact_for_any_shape(kind, cpu):
    @generated
    @given(cases=some.lists(kind, min_size=9, max_size=12))
    def exact(cases):
        inputs, body, weights, expected = module_of(cases)
        answer = compute(inputs, body, weights, cpu)
        assert answer.notes == []
        for case, got, wanted in zip(cases, answer.outputs, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=repr(case))

    exact()


@pytest.mark.parametrize("case", [LAYER, DENSE], ids=["convolution", "dense"])
def test_bias_factor_and_rounding_are_one_kernel_with_the_sums(case):
    inputs, body, weights, _ = module_of([case])
    kernels = lowered(inputs, body, weights).kernels
    (heavy,) = (kernel for kernel in kernels if kernel.rule in ("convolution_int8", "dense_int8"))
    assert "rounded" in heavy.name
    assert all("rounded" not in kernel.name for kernel in kernels if kernel is not heavy)


@pytest.mark.skipif(not HERE.get("avx512vnni"), reason="this CPU has no AVX-512 VNNI")
@pytest.mark.parametrize("case", [LAYER, DENSE], ids=["convolution", "dense"])
def test_vnni_is_used_where_the_cpu_has_it(case):
    inputs, body, weights, _ = module_of([case])
    low = lowered(inputs, body, weights)
    assert any(kernel.choice.startswith("vnni ") for kernel in low.kernels)
    assert assembly(tvm.compile(low.module, target=target()).mod).count("vpdpbusd") >= 8


@pytest.mark.parametrize("cpu", CPUS)
def test_rounding_is_half_to_even_and_within_bounds_whatever_the_zero_point(cpu):
    values = np.concatenate([np.arange(-300, 301) / 2, [1e9, -1e9, 2.0**31, 127.49999, -0.0]]).astype("float32").reshape(2, -1)
    zeros = (0, 1, 100, 255)
    answer = compute({"x": values}, lambda emit, x: [rounded(emit, x, zero) for zero in zeros], {}, cpu)
    for zero, got in zip(zeros, answer.outputs, strict=True):
        np.testing.assert_array_equal(got, np.clip(np.round(values) + zero, 0, 255).astype("uint8"))


@pytest.mark.parametrize("cpu", CPUS)
def test_a_product_is_rounded_before_the_rounding_to_whole_numbers(cpu):
    numbers = np.random.default_rng(0)
    values = numbers.integers(-(2**20), 2**20, (64, 1024)).astype("float32")
    factor = np.float32(2**-14 * 1.37)
    values = np.where(numbers.random(values.shape) < 0.5, values, np.round(values / factor) * np.float32(0.5)).astype("float32")
    answer = compute({"x": values}, lambda emit, x: rounded(emit, emit(relax.op.multiply(x, const(factor))), 3), {}, cpu)
    np.testing.assert_array_equal(answer.outputs[0], np.clip(np.round(values * factor) + 3, 0, 255).astype("uint8"))
