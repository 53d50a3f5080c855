"""Find attention: a product, a softmax of its rows, and a product with that.

Scaled dot-product attention (Vaswani et al., 2017) is softmax(Q K^T / sqrt(d) + mask) V, which
exporters write as single operators. The scores Q K^T take much more memory than what goes in and
comes out; a kernel that computes all for a few rows at a time keeps them in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import Extent, is_dynamic, shapes_are_equal
from farm.compiler.ir.relax_rewriter import (
    Rewriter,
    Rule,
    count_readers,
    op_name,
    rewrite_module,
    shape_of,
)

_ARITHMETIC = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
_WHERE, _SOFTMAX, _MATMUL = "relax.where", "relax.nn.softmax", "relax.matmul"
_FLOAT = "float32"


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """An operator between the first product and the softmax, which keeps the shape of the scores.

    `operands` are all operands in their order; `scores` is the place of the scores among them. The
    others have the rank of the scores or less, and extents as these or one.
    """

    operator: str
    operands: tuple[relax.Expr, ...]
    scores: int

    @property
    def others(self) -> tuple[relax.Expr, ...]:
        """Return the operands that are not the scores."""
        return self.operands[: self.scores] + self.operands[self.scores + 1 :]


@dataclass(frozen=True, slots=True)
class Attention:
    """The operands of an attention and the steps between its first product and its softmax.

    Queries are [..., M, K], keys [..., K, N], values [..., N, W], all of float32. The leading
    extents are the same in all three, the others are known.
    """

    queries: relax.Expr
    keys: relax.Expr
    values: relax.Expr
    steps: tuple[ScoreStep, ...]


# Returns what replaces an attention; None keeps its operators.
MakeKernel = Callable[[relax.BlockBuilder, Attention], relax.Expr | None]


def attention_pass(make_kernel: MakeKernel) -> tvm.transform.Pass:
    """Return a pass that replaces attentions by kernels."""

    def transform(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_module(module, lambda result: AttentionRewriter(result, make_kernel))

    return tvm.transform.module_pass(transform, opt_level=0, name="farm.Attention")


@mutator
class AttentionRewriter(Rewriter):
    """Replaces the last product of an attention by a kernel that computes all of it."""

    def __init__(self, module: tvm.IRModule, make_kernel: MakeKernel) -> None:
        super().__init__(module)
        self._make_kernel = make_kernel
        self._readers = count_readers(module["main"])

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {_MATMUL: self._kernel}

    def _kernel(self, call: Call) -> relax.Expr | None:
        found = self._attention(call)
        return None if found is None else self._make_kernel(self.builder_, found)

    def _attention(self, call: Call) -> Attention | None:
        weights, values = call.args
        softmax = self._read_once(weights, _SOFTMAX)
        shape = shape_of(weights)
        if softmax is None or shape is None or str(call.ty.dtype) != _FLOAT:
            return None
        if int(softmax.attrs.axis) not in (-1, len(shape) - 1):
            return None
        steps: list[ScoreStep] = []
        scores = softmax.args[0]
        while (product := self._read_once(scores, _MATMUL)) is None:
            step = self._step(scores, shape)
            if step is None:
                return None
            steps.insert(0, step)
            scores = step.operands[step.scores]
        queries, keys = product.args
        shapes = [shape_of(one) for one in (queries, keys, values)]
        if any(map(_is_constant, (queries, keys, values))) or not _fit(shapes, shape):
            return None
        return Attention(queries, keys, values, tuple(steps))

    def _step(self, scores: relax.Expr, shape: list[Extent]) -> ScoreStep | None:
        """Return the step that computes scores of this shape; None if it is no such step."""
        call = self.producer(scores)
        if call is None or self._readers[scores] != 1 or not _same(shape_of(scores), shape):
            return None
        operands = tuple(call.args)
        if op_name(call) in _ARITHMETIC:
            places = (0, 1)
        elif op_name(call) == _WHERE:
            places = (1, 2)
        else:
            return None
        for place in places:
            step = ScoreStep(op_name(call), operands, place)
            if self._leads_to_product(operands[place], shape) and all(
                _is_broadcast(shape_of(other), shape) for other in step.others
            ):
                return step
        return None

    def _leads_to_product(self, expression: relax.Expr, shape: list[Extent]) -> bool:
        """Return whether a value is a product, or a step after one, that nothing else reads."""
        call = self.producer(expression)
        if call is None or self._readers[expression] != 1 or not _same(shape_of(expression), shape):
            return False
        if str(call.ty.dtype) != _FLOAT:
            return False
        return op_name(call) == _MATMUL or self._step(expression, shape) is not None

    def _read_once(self, expression: relax.Expr, operator: str) -> Call | None:
        """Return the call of this operator that computes a value which one other call reads."""
        return self.called(expression, operator) if self._readers[expression] == 1 else None


def _is_constant(expression: relax.Expr) -> bool:
    return constant_value(expression) is not None


def _same(shape: list[Extent] | None, other: list[Extent]) -> bool:
    return shape is not None and shapes_are_equal(shape, other)


def _fit(shapes: list[list[Extent] | None], scores: list[Extent]) -> bool:
    """Return whether queries, keys and values have the shapes that `Attention` says."""
    queries, keys, values = shapes
    if queries is None or keys is None or values is None or len(scores) < 3:
        return False
    *outer, rows, count = scores
    if any(map(is_dynamic, (rows, count, queries[-1], values[-1]))):
        return False
    return (
        shapes_are_equal(queries, [*outer, rows, queries[-1]])
        and shapes_are_equal(keys, [*outer, queries[-1], count])
        and shapes_are_equal(values, [*outer, count, values[-1]])
    )


def _is_broadcast(shape: list[Extent] | None, scores: list[Extent]) -> bool:
    """Return whether an operand of this shape is broadcast to the scores."""
    if shape is None or len(shape) > len(scores):
        return False
    return all(
        shapes_are_equal([one], [other]) or (not is_dynamic(one) and one == 1)
        for one, other in zip(shape[::-1], scores[::-1], strict=False)
    )
