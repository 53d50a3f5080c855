"""Compute tensors without elements, and what is computed from them, when a model is compiled.

TVM makes no code for a kernel of a tensor without elements. Exporters leave such tensors where a
window, an offset or a cache happens to be empty.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.ir.relax_rewriter import op_name

# What reductions and products of no elements give, as in numpy; ONNX leaves a mean undefined.
_OF_NOTHING = {
    "relax.sum": 0.0,
    "relax.prod": 1.0,
    "relax.mean": math.nan,
    "relax.matmul": 0.0,
}


@mutator
class EmptyTensorRewriter(PyExprMutator):  # type: ignore[misc]
    """Replaces calls without elements by allocations, and calls that read them by what remains.

    An allocation, because TVM's runtime cannot load every constant without elements.
    """

    def visit_call_(self, call: Call) -> relax.Expr:
        """Return the replacement of a call, or the call itself."""
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.split":
            return self._pieces(call)
        if (shape := _static_shape(call)) is None:
            return call
        if 0 in shape:
            return _filled(shape, 0.0, call)
        if name == "relax.concat":
            fields = list(self._tuple(call.args[0]))
            kept = [field for field in fields if not _is_empty(field)]
            if len(kept) == len(fields):
                return call
            return kept[0] if len(kept) == 1 else relax.op.concat(kept, call.attrs.axis)
        if not any(_is_empty(argument) for argument in call.args):
            return call
        if name == "relax.nn.pad" and str(call.attrs.pad_mode) == "constant":
            return _filled(shape, float(call.attrs.pad_value), call)
        value = _OF_NOTHING.get(name)
        if value is None or (math.isnan(value) and not str(call.ty.dtype).startswith("float")):
            return call
        return _filled(shape, value, call)

    def _pieces(self, call: Call) -> relax.Expr:
        """Return a split with empty pieces as slices."""
        shapes = [_static_shape(field) for field in call.ty.fields]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or not any(0 in shape for shape in known):
            return call
        data, axis = call.args[0], int(call.attrs.axis)
        pieces, begin = [], 0
        for shape in known:
            end = begin + shape[axis]
            pieces.append(
                _filled(shape, 0.0, data)
                if 0 in shape
                else self.builder_.emit(relax.op.strided_slice(data, [axis], [begin], [end]))
            )
            begin = end
        return relax.Tuple(pieces)

    def _tuple(self, expression: relax.Expr) -> list[relax.Expr]:
        while isinstance(expression, relax.Var):
            bound = self.lookup_binding(expression)
            if bound is None:
                break
            expression = bound
        if isinstance(expression, relax.Tuple):
            return list(expression.fields)
        count = len(expression.ty.fields)
        return [relax.TupleGetItem(expression, index) for index in range(count)]


def _static_shape(expression: relax.Expr | tvm.ir.Type) -> list[int] | None:
    """Return the extents of a tensor or of its type; None for others, and for open ones."""
    type_ = getattr(expression, "ty", expression)
    extents = getattr(getattr(type_, "shape", None), "values", None)
    if extents is None or not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        return None
    return [int(extent) for extent in extents]


def _is_empty(expression: relax.Expr) -> bool:
    return 0 in (_static_shape(expression) or [])


def _filled(shape: list[int], value: float, like: relax.Expr) -> relax.Expr:
    """Return a tensor of the element type of another, all of one value."""
    dtype = str(like.ty.dtype)
    scalar = relax.const(value, dtype)
    if 0 in shape:
        return relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, 0)
    return relax.op.broadcast_to(scalar, shape)
