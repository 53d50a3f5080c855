"""Forms of ONNX operators that TVM's converters and kernels get wrong, or fail at: each computes
what ONNX Runtime does. tools/fuzz-operators found them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

sys.path.append(str(Path(__file__).parents[3] / "tools"))
from random_operators.drawing import Case
from random_operators.judging import differences, expected, run_together

RANDOM = np.random.default_rng(5)


def normal(*shape, dtype="float32"):
    return RANDOM.standard_normal(shape).astype(dtype)


def whole(*shape, dtype="int32"):
    return RANDOM.integers(0, 9, shape).astype(dtype)


def case(operator, opset, fed, constants=(), outputs=1, domain="", **attributes):
    """A case of one node; "" in the constants stands for an input that is not given."""
    made = Case(operator, 0, opset, domain)
    for value in fed:
        made.fed[f"x{len(made.fed)}"] = np.asarray(value)
    names = list(made.fed)
    for value in constants:
        if isinstance(value, str):
            names.append("")
            continue
        name = f"c{len(made.constants)}"
        made.constants[name] = np.asarray(value)
        names.append(name)
    made.outputs = [f"y{index}" for index in range(outputs)]
    made.nodes = [helper.make_node(operator, names, made.outputs, domain=domain, **attributes)]
    return made


def check(*cases):
    """Fail unless farm computes what the reference does, all in one model."""
    answers = [expected(one) for one in cases]
    for one, ours, theirs in zip(cases, run_together(cases, answers), answers, strict=True):
        assert differences(one, ours, theirs) == "", str(one)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scattered_indices_may_be_shorter_than_the_data_along_any_axis(reduction):
    shapes = [((4, 5), (2, 3), 0), ((4, 5), (3, 2), 1), ((2, 3, 4, 5), (1, 2, 2, 3), 2)]
    check(
        *(
            case(
                "ScatterElements",
                18,
                [
                    normal(*data),
                    np.argsort(RANDOM.random(part), axis).astype(np.int64),
                    normal(*part),
                ],
                axis=axis,
                reduction=reduction,
            )
            for data, part, axis in shapes
        )
    )


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_the_index_of_the_largest_of_equal_smallest_numbers_is_an_index(operator):
    extreme = 0 if operator == "ArgMax" else 255
    check(case(operator, 13, [np.full((3, 4), extreme, np.uint8)], axis=1))


def test_arc_functions_of_half_precision_are_computed():
    between = np.linspace(0.1, 0.9, 6, dtype=np.float16)
    cases = [case(f"A{name}", 13, [between]) for name in ("cos", "sin", "sinh", "tan")]
    check(*cases, case("Acosh", 13, [between + 1]), case("Atan", 13, [np.float16(0.5)]))


def test_the_sign_of_an_unsigned_integer_is_0_or_1():
    check(case("Sign", 13, [np.array([0, 1, 200], np.uint8)]))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_to_one_element_takes_the_first_corner(mode):
    more = {"coordinate_transformation_mode": "align_corners", "mode": mode}
    check(
        case("Resize", 13, [normal(1, 2, 4, 6)], ["", "", [1, 2, 1, 3]], **more),
        case("Resize", 13, [normal(1, 2, 1, 6)], ["", np.float32([1, 1, 1, 0.5])], **more),
    )


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_elements_are_those_of_the_scale_if_it_gives_no_whole_length(rounding):
    scales = np.float32([1, 1, 2.3, 0.37])
    modes = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    check(
        *(
            case(
                "Resize",
                19,
                [whole(1, 2, 7, 11, dtype="float32")],
                ["", scales],
                coordinate_transformation_mode=mode,
                nearest_mode=rounding,
            )
            for mode in (*modes, "half_pixel_symmetric")
        )
    )


def test_a_resize_of_opset_11_by_sizes_has_an_empty_tensor_in_the_place_of_scales():
    nothing = np.zeros(0, np.float32)
    check(case("Resize", 11, [normal(1, 2, 4, 6)], [nothing, nothing, [1, 2, 7, 3]], mode="linear"))
