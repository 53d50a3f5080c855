"""Compute models of float16 or bfloat16 in float32 on CPUs.

Few CPUs multiply such numbers: the others convert each operand of each operation. Tensors between
operators are float32 here, and are rounded only where the model has a cast to float16, as in ONNX
Runtime. They are not rounded to bfloat16: where a CPU has no instruction for it, LLVM calls a
function that a library may lack. A constant is followed by a cast, so that weights stay narrow in
the file, see `fp16_weights` and `bf16_weights`. The model's inputs and outputs keep their types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.graph.precision.bf16_weights import mark_bf16_weights
from farm.compiler.graph.precision.fp16_weights import HALF, SINGLE
from farm.compiler.ir.relax_rewriter import op_name

_NARROW = (HALF, "bfloat16")
# These operators call code that was made for certain types.
_CALLS_OF_CODE = ("relax.call_tir", "relax.call_dps_packed", "relax.call_pure_packed")


def narrow_floats_as_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose `main` computes in float32 what it computed in float16 or bfloat16."""
    main = module["main"]
    if not _has_narrow(main):
        return module
    result = module.clone()
    result["main"] = _Widener(result).widened(main)
    result = relax.transform.CanonicalizeBindings()(relax.transform.Normalize()(result))
    return mark_bf16_weights(result)


def _has_narrow(function: relax.Function) -> bool:
    found: list[Any] = []

    def look(node: Any) -> None:
        if isinstance(node, relax.Var | GenericConst) and _is_narrow(node.ty):
            found.append(node)

    relax.analysis.post_order_visit(function, look)
    return bool(found)


