"""What is evaluated on constants must be what a kernel computes from the same numbers as inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from relax_models import Array, compute, const, lowered, module
from tvm import relax

from farm.compiler.graph.constant_evaluation import ConstantEvaluator
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.relax_rewriter import rewrite_module

OP = relax.op
Body = Callable[..., list[relax.Expr]]

FLOATS = np.array([0.0, -0.0, 1.5, -2.5, 30.0, -30.0, 1e-7, 1 / 3], "float32")
INTEGERS = np.array([0, 1, -2, 7, 2**31 - 1, -(2**31), 3, -1])
TABLE = np.arange(24, dtype="float32").reshape(4, 3, 2)


def evaluated(body: Body, operands: Sequence[Array]) -> list[Array | None]:
    """Return the outputs that are constants after the pass; None for one that is computed."""
    constants = [const(value, value.dtype.name) for value in operands]
    main = rewrite_module(
        module({}, lambda emit: [emit(each) for each in body(*constants)]), ConstantEvaluator
    )["main"]
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}

    def resolved(expression: Any) -> Any:
        while isinstance(expression, relax.Var):
            expression = bound[expression]
        return expression

    return [constant_value(resolved(field)) for field in resolved(main.body.body).fields]


def by_kernels(body: Body, operands: Sequence[Array]) -> list[Array]:
    inputs = {f"x{index}": value for index, value in enumerate(operands)}
    return compute(inputs, lambda emit, *x: [emit(each) for each in body(*x)]).outputs


def of_integers(left: relax.Expr, right: relax.Expr) -> list[relax.Expr]:
    return [
        *(
            operator(left, right)
            for operator in (OP.add, OP.subtract, OP.multiply, OP.maximum, OP.minimum)
        ),
        *(operator(left, right) for operator in (OP.bitwise_and, OP.bitwise_or)),
        OP.min(left),
        OP.max(left, axis=0, keepdims=True),
        OP.abs(left),
    ]


def comparisons(left: relax.Expr, right: relax.Expr) -> list[relax.Expr]:
    return [
        operator(left, right)
        for operator in (
            *(OP.less, OP.less_equal, OP.greater),
            *(OP.greater_equal, OP.equal, OP.not_equal),
        )
    ]


def of_truth_values(left: relax.Expr, right: relax.Expr) -> list[relax.Expr]:
    return [OP.logical_and(left, right), OP.logical_or(left, right), OP.logical_not(left)]


def sums(table: relax.Expr, truths: relax.Expr) -> list[relax.Expr]:
    return [
        OP.cumsum(table, -1, "int32"),
        OP.cumsum(table, 0, "int64"),
        OP.cumsum(truths, 1, "float32"),
        OP.cumsum(truths, None, "int64"),
    ]


def sizes(pixels: relax.Expr) -> list[relax.Expr]:
    return [
        OP.image.resize2d(pixels, (3, 7), layout="NCHW", method=method)
        for method in ("nearest_neighbor", "linear")
    ]


def selections(table: relax.Expr, rows: relax.Expr, points: relax.Expr) -> list[relax.Expr]:
    return [
        OP.take(table, rows, 0),
        OP.gather_nd(table, points),
        OP.concat([table, table], 1),
        OP.tile(table, (2, 1, 3)),
    ]


@pytest.mark.parametrize(
    ("body", "operands"),
    [
        (of_integers, (INTEGERS.astype("int32"), INTEGERS[::-1].astype("int32"))),
        (of_integers, (INTEGERS * 2**32, INTEGERS[::-1])),
        (comparisons, (INTEGERS, INTEGERS[::-1].copy())),
        (comparisons, (FLOATS, np.array([0.0, np.nan, 1.5, 7, np.inf, -30, 0, 1], "float32"))),
        (of_truth_values, (np.array([True, True, False]), np.array([True, False, False]))),
        (sums, (INTEGERS.astype("int32").reshape(2, 4), np.array([[True, False], [True, True]]))),
        (sizes, (np.ones((1, 2, 4, 4), "float32"),)),
        (sizes, (np.zeros((1, 1, 2, 2), "float32"),)),
        (selections, (TABLE, np.array([[3, 0], [1, 1]]), np.array([[0, 2], [3, 1]]))),
    ],
)
def test_integers_comparisons_and_selections_are_those_of_kernels(
    body: Body, operands: Sequence[Array]
) -> None:
    for ours, theirs in zip(evaluated(body, operands), by_kernels(body, operands), strict=True):
        assert ours is not None
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes(), f"{ours} instead of {theirs}"


def test_functions_of_floats_are_those_of_kernels_but_for_rounding() -> None:
    def body(x: relax.Expr, positive: relax.Expr) -> list[relax.Expr]:
        functions = (OP.nn.relu, OP.sigmoid, OP.tanh, OP.exp, OP.sin, OP.cos, OP.abs)
        return [
            *(function(x) for function in functions),
            OP.log(positive),
            OP.power(positive, x),
            OP.nn.softmax(x),
        ]

    operands = (FLOATS, np.abs(FLOATS) + np.float32(0.1))
    for ours, theirs in zip(evaluated(body, operands), by_kernels(body, operands), strict=True):
        assert ours is not None
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_small_tensors_are_created_and_large_ones_are_left_to_the_kernel_that_reads_them() -> None:
    def body(extent: int) -> Body:
        return lambda fill: [
            OP.arange(2, 2 + 3 * extent, 3, "int64"),
            OP.full((extent,), fill, "float32"),
        ]

    fill = np.array(2.5, "float32")
    ours = evaluated(body(5), [fill])
    assert [None if value is None else value.tolist() for value in ours] == [
        [2, 5, 8, 11, 14],
        [2.5] * 5,
    ]
    assert evaluated(body(2000), [fill]) == [None, None]


def test_what_is_rounded_to_integers_is_left_to_the_kernel() -> None:
    assert evaluated(
        lambda fill: [OP.arange(0.5, 4.5, 1.5, "int64"), OP.full((3,), fill, "int32")],
        [np.array(2.5, "float32")],
    ) == [None, None]


def test_a_tensor_of_unknown_shape_is_left_as_it_is() -> None:
    def body(extent: relax.Var) -> list[relax.Expr]:
        return [OP.full(relax.ShapeExpr([tvm.tirx.Var("n", "int64")]), extent, "float32")]

    assert evaluated(body, [np.array(2.5, "float32")]) == [None]


@pytest.mark.parametrize(
    ("values", "dtype", "exclusive"),
    [
        (np.ones(3, "float16"), "float16", False),
        (np.ones(3, "float16"), "float32", False),
        (np.array([True, True]), "bool", False),
        (np.array([1.5, 2.5], "float32"), "int32", False),
        (np.ones(3, "int32"), "int32", True),
    ],
)
def test_sums_whose_rounding_or_begin_is_the_kernels_are_left_to_it(
    values: Array, dtype: str, exclusive: bool
) -> None:
    def body(data: relax.Expr) -> list[relax.Expr]:
        return [OP.cumsum(data, 0, dtype, exclusive)]

    assert evaluated(body, [values]) == [None]


def test_an_image_that_is_interpolated_is_left_to_the_kernel() -> None:
    image = np.array([[[[0, 1], [1, 1]]]], "float32")
    unknown = np.full((1, 1, 2, 2), np.nan, "float32")
    assert evaluated(sizes, [image]) == evaluated(sizes, [unknown]) == [None, None]


@pytest.mark.parametrize("outside", [-1, 4])
def test_an_index_outside_of_the_tensor_is_left_to_the_kernel(outside: int) -> None:
    def body(table: relax.Expr, rows: relax.Expr) -> list[relax.Expr]:
        return [OP.take(table, rows, 0), OP.gather_nd(table, OP.expand_dims(rows, 1))]

    assert evaluated(body, (TABLE, np.array([0, outside]))) == [None, None]


def test_a_table_of_positions_by_a_small_network_is_stored_and_tvm_compiles_nothing_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in Swin Transformer V2: sigmoid(relu(coordinates @ first) @ second) at relative places."""
    rng = np.random.default_rng(0)
    coordinates, first, second = (
        rng.standard_normal(shape).astype("float32") for shape in ((9, 2), (2, 16), (16, 3))
    )
    places = rng.integers(0, 9, (4, 4))

    def body(emit: Callable[[relax.Expr], relax.Var], x: relax.Var) -> relax.Expr:
        hidden = emit(OP.nn.relu(emit(OP.matmul(const(coordinates), const(first)))))
        table = emit(OP.sigmoid(emit(OP.matmul(hidden, const(second)))))
        bias = emit(OP.take(table, const(places, "int64"), 0))
        return emit(OP.add(x, emit(OP.permute_dims(bias, [2, 0, 1]))))

    x = rng.standard_normal((3, 4, 4)).astype("float32")
    table = 1 / (1 + np.exp(-(np.maximum(coordinates @ first, 0) @ second)))
    (answer,) = compute({"x": x}, body).outputs
    np.testing.assert_allclose(answer, x + table[places].transpose(2, 0, 1), rtol=1e-5, atol=1e-6)

    compiled: list[Any] = []
    build = sys.modules["tvm.tirx.build"]
    monkeypatch.setattr(build, "codegen_build", lambda *given: compiled.append(given))
    assert len(lowered({"x": x}, body).kernels) == 1
    assert not compiled
