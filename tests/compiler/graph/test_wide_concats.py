"""Concatenations and stacks of many tensors, as unrolled loops have."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import compute, lowered, module
from tvm import relax, tirx

from farm.compiler.graph.concats.wide_concats import MOST_JOINED as MOST
from farm.compiler.graph.concats.wide_concats import WideConcatRewriter
from farm.compiler.ir.relax_rewriter import op_name, rewrite_module

X = np.random.default_rng(0).standard_normal((3, 40, 5)).astype("float32")


def steps(emit, x, count):
    """Values that are all different."""
    first = emit(relax.op.strided_slice(x, [1], [0], [1]))
    return [emit(relax.op.multiply(first, relax.const(np.float32(k)))) for k in range(count)]


def joined(operator, axis, count):
    def body(emit, x):
        return operator(steps(emit, x, count), axis)

    return body


@pytest.mark.parametrize("count", [MOST, MOST + 1, 70])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_concatenation_of_any_number_is_right(count, axis):
    parts = [X[:, :1] * np.float32(k) for k in range(count)]
    answer = compute({"x": X}, joined(relax.op.concat, axis, count), {})
    np.testing.assert_array_equal(answer.outputs[0], np.concatenate(parts, axis))


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_a_stack_of_any_number_is_right(axis):
    parts = [X[:, :1] * np.float32(k) for k in range(70)]
    answer = compute({"x": X}, joined(relax.op.stack, axis, 70), {})
    np.testing.assert_array_equal(answer.outputs[0], np.stack(parts, axis))


@pytest.mark.parametrize("operator", [relax.op.concat, relax.op.stack])
@pytest.mark.parametrize(("count", "calls"), [(MOST, 1), (70, 4), (MOST * MOST + 1, MOST + 4)])
def test_no_call_joins_more_than_a_kernel_can(operator, count, calls):
    given = module({"x": X}, joined(operator, 0, count), {})
    found = rewrite_module(given, WideConcatRewriter)["main"]
    widths = []

    def look(expression):
        if op_name(expression) in ("relax.concat", "relax.stack"):
            widths.append(len(expression.args[0].fields))

    relax.analysis.post_order_visit(found.body, look)
    assert len(widths) == calls and max(widths) <= MOST


@pytest.mark.parametrize("operator", [relax.op.concat, relax.op.stack])
def test_groups_of_what_cannot_be_fused_are_not_fused_with_each_other(operator):
    """As the products of an unrolled loop."""
    x, w = (np.eye(8, dtype="float32") for _ in "xw")

    def body(emit, x, w):
        steps = [x]
        for _ in range(3 * MOST):
            steps.append(emit(relax.op.matmul(steps[-1], w)))
        return emit(relax.op.nn.relu(emit(operator(steps, 0))))

    functions = lowered({"x": x}, body, {"w": w}).module.functions.values()
    kernels = [function for function in functions if isinstance(function, tirx.PrimFunc)]
    assert MOST < max(len(kernel.params) for kernel in kernels) <= MOST + 1, "inputs and a result"
