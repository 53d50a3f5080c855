"""Products of a batch by one matrix, which exporters repeat for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from relax_models import Array, compute, module, run, target
from tvm import relax

from farm import importers
from farm.compiler.graph.broadcast_matrices import BroadcastMatrixRewriter
from farm.compiler.ir.relax_rewriter import op_name, rewrite_module
from farm.compiler.lower import lower_module
from farm.types import Model

GROUPS, BATCH, ROWS, INNER, COLUMNS = 2, 6, 5, 8, 7
random = np.random.default_rng(0)
X = random.standard_normal((BATCH, ROWS, INNER)).astype("float32")
W = random.standard_normal((INNER, COLUMNS)).astype("float32")
Body = Callable[..., Any]


def repeated(emit, matrix):
    """Repeat a matrix as torch does: broadcast to the axes of the batch, which are then merged."""
    shape = [GROUPS, BATCH // GROUPS, INNER, COLUMNS]
    copies = emit(relax.op.broadcast_to(matrix, relax.ShapeExpr(shape)))
    return emit(relax.op.reshape(copies, [BATCH, INNER, COLUMNS]))


def by_copies(emit, x, w):
    return emit(relax.op.matmul(x, repeated(emit, w)))


def extents_of_right_operands(body: Body, *values: Array) -> list[int]:
    inputs = {f"x{index}": value for index, value in enumerate(values)}
    found: list[int] = []

    def look(expression: Any) -> None:
        if op_name(expression) == "relax.matmul":
            found.append(len(expression.args[1].ty.shape))

    main = rewrite_module(module(inputs, body), BroadcastMatrixRewriter)["main"]
    relax.analysis.post_order_visit(main.body, look)
    return found


def test_a_weight_that_is_repeated_is_stored_and_read_once():
    answer = compute({"x": X}, by_copies, {"w": W})
    np.testing.assert_allclose(answer.outputs[0], X @ W, rtol=1e-4, atol=1e-5)
    assert sum(stored.size for stored in answer.lowered.parameters) <= INNER * (COLUMNS + 16)


def test_an_input_that_is_repeated_is_no_copy():
    assert extents_of_right_operands(by_copies, X, W) == [2]
    np.testing.assert_allclose(
        compute({"x": X, "w": W}, by_copies).outputs[0], X @ W, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(X[:1], W, id="the left operand is repeated, too"),
        pytest.param(X[0], W, id="the left operand has no batch"),
    ],
)
def test_repetitions_that_make_the_result_larger_stay(left, right):
    assert extents_of_right_operands(by_copies, left, right) == [3]
    found = compute({"x": left, "w": right}, by_copies).outputs[0]
    expected = np.broadcast_to(left @ right, (BATCH, ROWS, COLUMNS))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param([BATCH // GROUPS, INNER, COLUMNS], id="a matrix for each product of a group"),
        pytest.param([1, COLUMNS], id="a row for each row"),
        pytest.param([INNER, 1], id="a column for each column"),
    ],
)
def test_other_operands_stay(shape):
    w = random.standard_normal(shape).astype("float32")
    assert extents_of_right_operands(by_copies, X, w) == [3]
    copies = np.broadcast_to(w, (GROUPS, BATCH // GROUPS, INNER, COLUMNS))
    expected = X @ copies.reshape(BATCH, INNER, COLUMNS)
    np.testing.assert_allclose(
        compute({"x": X, "w": w}, by_copies).outputs[0], expected, rtol=1e-4, atol=1e-5
    )


def test_a_reshape_that_is_no_merge_of_axes_stays():
    def body(emit, x, w):
        turned = emit(relax.op.reshape(repeated(emit, w), [BATCH, COLUMNS, INNER]))
        return emit(relax.op.matmul(x, emit(relax.op.permute_dims(turned, [0, 2, 1]))))

    expected = X @ W.reshape(COLUMNS, INNER).T
    np.testing.assert_allclose(
        compute({"x": X, "w": W}, body).outputs[0], expected, rtol=1e-4, atol=1e-5
    )


class Layer(torch.nn.Module):
    """A linear layer of an image whose channels come first."""

    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(INNER, COLUMNS, bias=False)

    def forward(self, x):
        return self.projection(x.permute(0, 2, 3, 1))


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_linear_layer_of_transposed_images_has_its_weight_once(tmp_path, decomposed):
    program = torch.export.export(Layer().eval(), (torch.zeros(GROUPS, INNER, 9, 4),))
    if decomposed:  # as some publish it: the layer is a batch of products then
        program = program.run_decompositions()
    torch.export.save(program, tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    low = lower_module(imported.module, imported.weights, target(), {})
    assert sum(stored.size for stored in low.parameters) <= INNER * (COLUMNS + 16)
    (found,) = run(low, [imported.example[spec.name] for spec in imported.inputs])
    np.testing.assert_allclose(found, imported.reference(imported.example)[0], rtol=1e-4, atol=1e-5)
