"""NaN passes through maxima and minima of elements: a ReLU must not hide an overflow. It is unequal
to everything.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from relax_models import CPUS, compute, target
from tvm import relax, te, tirx

from farm.compiler.cpu.tir_passes.propagate_nan import propagate_nan
from farm.compiler.target.cpu_model import cpu_model_of

NUMBERS = np.random.default_rng(18).standard_normal((3, 37)).astype("float32")


def with_nan(at: int) -> np.ndarray:
    changed = NUMBERS.copy()
    changed[1, at] = np.nan
    return changed


BODIES = {
    "relu": (lambda x, _: relax.op.nn.relu(x), lambda x, _: np.maximum(x, 0)),
    "relu6": (lambda x, _: relax.op.clip(x, 0, 6), lambda x, _: np.clip(x, 0, 6)),
    "maximum": (relax.op.maximum, np.maximum),
    "minimum": (relax.op.minimum, np.minimum),
    "minimum of a constant": (
        lambda x, _: relax.op.minimum(relax.const(0.5, "float32"), x),
        lambda x, _: np.minimum(x, 0.5),
    ),
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", BODIES)
def test_nan_of_either_operand_is_the_result(name, cpu):
    made, right = BODIES[name]
    inputs = {"x": with_nan(3), "y": with_nan(35)}
    [answer] = compute(inputs, lambda emit, x, y: made(x, y), {}, cpu).outputs
    np.testing.assert_array_equal(answer, right(*inputs.values()))


@pytest.mark.parametrize("cpu", CPUS)
def test_infinities_are_no_nan(cpu):
    x = np.array([np.inf, -np.inf, np.inf, 1, -np.inf, 0.0], "float32")
    y = np.array([1, 1, -np.inf, np.inf, np.inf, -0.0], "float32")

    def body(emit, x, y):
        return [emit(relax.op.maximum(x, y)), emit(relax.op.minimum(x, y))]

    largest, least = compute({"x": x, "y": y}, body, {}, cpu).outputs
    np.testing.assert_array_equal(largest, np.maximum(x, y))
    np.testing.assert_array_equal(least, np.minimum(x, y))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_is_unequal_to_all_numbers_and_to_itself(dtype, cpu):
    """Also where something else is computed of the comparison, in the same kernel."""
    x, y = with_nan(3).astype(dtype), with_nan(35).astype(dtype)
    y[2] = x[2]

    def body(emit, x, y):
        unequal = emit(relax.op.not_equal(x, y))
        opposite = emit(relax.op.logical_not(emit(relax.op.equal(x, y))))
        itself = emit(relax.op.not_equal(x, x))
        return [unequal, opposite, itself, emit(relax.op.where(opposite, x, y))]

    found = compute({"x": x, "y": y}, body, {}, cpu).outputs
    for one, wanted in zip(found, (x != y, x != y, x != x, np.where(x != y, x, y)), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("cpu", CPUS)
def test_nan_passes_through_the_relu_of_a_convolution(cpu):
    image = np.ones((1, 8, 6, 6), "float32")
    image[0, 2, 1, 1] = np.nan

    def body(emit, x, w):
        return relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w)))

    weights = {"w": np.ones((16, 8, 3, 3), "float32")}
    [answer] = compute({"x": image}, body, weights, cpu).outputs
    assert np.isnan(answer[0, :, :2, :2]).all() and np.isfinite(answer[0, :, 2:, 2:]).all()


def test_where_an_instruction_propagates_nan_it_is_used():
    x, y = (te.placeholder((8,), "float32", name) for name in "xy")
    largest = te.compute((8,), lambda i: tirx.max(x[i], y[i]), "largest")
    function = te.create_prim_func([x, y, largest])
    on_arm = replace(cpu_model_of(target()), has_nan_propagating_minmax=True)
    assert "llvm.maximum" in propagate_nan(function, on_arm).script()
    assert "llvm" not in propagate_nan(function, cpu_model_of(target())).script()
