"""Join the parts of nested concatenations at once.

Recommenders join the embeddings of their inputs, drop an axis of one element, and join the result
with their numbers. As one kernel, the outer concatenation would choose among all parts for each
element by the remainder of its index, ten times as slow as a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.concats.wide_concats import MOST_JOINED
from farm.compiler.ir.dynamic_extents import Extent, shapes_are_equal
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, count_readers, op_name, shape_of

_RESHAPES = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")


@mutator
class NestedConcatRewriter(Rewriter):
    """Replaces concatenations that only another one reads by their parts.

    Between the two may be a change of shape that adds or drops axes of one element.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._readers = count_readers(module["main"])

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.concat": self._joined}

    def _joined(self, call: Call) -> relax.Expr | None:
        parts = self.bound(call.args[0])
        if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
            return None
        axis = int(call.attrs.axis) % len(call.ty.shape)
        joined: list[relax.Expr] = []
        for part in parts.fields:
            joined += self._parts_of(part, axis) or [part]
        if not len(parts.fields) < len(joined) <= MOST_JOINED:
            return None
        return relax.op.concat(joined, axis)

    def _parts_of(self, expression: relax.Expr, axis: int) -> list[relax.Expr] | None:
        """Return the parts of a concatenation along an axis, each in the shape that is read."""
        inner = self._before_reshapes(expression)
        call = self.called(inner, "relax.concat")
        tensors = None if call is None else self.bound(call.args[0])
        if call is None or not isinstance(tensors, relax.Tuple) or call.attrs.axis is None:
            return None
        outer_shape, inner_shape = shape_of(expression), shape_of(inner)
        extents = [shape_of(tensor) for tensor in tensors.fields]
        if self._readers[inner] != 1 or outer_shape is None or inner_shape is None:
            return None
        inner_axis = int(call.attrs.axis) % len(inner_shape)
        if not _is_same_axis(outer_shape, axis, inner_shape, inner_axis):
            return None
        if inner is expression:
            return list(tensors.fields)
        shapes = [
            [*outer_shape[:axis], extent[inner_axis], *outer_shape[axis + 1 :]]
            for extent in extents
            if extent is not None
        ]
        return [
            self.builder_.emit(relax.op.reshape(tensor, shape))
            for tensor, shape in zip(tensors.fields, shapes, strict=True)
        ]

    def _before_reshapes(self, expression: relax.Expr) -> relax.Expr:
        """Return the tensor whose changed shape a tensor is, if nothing else reads it."""
        call = self.producer(expression)
        while call is not None and op_name(call) in _RESHAPES and self._readers[expression] == 1:
            expression = call.args[0]
            call = self.producer(expression)
        return expression


def _is_same_axis(
    outer_shape: list[Extent], outer_axis: int, inner_shape: list[Extent], inner_axis: int
) -> bool:
    """Return whether two shapes are equal but for axes of one element, and these axes are one."""
    before = len(_without_ones(outer_shape[:outer_axis]))
    return (
        shapes_are_equal(_without_ones(outer_shape), _without_ones(inner_shape))
        and before == len(_without_ones(inner_shape[:inner_axis]))
        and len(_without_ones([outer_shape[outer_axis], inner_shape[inner_axis]])) == 2
    )


def _without_ones(shape: list[Extent]) -> list[Extent]:
    return [extent for extent in shape if not (isinstance(extent, int) and extent == 1)]
