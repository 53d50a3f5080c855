"""Fuse operators into kernels by TVM's pass, also where it mixes up tuples.

`FuseOps` replaces each tuple that a kernel reads by those of its fields that the kernel reads. It
goes through the tuples in the order of a hash table of addresses, and does not update their
positions among the operands (apache/tvm, src/relax/transform/fuse_ops.cc,
FunctionCreator::CreateFunction). Unless the order happens to be from the last position to the
first, it replaces another operand, and FuseTIR ends in an internal error. Two tuples were out of
order in one of a hundred compilations, sixteen in each.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from tvm.relax.utils import copy_with_new_vars

from farm.compiler.ir.relax_rewriter import Rewriter, Rule, rewrite_module

# Operators in a kernel. TVM inlines hundreds, such as the joined steps of a loop, in the square of
# their number.
_MOST_FUSED = 64
_MOST_ATTEMPTS = 16
_FIELD = "farm.field_of_tuple"


def fuse_operators(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module whose operators are in functions, one for each kernel.

    Tuples that were mixed up are put in another order by new variables, which have other addresses.
    If that does not help, their fields are not fused with what reads them.
    """
    for _ in range(_MOST_ATTEMPTS):
        fused = _fused(module)
        if not _has_mixed_up_tuples(fused):
            return fused
        module = _with_new_variables(module)
    return rewrite_module(_fused(rewrite_module(module, _FieldHider)), _FieldRevealer)


def _fused(module: tvm.IRModule) -> tvm.IRModule:
    with tvm.transform.PassContext(config={"relax.FuseOps.max_depth": _MOST_FUSED}):
        return relax.transform.FuseOps()(module)


def _has_mixed_up_tuples(fused: tvm.IRModule) -> bool:
    """Return whether a function for a kernel takes a whole tuple.

    Kernels take tensors only: a tuple is left where another operand was replaced instead.
    """
    return any(
        isinstance(parameter.ty, relax.TupleType)
        for _, function in fused.functions_items()
        if isinstance(function, relax.Function) and "Primitive" in (function.attrs or {})
        for parameter in function.params
    )


def _with_new_variables(module: tvm.IRModule) -> tvm.IRModule:
    copied = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            copied.update_func(name, copy_with_new_vars(function))
    return copied


@mutator
class _FieldHider(Rewriter):
    """Replaces each field of a tuple by a call that is not fused."""

    def rules(self) -> Mapping[str, Rule]:
        return {}

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = self.visit_expr_post_order(item)
        index = tirx.const(item.index, "int64")
        return relax.op.call_pure_packed(_FIELD, item.tuple_value, index, ty_args=[item.ty])


@mutator
class _FieldRevealer(Rewriter):
    """Replaces the calls of `_FieldHider` by the fields."""

    def rules(self) -> Mapping[str, Rule]:
        return {"relax.call_pure_packed": self._field}

    def _field(self, call: Call) -> relax.Expr | None:
        name, *arguments = call.args
        if getattr(name, "global_symbol", "") != _FIELD:
            return None
        given, index = arguments
        return relax.TupleGetItem(given, int(index))
