"""Compute tensors without elements, and what is computed from them, when a model is compiled.

TVM makes no code for a kernel of a tensor without elements. Exporters leave such tensors where a
window, an offset or a cache happens to be empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.concats.wide_splits import slices_of_split
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name

# What reductions and products of no elements give, as in numpy; ONNX leaves a mean undefined.
_OF_NOTHING = {
    "relax.sum": 0.0,
    "relax.prod": 1.0,
    "relax.mean": math.nan,
    "relax.matmul": 0.0,
}


@mutator
class EmptyTensorRewriter(Rewriter):
    """Replaces calls without elements by allocations, and calls that read them by what remains.

    An allocation, because TVM's runtime cannot load every constant without elements.
    """

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            "relax.split": self._slices,
            "relax.concat": self._without_empty_parts,
            "relax.nn.pad": self._padding_alone,
            **dict.fromkeys(_OF_NOTHING, self._of_nothing),
        }

    def visit_call_(self, call: Call) -> relax.Expr:
        """Return the replacement of a call, or the call itself."""
        result = Rewriter.visit_call_(self, call)
        return _filled(call, 0.0) if _is_empty(call) else result

    def _slices(self, call: Call) -> relax.Expr | None:
        if not isinstance(call.ty, relax.TupleType):  # of one piece
            return None
        shapes = [_static_shape(field) for field in call.ty.fields]
        if None in shapes or not any(0 in (shape or ()) for shape in shapes):
            return None
        slices = slices_of_split(self.builder_, call) or []
        return relax.Tuple(
            [
                self.builder_.emit(_filled(piece, 0.0)) if _is_empty(piece) else piece
                for piece in slices
            ]
        )

    def _without_empty_parts(self, call: Call) -> relax.Expr | None:
        parts = self.bound(call.args[0])
        if not isinstance(parts, relax.Tuple):
            return None
        kept = [part for part in parts.fields if not _is_empty(part)]
        if len(kept) in (0, len(parts.fields)):
            return None
        return kept[0] if len(kept) == 1 else relax.op.concat(kept, call.attrs.axis)

    def _padding_alone(self, call: Call) -> relax.Expr | None:
        if not _is_empty(call.args[0]) or str(call.attrs.pad_mode) != "constant":
            return None
        return _filled(call, float(call.attrs.pad_value))

    def _of_nothing(self, call: Call) -> relax.Expr | None:
        value = _OF_NOTHING[op_name(call)]
        if not any(_is_empty(argument) for argument in call.args) or (
            math.isnan(value) and not str(call.ty.dtype).startswith("float")
        ):
            return None
        return _filled(call, value)


def _static_shape(expression: relax.Expr | tvm.ir.Type) -> list[int] | None:
    """Return the extents of a tensor or of its type; None for others, and for open ones."""
    type_ = getattr(expression, "ty", expression)
    extents = getattr(getattr(type_, "shape", None), "values", None)
    if extents is None or not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return None
    return [int(extent) for extent in extents]


def _is_empty(expression: relax.Expr) -> bool:
    return 0 in (_static_shape(expression) or [])


def _filled(like: relax.Expr, value: float) -> relax.Expr | None:
    """Return a tensor like another, all of one value; None if its shape is open."""
    if (shape := _static_shape(like)) is None:
        return None
    dtype = str(like.ty.dtype)
    if 0 in shape:
        return relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, 0)
    return relax.op.broadcast_to(relax.const(value, dtype), shape)
