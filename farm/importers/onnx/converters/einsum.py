"""Convert Einsum of two operands to a product of matrices, which has fast loops.

The labels of an equation (https://onnx.ai/onnx/operators/onnx__Einsum.html) are those of the batch
(in both operands and in the result), summed labels (in both operands only), and those of one
operand and the result. TVM's definition, a loop for each label, is for all other equations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.extents import are_equal, is_open
from farm.importers.onnx.converters.missing import Attributes, Inputs

_ELLIPSIS = "..."
# Rows and columns of a product at least: a loop for each label is faster for vectors.
_LEAST_SIDE = 4
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Operand:
    """An operand, and the label of each of its axes."""

    value: relax.Expr
    labels: Labels

    def extent(self, label: str) -> Any:
        return self.value.ty.shape[self.labels.index(label)]


class Einsum(OnnxOpConverter):  # type: ignore[misc]
    """Einsum, by a product of matrices where that is possible."""

    @classmethod
    def _impl_v12(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        equation = attributes["equation"].decode()
        product = _by_matmul(builder, equation, inputs)
        if product is not None:
            return product
        return onnx_frontend.Einsum._impl_v12(builder, inputs, attributes, params)


def _by_matmul(
    builder: relax.BlockBuilder, equation: str, inputs: Sequence[relax.Expr]
) -> relax.Expr | None:
    """Return an Einsum as a product of matrices; None if it is none, or hardly one."""
    if len(inputs) != 2:
        return None
    found = _labels(equation, [int(one.ty.ndim) for one in inputs])
    if found is None:
        return None
    (left, right), result = found
    if any(len(set(one)) < len(one) for one in (left, right, result)):
        return None
    pair = _in_order(_Operand(inputs[0], left), _Operand(inputs[1], right), result)
    if pair is None:
        return None
    first, second = (
        _summed(builder, one, {*other.labels, *result}) for one, other in (pair, pair[::-1])
    )
    parts = _parts(first, second, result)
    # A batch is one axis each; without one, the first operand's rows need not be one axis.
    rows = [parts.rows] if parts.batch else [(label,) for label in parts.rows]
    batch = [(label,) for label in parts.batch]
    product = builder.emit(
        relax.op.matmul(
            _grouped(builder, first, [*batch, *rows, parts.summed]),
            _grouped(builder, second, [*batch, parts.summed, parts.columns]),
        )
    )
    made = (*parts.batch, *parts.rows, *parts.columns)
    extents = [(first if label in first.labels else second).extent(label) for label in made]
    whole = _reshaped(builder, product, extents)
    return _permuted(builder, _Operand(whole, made), result).value


@dataclass(frozen=True, slots=True)
class _Parts:
    """The labels of a product of matrices: of the batch, and of rows, sums and columns."""

    batch: Labels
    rows: Labels
    summed: Labels
    columns: Labels


def _parts(first: _Operand, second: _Operand, result: Labels) -> _Parts:
    """Return the labels that the operands share or not; those of neither's sums are left out."""
    kept = {*result}
    shared = [label for label in first.labels if label in second.labels]
    return _Parts(
        tuple(label for label in result if label in shared),
        tuple(label for label in first.labels if label not in shared and label in kept),
        tuple(label for label in shared if label not in kept),
        tuple(label for label in second.labels if label not in shared and label in kept),
    )


def _in_order(one: _Operand, other: _Operand, result: Labels) -> tuple[_Operand, _Operand] | None:
    """Return the operands in the order of a product; None if no product is faster.

    A weight is the second factor, and an open extent that is not of the batch is one of rows.
    """
    pairs = [(one, other), (other, one)]
    if isinstance(one.value, GenericConst) and not isinstance(other.value, GenericConst):
        pairs.reverse()
    for first, second in pairs:
        parts = _parts(first, second, result)
        same = (*parts.batch, *parts.summed)
        fixed = [second.extent(label) for label in (*parts.summed, *parts.columns)]
        fixed += [first.extent(label) for label in (parts.rows if parts.batch else ())]
        if (
            {*parts.batch, *parts.rows, *parts.columns} == {*result}
            and all(are_equal(first.extent(label), second.extent(label)) for label in same)
            and not any(map(is_open, fixed))
            and parts.summed
            and _extent(first, parts.rows) >= _LEAST_SIDE
            and _extent(second, parts.columns) >= _LEAST_SIDE
        ):
            return first, second
    return None


def _extent(operand: _Operand, labels: Labels) -> int:
    """Return the product of the extents that are known."""
    extents = [operand.extent(label) for label in labels]
    return math.prod(int(extent) for extent in extents if not is_open(extent))


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels] | None:
    """Return the labels of each operand and of the result; None if the equation has other operands.

    The axes of an ellipsis are numbered from the last one on.
    """
    sources, arrow, result = equation.replace(" ", "").partition("->")
    terms = sources.split(",")
    if len(terms) != len(ranks):
        return None
    hidden = [
        rank - len(term.replace(_ELLIPSIS, "")) for term, rank in zip(terms, ranks, strict=True)
    ]
    if any(
        count < 0 or (count > 0 and _ELLIPSIS not in term)
        for term, count in zip(terms, hidden, strict=True)
    ):
        return None
    if not arrow:  # all labels that occur once, in their order
        seen = Counter(sources.replace(_ELLIPSIS, "").replace(",", ""))
        once = sorted(label for label, count in seen.items() if count == 1)
        result = (_ELLIPSIS if _ELLIPSIS in sources else "") + "".join(once)
    operands = [_expanded(term, count) for term, count in zip(terms, hidden, strict=True)]
    return operands, _expanded(result, max(hidden))


def _expanded(term: str, hidden: int) -> Labels:
    before, dots, after = term.partition(_ELLIPSIS)
    middle = [f"{_ELLIPSIS}{place}" for place in reversed(range(hidden))] if dots else []
    return (*before, *middle, *after)


def _summed(builder: relax.BlockBuilder, operand: _Operand, kept: set[str]) -> _Operand:
    """Return the operand's sums over the labels that nothing else has."""
    axes = [axis for axis, label in enumerate(operand.labels) if label not in kept]
    if not axes:
        return operand
    labels = tuple(label for label in operand.labels if label in kept)
    return _Operand(builder.emit(relax.op.sum(operand.value, axes)), labels)


def _grouped(
    builder: relax.BlockBuilder, operand: _Operand, groups: Sequence[Labels]
) -> relax.Expr:
    """Return the operand with these groups of labels as axes."""
    order = tuple(label for group in groups for label in group)
    moved = _permuted(builder, operand, order)
    extents = []
    for part in groups:
        extent: Any = 1
        for label in part:
            extent = operand.extent(label) * extent
        extents.append(extent)
    return _reshaped(builder, moved.value, extents)


def _permuted(builder: relax.BlockBuilder, operand: _Operand, order: Labels) -> _Operand:
    if order == operand.labels:
        return operand
    axes = [operand.labels.index(label) for label in order]
    return _Operand(builder.emit(relax.op.permute_dims(operand.value, axes)), order)


def _reshaped(builder: relax.BlockBuilder, value: relax.Expr, extents: Sequence[Any]) -> relax.Expr:
    if len(value.ty.shape) == len(extents) and all(map(are_equal, value.ty.shape, extents)):
        return value
    return builder.emit(relax.op.reshape(value, list(extents)))


CONVERTERS = {"Einsum": Einsum}
