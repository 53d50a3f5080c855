"""Find attention: a product, a softmax of its rows, and a product with that.

Scaled dot-product attention (Vaswani et al., 2017) is softmax(Q K^T / sqrt(d) + mask) V, which
exporters write as single operators. The scores Q K^T take much more memory than what goes in and
comes out; a kernel that computes all for a few rows at a time keeps them in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
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
    permute_dims_axes,
    rewrite_module,
    shape_of,
)

Array = np.ndarray[Any, Any]

_SOFTMAX, _MATMUL, _WHERE = "relax.nn.softmax", "relax.matmul", "relax.where"
_MOST_STEPS = 32  # views among them
_ARITHMETIC = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
_PLACES = {**dict.fromkeys(_ARITHMETIC, (0, 1)), _WHERE: (1, 2)}  # of the scores
_FLOAT = "float32"


class ZeroRows(Enum):
    """Rows of weights that are replaced by zeros, where the softmax gives NaN."""

    NONE = "none"
    # Only rows whose scores are all minus infinity: the mask leaves no key.
    WITHOUT_KEYS = "without keys"
    NAN = "not a number"  # all of them


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """An operator between the first product and the softmax.

    `shape` is that of the scores, before and after it. `operands` are all operands in their order;
    `scores` is the place of the scores among them. The others are broadcast to the scores.
    """

    operator: str
    shape: tuple[Extent, ...]
    operands: tuple[relax.Expr, ...]
    scores: int


@dataclass(frozen=True, slots=True)
class Attention:
    """The operands of an attention and the steps between its first product and its softmax.

    Queries are [..., M, K], keys [..., K, N], values [..., N, W], all of float32. The products of
    the leading extents are the same in all three and in the steps, the other extents are known.
    `zeros` are the rows of the softmax's result that are replaced by zeros.
    """

    queries: relax.Expr
    keys: relax.Expr
    values: relax.Expr
    steps: tuple[ScoreStep, ...]
    zeros: ZeroRows


@dataclass(frozen=True, slots=True)
class _Weights:
    """The result of a softmax, as the last product reads it."""

    softmax: Call
    zeros: ZeroRows

    @property
    def readers_of_scores(self) -> int:
        """Return how often the scores are read."""
        return 2 if self.zeros == ZeroRows.WITHOUT_KEYS else 1


@dataclass(frozen=True, slots=True)
class _Scores:
    """A softmax reads what a product and the steps after it compute."""

    product: Call
    steps: tuple[ScoreStep, ...]


# Returns [..., M, W], which replaces an attention, with the leading extents of the values; None
# keeps its operators.
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
        self._readers: Counter[relax.Var] = Counter()
        for _, function in module.functions_items():
            if isinstance(function, relax.Function):
                self._readers += count_readers(function)

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {_MATMUL: self._kernel}

    def _kernel(self, call: Call) -> relax.Expr | None:
        if not _is_float32(call):
            return None
        first, second = call.args
        if found := self._attention(first, second):
            return self._make_kernel(self.builder_, found)
        # As models with images of channels write it: V^T softmax(...)^T
        swapped = self._read_once(second, "relax.permute_dims")
        if swapped is None or not _swaps_last_axes(swapped):
            return None
        axes = permute_dims_axes(swapped)
        if self._weights(swapped.args[0]) is None:
            return None
        values = self.builder_.emit(relax.op.permute_dims(first, axes))
        if found := self._attention(swapped.args[0], values):
            result = self._make_kernel(self.builder_, found)
            if result is not None:
                return relax.op.permute_dims(self.builder_.emit(result), axes)
        return None

    def _attention(self, weights: relax.Expr, values: relax.Expr) -> Attention | None:
        """Return the attention whose last product is that of these weights and values."""
        found = self._weights(weights)
        if found is None:
            return None
        scores = self._scores(found.softmax.args[0], found.readers_of_scores, _MOST_STEPS)
        if scores is None:
            return None
        queries, keys = scores.product.args
        operands = (queries, keys, values)
        if (
            any(map(_is_constant, operands))
            or not all(map(_is_float32, operands))
            or not _fit(*map(shape_of, (*operands, scores.product, weights)))
        ):
            return None
        return Attention(queries, keys, values, scores.steps, found.zeros)

    def _weights(self, expression: relax.Expr) -> _Weights | None:
        """Return the softmax over the last axis of which a value is a view."""
        call = self.producer(expression)
        if call is None or self._readers[expression] != 1:
            return None
        if _is_view_of_rows(call):
            return self._weights(call.args[0])
        zeros = ZeroRows.NONE
        if op_name(call) == _WHERE:
            value = call.args[2]
            zeros = self._zero_rows(call)
            call = self.producer(value)
            if zeros == ZeroRows.NONE or call is None:
                return None
        if op_name(call) != _SOFTMAX or not _is_over_last_axis(call):
            return None
        return _Weights(call, zeros)

    def _zero_rows(self, where: Call) -> ZeroRows:
        """Return the rows in which where(test, 0, softmax) is 0."""
        test, zero, value = where.args
        readers = 1
        if (filled := self._read_once(zero, "relax.full_like")) is not None:
            readers += filled.args[0].same_as(value)
            zero = filled.args[1]
        if not _is_zero(self.value(zero)):
            return ZeroRows.NONE
        is_nan = self._read_once(test, "relax.isnan")
        if is_nan is not None and is_nan.args[0].same_as(value):
            return ZeroRows.NAN if self._readers[value] == readers + 1 else ZeroRows.NONE
        softmax = self.called(value, _SOFTMAX)
        if softmax is None or self._readers[value] != readers:
            return ZeroRows.NONE
        return ZeroRows.WITHOUT_KEYS if self._is_without_keys(test, softmax) else ZeroRows.NONE

    def _is_without_keys(self, test: relax.Expr, softmax: Call) -> bool:
        """Return whether a test is that all scores of a row are minus infinity.

        As torch writes it: no score is not minus infinity, where "any" is the greatest of bytes.
        """
        for operator in ("logical_not", "astype", "max", "astype", "logical_not"):
            call = self._read_once(test, f"relax.{operator}")
            if call is None:
                return False
            if operator == "max" and not _is_over_last_axis_and_keeps_it(call):
                return False
            test = call.args[0]
        equal = self._read_once(test, "relax.equal")
        if equal is None or not equal.args[0].same_as(softmax.args[0]):
            return False
        value = self.value(equal.args[1])
        return value is not None and bool(np.all(np.isneginf(value)))

    def _scores(self, expression: relax.Expr, readers: int, most: int) -> _Scores | None:
        """Return the product, and at most so many steps, that compute a value.

        It is read so many times, and what it is computed from once.
        """
        call, shape = self.producer(expression), shape_of(expression)
        if call is None or shape is None or self._readers[expression] != readers or most == 0:
            return None
        if not _is_float32(expression):
            return None
        if op_name(call) == _MATMUL:
            return _Scores(call, ())
        if _is_view_of_rows(call):
            return self._scores(call.args[0], 1, most - 1)
        for place in _PLACES.get(op_name(call), ()):
            others = (*call.args[:place], *call.args[place + 1 :])
            if (
                _same(shape_of(call.args[place]), shape)
                and all(_is_broadcast(shape_of(other), shape) for other in others)
                and (found := self._scores(call.args[place], 1, most - 1)) is not None
            ):
                step = ScoreStep(op_name(call), tuple(shape), tuple(call.args), place)
                return _Scores(found.product, (*found.steps, step))
        return None

    def _read_once(self, expression: relax.Expr, operator: str) -> Call | None:
        """Return the call of this operator that computes a value which one other call reads."""
        return self.called(expression, operator) if self._readers[expression] == 1 else None


def _is_over_last_axis(softmax: Call) -> bool:
    shape = shape_of(softmax)
    return shape is not None and int(softmax.attrs.axis) in (-1, len(shape) - 1)


def _is_over_last_axis_and_keeps_it(reduction: Call) -> bool:
    axes, rank = reduction.attrs.axis, int(reduction.args[0].ty.ndim)
    return (
        bool(reduction.attrs.keepdims)
        and axes is not None
        and [int(axis) % rank for axis in axes] == [rank - 1]
    )


def _swaps_last_axes(call: Call) -> bool:
    axes, rank = permute_dims_axes(call), int(call.ty.ndim)
    return rank > 1 and axes == [*range(rank - 2), rank - 1, rank - 2]


def _is_view_of_rows(call: Call) -> bool:
    """Return whether a call changes nothing, or the leading axes of the shape only."""
    if op_name(call) not in ("relax.reshape", "relax.broadcast_to"):
        return False
    before, after = shape_of(call.args[0]), shape_of(call)
    if before is None or after is None or min(len(before), len(after)) < 2:
        return False
    if op_name(call) == "relax.broadcast_to":
        return shapes_are_equal(before, after)
    return shapes_are_equal(before[-2:], after[-2:])


def _is_float32(expression: relax.Expr) -> bool:
    return str(expression.ty.dtype) == _FLOAT


def _is_constant(expression: relax.Expr) -> bool:
    return constant_value(expression) is not None


def _is_zero(value: Array | None) -> bool:
    return value is not None and not value.any()


def _same(shape: list[Extent] | None, other: list[Extent]) -> bool:
    return shape is not None and shapes_are_equal(shape, other)


def _fit(
    queries: list[Extent] | None,
    keys: list[Extent] | None,
    values: list[Extent] | None,
    scores: list[Extent] | None,
    weights: list[Extent] | None,
) -> bool:
    """Return whether queries, keys and values have the shapes that `Attention` says.

    `scores` is the shape of the first product, `weights` that of the second one's first operand.
    """
    if queries is None or keys is None or values is None or scores is None or weights is None:
        return False
    if len(scores) < 3 or len(weights) < 3:
        return False
    *outer, rows, count = scores
    if any(map(is_dynamic, (rows, count, queries[-1], values[-1]))):
        return False
    return (
        shapes_are_equal(queries, [*outer, rows, queries[-1]])
        and shapes_are_equal(keys, [*outer, queries[-1], count])
        and shapes_are_equal(values, [*weights[:-2], count, values[-1]])
    )


def _is_broadcast(shape: list[Extent] | None, scores: list[Extent]) -> bool:
    """Return whether an operand of this shape is broadcast to the scores."""
    if shape is None or len(shape) > len(scores):
        return False
    return all(
        shapes_are_equal([one], [other]) or (not is_dynamic(one) and one == 1)
        for one, other in zip(shape[::-1], scores[::-1], strict=False)
    )
