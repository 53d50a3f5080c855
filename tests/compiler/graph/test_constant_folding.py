"""Folding must not change what a model computes: each folded operator against TVM's own code, to
the bit.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_models import Array, compute, const, lowered, module, run, target
from torch.nn import functional
from tvm import relax, tirx

from farm.compiler.graph.constant_folding import ConstantFolder, fold_shape_operator
from farm.compiler.ir.constants import constant_value
from farm.compiler.lower import lower_module

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int32", "int64", "uint32"]
OP = relax.op


def values(dtype: str) -> Array:
    """What arithmetic trips over."""
    if dtype.startswith("float"):
        return np.array(
            [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3e4, 1e-7, 7.0, 1 / 3], dtype
        )
    if dtype == "bool":
        return np.array([False, True])
    limits = np.iinfo(dtype)
    return np.array([0, 1, 2, 7, limits.max, limits.min, limits.max - 1], dtype)


def folds(body: Callable[..., Any], *operands: Array) -> bool:
    """Whether a call on constants is replaced by its value, and that value is what TVM computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = module(
            {}, lambda emit: emit(body(*[const(value, value.dtype.name) for value in operands]))
        )
        folded = ConstantFolder()(given)
        (ours,) = compute(
            {}, lambda emit: emit(body(*[const(value, value.dtype.name) for value in operands]))
        ).outputs
    (theirs,) = compute(
        {f"x{index}": value for index, value in enumerate(operands)},
        lambda emit, *x: emit(body(*x)),
    ).outputs
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    same = ours.tobytes() == theirs.tobytes()  # pytest would look for where large ones differ
    assert same, f"{ours} instead of {theirs}"
    return calls(folded) == []


def calls(given: tvm.IRModule) -> list[str]:
    found: list[str] = []
    relax.analysis.post_order_visit(
        given["main"],
        lambda node: found.append(node.op.name) if isinstance(node, relax.Call) else None,
    )
    return found