@mutator
class _Widener(PyExprMutator):  # type: ignore[misc]
    """Rewrites narrow tensors of a function as float32 ones."""

    def widened(self, function: relax.Function) -> relax.Function:
        """Return a function of the same inputs and outputs."""
        before = []
        for parameter in function.params:
            if _is_narrow(parameter.ty):
                wide = relax.DataflowVar(f"{parameter.name}_float32", _of_single(parameter.ty))
                before.append(relax.VarBinding(wide, relax.op.astype(parameter, SINGLE)))
                self.set_var_remap(parameter, wide)
        body = self.visit_expr(function.body)
        after: list[relax.VarBinding] = []

        def bind(value: relax.Expr, kind: Any) -> relax.Var:
            after.append(relax.VarBinding(relax.Var(f"output{len(after)}", kind), value))
            return after[-1].var

        result = _cast(body.body, function.ret_ty, bind)
        bindings = [list(block.bindings) for block in body.blocks]
        pure = [isinstance(block, relax.DataflowBlock) for block in body.blocks]
        if not pure or not pure[0]:
            bindings.insert(0, [])
            pure.insert(0, True)
        bindings[0] = before + bindings[0]
        if not pure[-1]:
            bindings.append([])
            pure.append(True)
        bindings[-1] += after
        blocks = [
            (relax.DataflowBlock if dataflow else relax.BindingBlock)(each)
            for dataflow, each in zip(pure, bindings, strict=True)
            if each
        ]
        return relax.Function(
            function.params,
            relax.SeqExpr(blocks, result),
            function.ret_ty,
            function.is_pure,
            function.attrs,
        )

    def visit_generic_const_(self, constant: GenericConst) -> relax.Expr:
        """Return a constant, cast if it is narrow."""
        return self._single(constant) if _is_narrow(constant.ty) else constant

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Match the shape of a tensor that may be of another type now."""
        value = self.visit_expr(binding.value)
        kind = _of_single(binding.ty) if _is_narrow(binding.ty) else binding.ty
        self.set_var_remap(binding.var, self.builder_.match_cast(value, kind))

    def visit_call_(self, call: Call) -> relax.Expr:
        """Return a call whose operands and result are of float32."""
        if op_name(call) in _CALLS_OF_CODE or not isinstance(call.op, tvm.ir.Op):
            return self._call_of_code(call)
        given = [self.visit_expr(argument) for argument in call.args]
        if op_name(call) == "relax.astype" and _is_narrow(call.ty):
            rounds = str(call.ty.dtype) == HALF and not _is_narrow(call.args[0].ty)
            made = self.builder_.emit(relax.op.astype(given[0], HALF)) if rounds else given[0]
            return self._single(made)
        given = [_wide_number(one) for one in given]
        return relax.Call(call.op, given, _wide_attributes(call.attrs), call.ty_args)

    def _call_of_code(self, call: Call) -> relax.Expr:
        """Return a call of a kernel or a function, which keeps the types that it was made for."""
        emit = self.builder_.emit
        given = [
            _cast(self.visit_expr(argument), argument.ty, lambda value, _: emit(value))
            if isinstance(argument.ty, relax.TensorType | relax.TupleType)
            else argument
            for argument in call.args
        ]
        made = emit(relax.Call(call.op, given, call.attrs, call.ty_args))
        return _cast(made, _all_single(call.ty), lambda value, _: emit(value))

    def _single(self, value: relax.Expr) -> relax.Expr:
        same = str(value.ty.dtype) == SINGLE
        return value if same else self.builder_.emit(relax.op.astype(value, SINGLE))


def _cast(value: relax.Expr, kind: Any, bind: Callable[[relax.Expr, Any], relax.Var]) -> Any:
    """Return a value whose tensors are of the types of `kind`, with bindings for what this takes.

    Of tuples, only fields of other types are cast.
    """
    if isinstance(kind, relax.TensorType):
        same = str(value.ty.dtype) == str(kind.dtype)
        return value if same else bind(relax.op.astype(value, str(kind.dtype)), kind)
    if not isinstance(kind, relax.TupleType) or _types(value.ty) == _types(kind):
        return value
    fields = (
        list(value.fields)
        if isinstance(value, relax.Tuple)
        else [
            bind(relax.TupleGetItem(value, place), of) for place, of in enumerate(value.ty.fields)
        ]
    )
    return relax.Tuple([_cast(one, of, bind) for one, of in zip(fields, kind.fields, strict=True)])


def _types(kind: Any) -> list[str]:
    """Return the types of the numbers of all tensors in a type."""
    if isinstance(kind, relax.TupleType):
        return [one for field in kind.fields for one in _types(field)]
    return [str(kind.dtype)] if isinstance(kind, relax.TensorType) else []


def _is_narrow(kind: Any) -> bool:
    return isinstance(kind, relax.TensorType) and str(kind.dtype) in _NARROW


def _of_single(kind: relax.TensorType) -> relax.TensorType:
    return (
        relax.TensorType(kind.shape, SINGLE)
        if kind.shape is not None
        else relax.TensorType(dtype=SINGLE, ndim=kind.ndim)
    )


def _all_single(kind: Any) -> Any:
    """Return a type with float32 for what is narrow."""
    if isinstance(kind, relax.TupleType):
        return relax.TupleType([_all_single(field) for field in kind.fields])
    return _of_single(kind) if _is_narrow(kind) else kind


def _wide_number(value: relax.Expr) -> relax.Expr:
    """Return a scalar of the code, such as a bound, as float32 if it is narrow."""
    if isinstance(value, tirx.FloatImm) and str(value.ty.dtype) in _NARROW:
        return tirx.FloatImm(SINGLE, value.value)
    return value


def _wide_attributes(attributes: Any) -> Any:
    """Return an operator's attributes with float32 as the type of a result that is narrow."""
    if attributes is None:
        return None
    about = type(attributes).__tvm_ffi_type_info__
    values = {field.name: getattr(attributes, field.name) for field in about.fields}
    if not any(str(value) in _NARROW for value in values.values()):
        return attributes
    wide = {name: SINGLE if str(value) in _NARROW else value for name, value in values.items()}
    return tvm.ir.make_node(about.type_key, **wide)
