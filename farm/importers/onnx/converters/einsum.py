"""Convert Einsum of two operands to a product of matrices, which has fast loops.

The labels of an equation (https://onnx.ai/onnx/operators/onnx__Einsum.html) are those of the batch
(in both operands and in the result), summed labels (in both operands only), and those of one
operand and the result. TVM's definition, a loop for each label, is for all other equations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs

_ELLIPSIS = "..."
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
    """Return an Einsum as a product of matrices; None if it is none."""
    ranks = [int(one.ty.ndim) for one in inputs]
    found = _labels(equation, ranks)
    if found is None or len(inputs) != 2:
        return None
    (left, right), result = found
    if any(len(set(one)) < len(one) for one in (left, right, result)):
        return None
    if not ({*left} & {*right}) - {*result} or not {*result} <= {*left, *right}:
        return None
    first, second = (
        _summed(builder, _Operand(value, own), {*other, *result})
        for value, own, other in zip(inputs, (left, right), (right, left), strict=True)
    )
    if isinstance(first.value, GenericConst) and not isinstance(second.value, GenericConst):
        first, second = second, first  # weights are the second factor of a product
    shared = [label for label in first.labels if label in second.labels]
    if not all(_equal(first.extent(label), second.extent(label)) for label in shared):
        return None
    batch = tuple(label for label in result if label in shared)
    summed = tuple(label for label in shared if label not in result)
    rows, columns = (
        tuple(label for label in one.labels if label not in shared) for one in (first, second)
    )
    # Without a batch, the first operand's rows may be several axes, of which one may be open.
    groups = [*batch, *rows] if not batch else [*batch, rows]
    product = builder.emit(
        relax.op.matmul(
            _grouped(builder, first, [*groups, summed]),
            _grouped(builder, second, [*batch, summed, columns]),
        )
    )
    made = (*batch, *rows, *columns)
    extents = [(first if label in first.labels else second).extent(label) for label in made]
    whole = _reshaped(builder, product, extents)
    return _permuted(builder, _Operand(whole, made), result).value


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
    builder: relax.BlockBuilder, operand: _Operand, groups: Sequence[str | Labels]
) -> relax.Expr:
    """Return the operand with these groups of labels as axes."""
    parts = [(group,) if isinstance(group, str) else group for group in groups]
    order = tuple(label for part in parts for label in part)
    moved = _permuted(builder, operand, order)
    extents = []
    for part in parts:
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
    if len(value.ty.shape) == len(extents) and all(map(_equal, value.ty.shape, extents)):
        return value
    return builder.emit(relax.op.reshape(value, list(extents)))


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm.sym.Analyzer().can_prove_equal(one, other))


CONVERTERS = {"Einsum": Einsum}
