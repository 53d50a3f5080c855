"""Replace operators by farm's kernels.

These are the operators that TVM lowers incorrectly, or to functions that boards lack.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.kernels import arg_reduction, elementwise, partial_scatter, sort

_EMIT = {**sort.EMIT, **partial_scatter.EMIT}
_EMIT_OF_ANY_SHAPE = {**arg_reduction.EMIT, **elementwise.EMIT}


def replace_operators_by_farm_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with these operators replaced by kernels, if their shapes are fixed."""
    rewriter = _Rewriter(module)
    main = rewriter.visit_expr(module["main"])
    result = rewriter.builder_.get()
    result.update_func(result.get_global_var("main"), main)
    return result


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """Mutator that emits a kernel for each operator of `_EMIT`."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        emit = _EMIT_OF_ANY_SHAPE.get(name)
        if emit is None and name in _EMIT and _is_fixed(call.args[0]):
            emit = _EMIT[name]
        made = None if emit is None else emit(self.builder_, call)
        return call if made is None else made


def _is_fixed(data: relax.Expr) -> bool:
    """Return whether a tensor has at least one axis and only constant extents."""
    shape = getattr(data.ty, "shape", None)
    return (
        isinstance(shape, relax.ShapeExpr)
        and len(shape) > 0
        and all(isinstance(extent, tvm.tirx.IntImm) for extent in shape)
    )
