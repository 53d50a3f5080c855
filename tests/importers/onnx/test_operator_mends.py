"""Forms of ONNX operators that TVM's converters and kernels get wrong, or fail at: each computes
what ONNX Runtime does. tools/fuzz-operators found them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx_models import graph, node, save

from farm import importers
from farm.types import Model

sys.path.append(str(Path(__file__).parents[3] / "tools"))
from random_operators.comparing import differences
from random_operators.drawing import Case
from random_operators.judging import expected, run_together

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


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_shift_by_all_bits_or_more_leaves_none(direction, is_constant):
    """ONNX says so since version 28; what a processor does differs."""
    data, amounts = np.full(5, 0b10110101, np.uint8), np.array([0, 3, 7, 8, 200], np.uint8)
    fed, constants = ([data], [amounts]) if is_constant else ([data, amounts], [])
    shift = case("BitShift", 11, fed, constants, direction=direction)
    ((found,),) = run_together([shift], [[data]])
    expected = [
        (int(one) << int(amount) if direction == "LEFT" else int(one) >> int(amount)) % 256
        for one, amount in zip(data, amounts, strict=True)
    ]
    np.testing.assert_array_equal(found, np.array(expected, np.uint8))


def test_attributes_of_activations_have_the_type_of_the_input():
    for dtype in ("float16", "float64"):
        data = normal(4, 5, dtype=dtype) * 3
        check(
            case("Elu", 22, [data], alpha=0.3),
            case("Selu", 22, [data], alpha=0.4, gamma=2.0),
            case("ThresholdedRelu", 22, [data], alpha=0.7),
        )
        clip = case("Clip", 7, [data], min=-1.0, max=2.0)
        ((ours,),) = run_together([clip], [[data]])
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, np.clip(data, -1, 2))


def test_shrink_of_integers_takes_its_attributes_as_numbers_with_fractions():
    check(
        case("Shrink", 9, [np.array([-3, 0, 1, 8], np.int32)], bias=0.3, lambd=0.2),
        case("Shrink", 9, [np.array([0, 1, 8], np.uint8)], bias=-1.0, lambd=0.5),
    )


def test_integers_are_raised_to_powers_of_any_type():
    base = np.array([-3, 0, 2, 9], np.int64)
    check(
        case("Pow", 13, [base, np.array([3, 2, 0, 7], np.int64)]),
        case("Pow", 13, [base.astype(np.int32), np.array([2, 3, 1.5, 0.5], np.float32)]),
    )


def test_topk_of_opset_10_reads_k_from_its_input_and_any_order_is_right_if_none_is_asked_for():
    data = RANDOM.permutation(24).reshape(3, 8).astype(np.float32)
    check(case("TopK", 10, [data], [[5]], 2))
    unordered = case("TopK", 13, [data], [[5]], 2, sorted=0)
    unordered.unordered = 1
    check(unordered)


def test_a_sequence_has_parts_of_the_size_that_was_asked_for():
    for split, parts in ((3, (3, 3, 1)), (7, (7,)), (5, (5, 2))):
        for place in (0, -1):
            made = Case("SplitToSequence", 0, 17)
            made.fed["x0"] = normal(7, 2)
            made.constants = {"split": np.int64(split), "at": np.int64(place)}
            made.nodes = [
                helper.make_node("SplitToSequence", ["x0", "split"], ["parts"], axis=0),
                helper.make_node("SequenceAt", ["parts", "at"], ["y0"]),
            ]
            made.outputs = ["y0"]
            (answer,) = expected(made)
            assert answer.shape == (parts[place], 2)
            check(made)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_pools_of_the_same_size_have_as_many_elements_as_strides_rounded_up(mode):
    data = normal(1, 2, 14, 7)
    more = {"kernel_shape": [3, 2], "strides": [3, 2], "auto_pad": mode}
    check(*(case(f"{kind}Pool", 12, [data], **more) for kind in ("Max", "Average")))


@pytest.mark.parametrize("operator", ["Sum", "Mean"])
def test_a_sum_of_several_shapes_is_made_pair_by_pair(operator):
    one = case(operator, 13, [normal(4, 5)])
    several = case(operator, 13, [normal(2, 1, 5), normal(4, 1), normal(5)])
    check(one, several)


def test_a_last_window_that_is_not_full_has_the_norm_of_what_is_in_it():
    more = {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [1, 0, 0, 1]}
    check(case("LpPool", 22, [normal(1, 2, 9, 10)], p=1, **more))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_images_of_one_row_or_column_are_sampled_by_reflection(mode):
    more = {"mode": mode, "padding_mode": "reflection", "align_corners": 1}
    grid = normal(1, 6, 4, 2)
    check(
        *(
            case("GridSample", 20, [normal(1, 2, *image), grid], **more)
            for image in ((1, 6), (5, 1))
        )
    )


@pytest.mark.parametrize("included", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_windows_with_gaps_and_strides_average_what_is_in_them(ceil, included):
    """TVM divides by too few elements."""
    plane = {"kernel_shape": [4, 3], "strides": [1, 2], "dilations": [2, 2], "pads": [1, 0, 2, 1]}
    bare = {"kernel_shape": [4, 4], "strides": [1, 2], "dilations": [2, 2], "auto_pad": "VALID"}
    line = {"kernel_shape": [3], "strides": [2], "dilations": [3], "pads": [2, 1]}
    volume = {"kernel_shape": [2] * 3, "strides": [2] * 3, "dilations": [1, 2, 3]}
    more = {"ceil_mode": ceil, "count_include_pad": included}
    check(
        case("AveragePool", 19, [normal(2, 2, 10, 10)], **bare, **more),
        case("AveragePool", 19, [normal(1, 2, 11, 10)], **plane, **more),
        case("AveragePool", 19, [normal(1, 2, 13)], **line, **more),
        case("AveragePool", 19, [normal(1, 2, 6, 7, 8)], **volume, **more),
    )


@pytest.mark.parametrize("power", [1, 2])
def test_windows_with_gaps_and_strides_have_the_norm_of_what_is_in_them(power):
    more = {"kernel_shape": [4, 4], "strides": [1, 2], "dilations": [2, 2], "auto_pad": "VALID"}
    check(case("LpPool", 18, [normal(2, 2, 10, 10)], p=power, **more))


def test_a_normalization_of_nearly_equal_numbers_keeps_their_digits():
    # the same numbers whatever ran before: the error of their mean is near what is allowed
    drawn = np.random.default_rng(3).standard_normal((2, 3, 4, 5))
    data = (100 + drawn / 100).astype(np.float32)
    ours = run_together([case("MeanVarianceNormalization", 13, [data])], [[data]])[0][0]
    exact = data.astype(np.float64)
    exact -= exact.mean((0, 2, 3), keepdims=True)
    exact /= exact.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(ours, exact, atol=2e-3)


@pytest.mark.parametrize("axes", [(), ([],)], ids=["absent", "empty"])
def test_a_reduction_of_no_axes_computes_its_function_of_each_element(axes):
    data, none = normal(3, 4), [np.array(one, np.int64) for one in axes]
    names = ("L1", "L2", "SumSquare", "LogSumExp", "Sum", "Max")
    check(
        *(case(f"Reduce{name}", 18, [data], none, noop_with_empty_axes=1) for name in names),
        case("ReduceLogSum", 18, [np.abs(data) + 0.1], none, noop_with_empty_axes=1),
    )


def test_means_and_norms_of_integers_are_integers():
    data = whole(3, 5) - 7
    check(
        case("ReduceMean", 13, [data], axes=[1]),
        case("ReduceMean", 13, [data.astype(np.int64)], axes=[0], keepdims=0),
        case("ReduceL2", 13, [data], axes=[1]),
        case("ReduceLogSum", 13, [data + 9], axes=[1]),
    )


def test_sums_of_half_precision_have_its_digits():
    data = np.full((3000,), 0.1, np.float16)
    for operator in ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2"):
        check(case(operator, 13, [data], keepdims=0))


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


def test_a_function_is_inlined_with_the_defaults_of_its_attributes():
    check(case("Swish", 24, [normal(3, 4)]), case("Swish", 24, [normal(3)], alpha=2.0))


def test_a_convolution_of_integers_pads_to_the_same_size():
    data, weight = whole(1, 2, 6, 5, dtype="uint8"), whole(3, 2, 2, 3, dtype="uint8")
    more = {"auto_pad": "SAME_LOWER", "strides": [2, 1]}
    check(case("ConvInteger", 10, [data, weight], [np.uint8(4)], **more))


@pytest.mark.parametrize("given", [(), ("beta",), ("beta", "bias")])
def test_a_skip_normalization_needs_no_beta_and_bias_and_returns_the_sum(given):
    data, skip = normal(2, 3, 8), normal(2, 3, 8)
    made = case(
        "SkipLayerNormalization",
        17,
        [data, skip],
        [normal(8), *(normal(8) for _ in given)],
        4,
        "com.microsoft",
        epsilon=0.1,
    )
    made.outputs = ["y0", "y3"]
    check(made)


@pytest.mark.parametrize(
    ("made", "constants"),
    [
        (node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], auto_pad="SAME_UPPER"), {}),
        (node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], auto_pad="SAME_LOWER"), {}),
        (node("Resize", ["x", "", "s"], ["y"], mode="nearest"), {"s": [1, 1, 2, 2]}),
        (
            node("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="asymmetric"),
            {"s": [1, 1, 1.3, 2.5]},
        ),
        (
            node(
                "Resize",
                ["x", "", "s"],
                ["y"],
                mode="linear",
                coordinate_transformation_mode="align_corners",
            ),
            {"s": [1, 1, 2, 3]},
        ),
        (node("ArgMax", ["x"], ["y"], axis=1), {}),
        (node("ReduceL2", ["x"], ["y"], keepdims=1), {}),
    ],
    ids=lambda one: getattr(one, "op_type", ""),
)
def test_a_batch_stays_open(made, constants, tmp_path):
    values = {name: np.array(value, "float32") for name, value in constants.items()}
    dtype = "int64" if made.op_type == "ArgMax" else "float32"
    body = graph([made], {"x": ["n", 3, 9, 7]}, {"y": (dtype, ["n", "c", "h", "w"])}, values)
    path = save(tmp_path / "open.onnx", body, opset=17)
    assert not importers.import_model(Model("open", str(path)), tmp_path).fixed
