"""Take the pieces of a split into many by slices.

A variable that holds all pieces has a type with the shape of each, and TVM's visitors search that
type wherever a piece is read: they take time in the square of the number of pieces. A kernel that
splits writes all pieces, too, where a slice is a part of the kernel that reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name, rewrite_module

MOST_PIECES = 32  # the most of a split that stays


def take_pieces_by_slices(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose splits into many pieces of known extents are slices."""
    bindings = [
        binding
        for _, function in module.functions_items()
        if isinstance(function, relax.Function)
        for block in function.body.blocks
        for binding in block.bindings
    ]
    if not any(_is_wide_split(binding.value) for binding in bindings):
        return module
    module = rewrite_module(module, _WideSplitRewriter)
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(module)


def slices_of_split(builder: relax.BlockBuilder, call: Call) -> list[relax.Expr] | None:
    """Emit a slice for each piece of a split; return None if the extent of a piece is open."""
    data, axis = call.args[0], int(call.attrs.axis)
    ends = [0]
    for piece in call.ty.fields:
        extent = piece.shape.values[axis]
        if not isinstance(extent, tirx.IntImm):
            return None
        ends.append(ends[-1] + int(extent))
    return [
        builder.emit(relax.op.strided_slice(data, [axis], [begin], [end]))
        for begin, end in itertools.pairwise(ends)
    ]


def _is_wide_split(expression: relax.Expr) -> bool:
    return (
        op_name(expression) == "relax.split"
        and isinstance(expression.ty, relax.TupleType)
        and len(expression.ty.fields) > MOST_PIECES
    )


@mutator
class _WideSplitRewriter(Rewriter):
    def rules(self) -> Mapping[str, Rule]:
        return {"relax.split": self._slices}

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        # The field itself, so that nothing reads the tuple
        item = self.visit_expr_post_order(item)
        pieces = self.bound(item.tuple_value)
        return pieces.fields[item.index] if isinstance(pieces, relax.Tuple) else item

    def _slices(self, call: Call) -> relax.Expr | None:
        slices = slices_of_split(self.builder_, call) if _is_wide_split(call) else None
        return None if slices is None else relax.Tuple(slices)