def pairs(dtype: str) -> tuple[Array, Array]:
    left, right = zip(*itertools.product(values(dtype), repeat=2), strict=True)
    return np.array(left, dtype), np.array(right, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "operator",
    [OP.add, OP.subtract, OP.multiply, OP.divide, OP.maximum, OP.minimum],
    ids=lambda op: op.__name__,
)
def test_arithmetic_on_floats_folds_to_what_tvm_computes(operator, dtype):
    assert folds(operator, *pairs(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("operator", [OP.negative, OP.sqrt, OP.rsqrt], ids=lambda op: op.__name__)
def test_functions_of_floats_fold_to_what_tvm_computes(operator, dtype):
    assert folds(operator, values(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "operator",
    [OP.add, OP.subtract, OP.multiply, OP.maximum, OP.minimum],
    ids=lambda op: op.__name__,
)
def test_arithmetic_on_integers_is_left_to_tvm(operator, dtype):
    assert not folds(operator, *pairs(dtype))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_division_of_integers_truncates_and_is_exact_beyond_53_bits(dtype):
    huge = np.iinfo(dtype).max - 1
    left, right = np.array([-7, 7, -7, huge, 1], dtype), np.array([2, -2, -2, 3, huge], dtype)
    assert not folds(OP.divide, left, right)
    (ours,) = compute(
        {}, lambda emit: emit(OP.divide(const(left, dtype), const(right, dtype)))
    ).outputs
    np.testing.assert_array_equal(ours, [-3, -3, 3, huge // 3, 0])


def test_quotients_of_extents_are_rounded_towards_zero():
    assert folds(OP.divide, np.array([-7, 7, -7, 7, 0]), np.array([2, -2, -2, 2, 3]))


@pytest.mark.parametrize("reduction", ["update", "add"])
def test_an_extent_is_replaced_and_not_added_to(reduction):
    def scattered(*operands):
        return OP.scatter_elements(*operands, 0, reduction)

    extents = np.array([2, 3, 4])
    assert folds(scattered, extents, np.array([1]), np.array([9])) == (reduction == "update")


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("result", [*FLOATS, *INTEGERS, "bool"])
def test_conversions_fold(source, result):
    operand = values(source)
    if source in FLOATS and result in INTEGERS:
        operand = np.array([0, -0.0, 1.5, 100.7, 7], source)
    if source != result:
        assert folds(lambda x: OP.astype(x, result), operand)


@pytest.mark.parametrize(
    ("number", "result"),
    [
        (np.nan, "int32"),
        (np.inf, "int64"),
        (2.0**31, "int32"),
        (-(2.0**31) - 257, "int32"),
        (2.0**63, "int64"),
        (-1.0, "uint8"),
        (128.0, "int8"),
    ],
)
def test_floats_that_an_integer_cannot_hold_become_what_the_machine_makes_of_them(number, result):
    for dtype in FLOATS:
        with np.errstate(over="ignore"):
            operand = np.array([1, number], "float64").astype(dtype)
        assert not folds(lambda x: OP.astype(x, result), operand)


def test_the_first_and_the_last_float_of_an_integers_range_fold():
    ends = np.array([-(2.0**31), np.nextafter(np.float32(2.0**31), np.float32(0))], "float32")
    assert folds(lambda x: OP.astype(x, "int32"), ends)


@pytest.mark.parametrize("name", ["mean", "variance", "sum"])
@pytest.mark.parametrize(
    ("axis", "keepdims"), [(None, False), ([0, 2], True), (-1, False), ([0, 2], False)]
)
def test_weights_that_are_standardized_become_constants(axis, keepdims, name):
    w = np.random.default_rng(4).standard_normal((3, 4, 5)).astype("float32")
    low = lowered(
        {"x": np.zeros(1, "float32")},
        lambda emit, x: emit(OP.add(x, emit(getattr(OP, name)(const(w), axis, keepdims)))),
    )
    assert not any(name in kernel.name for kernel in low.kernels)
    axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
    reduced = {"mean": w.mean, "variance": w.var, "sum": w.sum}[name]
    expected = np.zeros(1, "float32") + reduced(axes, keepdims=keepdims)
    (found,) = run(low, [np.zeros(1, "float32")])
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "bool"])
@pytest.mark.parametrize(
    ("begin", "end", "strides"),
    [
        ([1, 0], [3, 4], None),
        ([0, -3], [9, -1], None),
        ([0, 1], [2, 99], [1, 2]),
        ([2, 0], [3, 1], [1, 1]),
    ],
    ids=str,
)
def test_slices_fold_for_every_type(begin, end, strides, dtype):
    weight = np.arange(20).reshape(4, 5).astype(dtype)
    assert folds(lambda x: OP.strided_slice(x, [0, 1], begin, end, strides), weight)


def test_a_slice_along_one_axis_of_several_folds():
    assert folds(lambda x: OP.strided_slice(x, [1], [1], [2]), values("float32").reshape(1, 11, 1))


def test_a_slice_with_a_negative_stride_is_left_to_tvm():
    assert not folds(lambda x: OP.strided_slice(x, [0], [9], [-99], [-2]), values("float32"))


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (2, 4, 5))])
def test_a_product_of_weights_becomes_a_constant(shapes):
    left, right = (np.random.default_rng(2).standard_normal(shape) for shape in shapes)
    folded = value_that_replaces(lambda: OP.matmul(const(left, "float32"), const(right, "float32")))
    np.testing.assert_allclose(folded, left @ right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("axes", [[-1], [1, 2]], ids=str)
def test_a_norm_of_weights_becomes_a_constant(axes, center, scale):
    numbers = np.random.default_rng(3)
    weight = numbers.standard_normal((2, 3, 4)) + 5
    gain, shift = (numbers.standard_normal(weight.shape[axes[0] :]) for _ in range(2))
    folded = value_that_replaces(
        lambda: OP.nn.layer_norm(
            *(const(value, "float32") for value in (weight, gain, shift)), axes, 1e-3, center, scale
        )
    )
    expected = functional.layer_norm(
        torch.from_numpy(weight),
        gain.shape,
        torch.from_numpy(gain) if scale else None,
        torch.from_numpy(shift) if center else None,
        1e-3,
    )
    np.testing.assert_allclose(folded, expected.numpy(), rtol=1e-5, atol=1e-6)


def value_that_replaces(body: Callable[[], Any]) -> Array:
    """The value that a call on constants is replaced by."""
    function = ConstantFolder()(module({}, lambda emit: emit(body())))["main"]
    value = constant_value(function.body.blocks[-1].bindings[-1].value)
    assert value is not None
    return value.copy()  # the constant ends with its module


def test_operands_of_different_shapes_are_broadcast():
    assert folds(OP.multiply, values("float32")[:, None], values("float32")[:2])
    assert folds(OP.add, np.float32([[1, 2]]), np.float32(3))


def test_a_scalar_stays_a_scalar():
    x = np.float32(7)
    (result,) = compute(
        {"x": x}, lambda emit, x: emit(OP.multiply(x, emit(OP.add(const(2), const(3)))))
    ).outputs
    assert (result.shape, result) == ((), 35)


def test_64_bits_stay_64_bits():
    (wide,) = compute(
        {}, lambda emit: emit(OP.reshape(const([[1 << 40, -1]], "int64"), (2,)))
    ).outputs
    (fine,) = compute(
        {}, lambda emit: emit(OP.add(const([1 / 3], "float64"), const([0], "float64")))
    ).outputs
    assert (wide.dtype, list(wide)) == ("int64", [1 << 40, -1])
    assert (fine.dtype, fine[0]) == ("float64", 1 / 3)


CUBE = np.arange(24, dtype="float32").reshape(2, 3, 4)
SHAPES = {
    "reshape": lambda x: OP.reshape(x, (4, 6)),
    "reshape by inference": lambda x: OP.reshape(x, (-1, 12)),
    "transpose": lambda x: OP.permute_dims(x, [2, 0, 1]),
    "transpose from behind": lambda x: OP.permute_dims(x, [-1, 0, -2]),
    "reverse all axes": lambda x: OP.permute_dims(x),
    "new axes": lambda x: OP.expand_dims(x, [0, -1]),
    "flatten": OP.flatten,
    "broadcast": lambda x: OP.broadcast_to(x, (5, 2, 3, 4)),
}


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("name", SHAPES)
def test_changes_of_shape_fold_for_every_type(name, dtype):
    assert folds(SHAPES[name], CUBE.astype(dtype))


def test_a_large_weight_is_turned_to_its_last_element():
    assert folds(OP.permute_dims, np.arange(1001 * 300, dtype="float32").reshape(1001, 300))


def test_axes_of_one_are_squeezed():
    assert folds(lambda x: OP.squeeze(x, [1]), CUBE[:, :1])
    assert folds(OP.squeeze, CUBE[:1, :1, :1])


def test_a_chain_of_constants_folds_to_one():
    def body(emit):
        return emit(
            OP.sqrt(emit(OP.add(emit(OP.multiply(const([2.0]), const([3.0]))), const([3.0]))))
        )

    assert calls(ConstantFolder()(module({}, body))) == []
    assert compute({}, body).outputs[0] == 3


def test_what_is_not_constant_is_left_alone():
    extent = tirx.Var("n", "int64")
    open_shape = relax.TensorType((extent,), "float32")
    bodies = {
        "relax.add": lambda emit, x: emit(OP.add(x, const([1.0]))),
        "relax.exp": lambda emit, x: emit(OP.exp(const([1.0]))),
        "relax.broadcast_to": lambda emit, x: emit(OP.broadcast_to(const([1.0]), x.ty.shape)),
    }
    for name, body in bodies.items():
        assert calls(ConstantFolder()(module({"x": open_shape}, body))) == [name]


def test_folding_leaves_the_module_that_it_was_given_as_it_was():
    given = module({}, lambda emit: emit(OP.add(const([1.0]), const([2.0]))))
    before = given.script()
    ConstantFolder()(given)
    assert given.script() == before


def test_constants_in_both_branches_of_a_choice_are_folded():
    builder = relax.BlockBuilder()
    x, c = (
        relax.Var("x", relax.TensorType((3,), "float32")),
        relax.Var("c", relax.TensorType((), "bool")),
    )
    with builder.function("main", [x, c], attrs={"num_input": 2}):
        branches = [_branch(x, number) for number in (1.0, 5.0)]
        builder.emit_func_output(builder.emit(relax.If(c, *branches)))
    given = builder.get()
    assert calls(ConstantFolder()(given)).count("relax.add") == 2
    low = lower_module(given, [], target(), {})
    data = np.zeros(3, "float32")
    np.testing.assert_array_equal(run(low, [data, np.bool_(True)])[0], [2, 2, 2])
    np.testing.assert_array_equal(run(low, [data, np.bool_(False)])[0], [6, 6, 6])


def _branch(x: relax.Var, number: float) -> relax.SeqExpr:
    folded, result = (
        relax.Var("folded", relax.TensorType((3,), "float32")),
        relax.Var("result", relax.TensorType((3,), "float32")),
    )
    first = relax.VarBinding(folded, OP.add(const([number] * 3), const([1.0] * 3)))
    second = relax.VarBinding(result, OP.add(x, folded))
    return relax.SeqExpr([relax.BindingBlock([first, second])], result)


STATISTICS = {"gain": 1.7, "shift": -0.4, "mean": 3.0, "variance": 0.02}


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize(
    "reused", [False, True], ids=["", "the convolution's own result is used too"]
)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_a_batch_norm_of_any_statistics_disappears_into_its_convolution(groups, reused, bias):
    numbers = np.random.default_rng(2)
    weights = {
        name: (value * (1 + numbers.random(16))).astype("float32")
        for name, value in STATISTICS.items()
    }
    weights["w"] = numbers.standard_normal((16, 16 // groups, 3, 3)).astype("float32")
    weights["b"] = numbers.standard_normal((1, 16, 1, 1)).astype("float32")
    x = numbers.standard_normal((1, 16, 8, 8)).astype("float32")

    def body(emit, x, gain, shift, mean, variance, w, b):
        y = emit(OP.nn.conv2d(x, w, groups=groups))
        y = emit(OP.add(y, b)) if bias else y
        z = emit(
            relax.TupleGetItem(emit(OP.nn.batch_norm(y, gain, shift, mean, variance, 1, 0.3)), 0)
        )
        return emit(OP.add(y, z)) if reused else z

    tensors = {name: torch.from_numpy(value).double() for name, value in weights.items()}
    y = functional.conv2d(torch.from_numpy(x).double(), tensors["w"], groups=groups)
    y = y + tensors["b"] if bias else y
    z = functional.batch_norm(
        y, tensors["mean"], tensors["variance"], tensors["gain"], tensors["shift"], False, 0.1, 0.3
    )
    answer = compute({"x": x}, body, weights)
    np.testing.assert_allclose(
        answer.outputs[0], (y + z if reused else z).numpy(), atol=1e-3, rtol=1e-4
    )
    if not reused and not bias:
        assert len([kernel for kernel in answer.kernels if "transpose" not in kernel.name]) == 1


def test_a_batch_norm_alone_is_a_scale_and_a_shift():
    numbers = np.random.default_rng(3)
    x = numbers.standard_normal((1, 5, 4, 4)).astype("float32")
    weights = {name: np.full(5, value, "float32") for name, value in STATISTICS.items()}
    low = lowered(
        {"x": x},
        lambda emit, x, *s: emit(relax.TupleGetItem(emit(OP.nn.batch_norm(x, *s, 1, 1e-3)), 0)),
        weights,
    )
    assert len(low.kernels) == 1


def halved(emit, x):
    """The second half of the second axis, cut as exporters write it: by the arithmetic on the shape
    of `x`.
    """
    axis = const([1], "int64")
    shape = emit(OP.shape_to_tensor(emit(OP.shape_of(x))))
    below = emit(OP.less(axis, const(0, "int64")))
    axis = emit(OP.where(below, emit(OP.add(axis, const(3, "int64"))), axis))
    extent = emit(OP.take(shape, axis, axis=0))
    half = emit(OP.divide(emit(OP.add(extent, const([1], "int64"))), const([2], "int64")))
    begin = emit(OP.scatter_elements(const([0, 0, 0], "int64"), axis, half))
    return emit(
        OP.negative(emit(OP.dynamic_strided_slice(x, begin, shape, const([1, 1, 1], "int64"))))
    )


def test_arithmetic_on_shapes_is_known_when_it_is_compiled():
    x = np.arange(30, dtype="float32").reshape(2, 5, 3)
    answer = compute({"x": x}, halved)
    np.testing.assert_array_equal(answer.outputs[0], -x[:, 3:])
    assert len([kernel for kernel in answer.kernels if kernel.operations]) == 1


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_beyond_a_shape_is_left_alone(index):
    call = OP.take(const([1, 2, 3], "int64"), const([index], "int64"), axis=0)
    with pytest.raises(ValueError, match="not an element"):
        fold_shape_operator(call, constant_value)
