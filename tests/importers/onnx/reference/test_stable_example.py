"""A model that selects by value is checked on an example that its reference decides clearly."""

from __future__ import annotations

import numpy as np
import pytest

from farm.errors import ModelError
from farm.importers.imported_model import example_inputs
from farm.importers.onnx.reference.stable_example import stable_example
from farm.types import TensorSpec

INPUTS = (TensorSpec("x", (6,), "float32"), TensorSpec("n", (2,), "int64"))
FIRST, SECOND = example_inputs(INPUTS)["x"], example_inputs(INPUTS, 1)["x"]


def above(*thresholds):
    """A reference that returns the numbers that are above one of the thresholds."""

    def run(inputs):
        return [inputs["x"][[any(x > one for one in thresholds) for x in inputs["x"]]]]

    return run


def test_the_first_example_is_taken_if_nothing_lies_at_a_threshold():
    np.testing.assert_array_equal(stable_example(INPUTS, above(0.0))["x"], FIRST)


def test_an_example_with_a_number_at_a_threshold_is_passed_over():
    threshold = float(FIRST.max())
    assert not np.isclose(SECOND, threshold, atol=1e-3).any()
    np.testing.assert_array_equal(stable_example(INPUTS, above(threshold))["x"], SECOND)


def test_the_first_example_is_taken_if_none_is_stable():
    turns = iter(range(1000))
    found = stable_example(INPUTS, lambda inputs: [inputs["x"] + next(turns)])
    np.testing.assert_array_equal(found["x"], FIRST)


@pytest.mark.parametrize("name", ["x", "n"])
def test_an_example_has_the_types_of_the_inputs(name):
    spec = next(one for one in INPUTS if one.name == name)
    assert stable_example(INPUTS, above(0.0))[name].dtype == spec.dtype


def test_the_first_example_is_taken_if_the_reference_cannot_run_the_model():
    def fails(_):
        raise ModelError("model: the reference cannot run it", "a threshold is negative", "none")

    np.testing.assert_array_equal(stable_example(INPUTS, fails)["x"], FIRST)


def test_an_input_of_one_number_stays_an_array():
    specs = (TensorSpec("x", (), "float32"),)
    seen = []

    def run(inputs):
        seen.append(inputs["x"])
        return [inputs["x"]]

    stable_example(specs, run)
    assert all(isinstance(one, np.ndarray) and one.shape == () for one in seen)
