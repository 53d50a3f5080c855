"""Splits into many pieces, as models with many inputs of categories and unrolled loops have."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_models import compute, module
from tvm import relax, tirx

from farm.compiler.graph.concats.wide_splits import MOST_PIECES as MOST
from farm.compiler.graph.concats.wide_splits import take_pieces_by_slices
from farm.compiler.ir.relax_rewriter import op_name

X = np.random.default_rng(0).standard_normal((2, 2 * MOST + 7, 3)).astype("float32")


def split(where, axis=1, order=1):
    """A body that multiplies each piece by its number, and joins them in this order."""

    def body(emit, x):
        pieces = emit(relax.op.split(x, where, axis))
        count = len(pieces.ty.fields)
        parts = [
            emit(relax.op.multiply(emit(relax.TupleGetItem(pieces, k)), relax.const(np.float32(k))))
            for k in range(count)
        ]
        return relax.op.concat(parts[::order], axis)

    return body


def names(given: tvm.IRModule) -> list[str]:
    return [
        op_name(binding.value) or type(binding.value).__name__
        for block in given["main"].body.blocks
        for binding in block.bindings
    ]


@pytest.mark.parametrize("order", [1, -1], ids=["", "reversed"])
@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize(
    "where",
    [MOST, X.shape[1], list(range(1, MOST + 2)), [3, *range(4, MOST + 20, 1), MOST + 25]],
    ids=["few of several", "ones", "one more than stays", "uneven"],
)
def test_a_split_into_any_number_is_right(where, axis, order):
    x = X[:, : 2 * MOST] if where == MOST else X
    parts = [part * np.float32(k) for k, part in enumerate(np.split(x, where, axis))]
    answer = compute({"x": x}, split(where, axis, order))
    np.testing.assert_array_equal(answer.outputs[0], np.concatenate(parts[::order], axis))


def test_pieces_of_many_are_slices_and_nothing_holds_them_all():
    found = names(take_pieces_by_slices(module({"x": X}, split(X.shape[1]))))
    assert set(found) == {"relax.strided_slice", "relax.multiply", "relax.concat"}
    assert found.count("relax.strided_slice") == X.shape[1]


def test_a_piece_that_nobody_reads_is_not_taken():
    def body(emit, x):
        return relax.op.negative(emit(relax.TupleGetItem(emit(relax.op.split(x, MOST * 2, 1)), 5)))

    found = names(take_pieces_by_slices(module({"x": X[:, : 2 * MOST]}, body)))
    assert found == ["relax.strided_slice", "relax.negative"]


def test_few_pieces_stay_a_split():
    given = module({"x": X[:, :MOST]}, split(MOST))
    assert take_pieces_by_slices(given) is given


def test_pieces_of_open_extents_stay_a_split():
    batch = tirx.Var("batch", "int64")
    given = module({"x": relax.TensorType((batch, 3), "float32")}, split([1, 2] * 20, axis=0))
    assert "relax.split" in names(take_pieces_by_slices(given))


def test_an_open_batch_stays_open():
    batch = tirx.Var("batch", "int64")
    given = module({"x": relax.TensorType((batch, *X.shape[1:]), "float32")}, split(X.shape[1]))
    result = take_pieces_by_slices(given)["main"].ret_ty
    assert str(result.shape[0]) == "batch"
