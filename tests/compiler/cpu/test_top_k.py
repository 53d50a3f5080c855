"""topk of few elements of many: values and places are those of a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relax_models import CPUS, compute
from tvm import relax

from farm.kernels.sort import EMIT, emit_bounded_top_k
from farm.kernels.top_k import emit_top_k

numbers = np.random.default_rng(4)


def expected(x, count, largest):
    key = x.astype("float64")  # -128 is no int8 with the other sign
    order = np.argsort(-key if largest else key, axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(x, order, -1), order


def draw(shape, kind):
    if kind == "ascending":
        return np.sort(numbers.standard_normal(shape).astype("float32"), axis=-1)
    if kind == "descending":
        return np.ascontiguousarray(draw(shape, "ascending")[..., ::-1])
    if kind == "equal in part":
        return numbers.integers(-3, 4, shape).astype("float32")
    if kind == "infinities":
        x = numbers.standard_normal(shape).astype("float32")
        x[numbers.random(shape) < 0.3] = np.inf
        x[numbers.random(shape) < 0.3] = -np.inf
        return x
    return (numbers.standard_normal(shape) * 1000).astype(kind)


KINDS = ("float32", "float64", "int64", "int8", "ascending", "descending", "equal in part")


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "infinities"])
def test_the_best_elements_of_rows_are_those_of_a_stable_sort(kind, largest):
    shapes = [((1, 3), 1), ((3, 2, 40), 7), ((2, 1000), 1), ((2, 1387), 300)]
    inputs = {f"x{place}": draw(shape, kind) for place, (shape, _) in enumerate(shapes)}

    def body(emit, *variables):
        builder = relax.BlockBuilder.current()
        made = [
            emit(emit_top_k(builder, variable, count, largest, "int64"))
            for variable, (_, count) in zip(variables, shapes, strict=True)
        ]
        return [emit(pair[place]) for pair in made for place in (0, 1)]

    found = compute(inputs, body).outputs
    wanted = [
        value
        for x, (_, count) in zip(inputs.values(), shapes, strict=True)
        for value in expected(x, count, largest)
    ]
    for ours, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("place", [0, 3, 200, 248, 255, 999])
def test_nan_hides_no_other_element_and_is_the_largest(place, largest):
    x = np.zeros((1, 1000), "float32")
    x[0, 200], x[0, 201], x[0, place] = 100, -100, np.nan

    def body(emit, x):
        made = emit(emit_top_k(relax.BlockBuilder.current(), x, 3, largest, "int64"))
        return [emit(made[part]) for part in (0, 1)]

    values, places = compute({"x": x}, body).outputs
    exact = torch.topk(torch.from_numpy(x), 3, largest=largest)
    np.testing.assert_array_equal(values, exact.values.numpy())
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, -1))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("axis", "count"), [(1, 20), (0, 2), (2, 3), (1, 399)])
def test_any_axis_is_selected_from_with_any_vectors(axis, count, cpu):
    x = draw((4, 400, 7), "equal in part")

    def body(emit, x):
        builder = relax.BlockBuilder.current()
        call = relax.op.topk(x, count, axis, "both", largest=True, dtype="int32")
        made = EMIT["relax.topk"](builder, builder.normalize(call))
        return [emit(part) for part in made.fields]

    values, places = compute({"x": x}, body, {}, cpu).outputs
    for found, right in zip(
        (values, places), expected(np.moveaxis(x, axis, -1), count, True), strict=True
    ):
        np.testing.assert_array_equal(found, np.moveaxis(right, -1, axis))
    assert places.dtype == np.int32


@pytest.mark.parametrize("valid", [0, 3, 20, 777, 2000])
def test_elements_behind_the_valid_ones_are_not_selected(valid):
    x = draw((2, 1000), "float32")

    def body(emit, x, count):
        made = emit(emit_bounded_top_k(relax.BlockBuilder.current(), x, count, 20, True))
        return [emit(made[place]) for place in (0, 1)]

    found = compute({"x": x, "count": np.array([valid])}, body).outputs
    for ours, right in zip(found, expected(x[:, :valid], 20, True), strict=True):
        size = right.shape[-1]
        np.testing.assert_array_equal(ours[:, :size], right)
        assert not ours[:, size:].any()
