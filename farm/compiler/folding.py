"""Compute what is constant, in numpy: TVM's own pass compiles every constant expression, which takes 15 s for MobileNetV2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler import shapes

Array = np.ndarray[Any, Any]
_LARGE = 1 << 20  # bytes: more than that is turned in strips of a few cache lines: numpy by itself is several times slower
_STRIP = 64  # elements


def _reshaped(values: list[Array], call: Call) -> Array:
    return values[0].reshape(tuple(int(extent) for extent in call.ty.shape))


def _reduced(reduction: Callable[..., Array]) -> Callable[[list[Array], Call], Array]:
    def reduced(values: list[Array], call: Call) -> Array:
        if values[0].dtype.kind != "f":
            raise TypeError("not floating point")
        axes = call.attrs.axis
        return reduction(values[0], None if axes is None else tuple(map(int, axes)), np.float64, keepdims=bool(call.attrs.keepdims))

    return reduced


def _permuted(values: list[Array], call: Call) -> Array:
    axes = call.attrs.axes
    turned = np.transpose(values[0], None if axes is None else [int(axis) for axis in axes])
    if turned.nbytes < _LARGE or turned.flags.c_contiguous:
        return turned
    result = np.empty_like(turned, order="C")
    for start in range(0, turned.shape[-1], _STRIP):
        result[..., start : start + _STRIP] = turned[..., start : start + _STRIP]
    return result


def _broadcast(values: list[Array], call: Call) -> Array:
    return np.broadcast_to(values[0], tuple(int(extent) for extent in call.ty.shape))


def _converted(values: list[Array], call: Call) -> Array:
    dtype = np.dtype(str(call.ty.dtype))
    if values[0].dtype.kind == "f" and dtype.kind != "f":
        raise TypeError("what becomes of NaN and of what is out of range is up to each machine")
    return values[0].astype(dtype)


def _larger(left: Array, right: Array) -> Array:
    """As TVM has it: the right one where one of them is NaN, and the right zero of two."""
    larger: Array = np.where(left > right, left, right)
    return larger


def _smaller(left: Array, right: Array) -> Array:
    smaller: Array = np.where(left < right, left, right)
    return smaller


# On floating point, TVM and numpy agree to the bit. Integers are left to TVM: its division truncates, numpy's does not.
_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
    "relax.rsqrt": lambda value: np.reciprocal(np.sqrt(value)),
    "relax.maximum": _larger,
    "relax.minimum": _smaller,
}
_CONVERSIONS: dict[str, Callable[[list[Array], Call], Array]] = {
    "relax.astype": _converted,
    "relax.reshape": _reshaped,
    "relax.expand_dims": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.flatten": _reshaped,
    "relax.permute_dims": _permuted,
    "relax.broadcast_to": _broadcast,
    "relax.mean": _reduced(np.mean),  # of weights that are standardized, as in normalizer-free networks
    "relax.variance": _reduced(np.var),
    "relax.sum": _reduced(np.sum),  # of those that are divided by their norm
    "relax.isnan": lambda values, _: np.isnan(values[0]),
    "relax.where": lambda values, _: np.where(*values),
}


def constant(expression: relax.Expr) -> Array | None:
    """The value of a constant tensor or scalar, else None. It is the constant's own memory: weights of hundreds of MB are read often."""
    if isinstance(expression, GenericConst):
        return view(expression.value)
    if isinstance(expression, tvm.tirx.FloatImm | tvm.tirx.IntImm):
        return np.asarray(expression.value, dtype=str(expression.ty.dtype))
    return None


def view(tensor: tvm.runtime.Tensor) -> Array:
    """A tensor as an array that is not to be written to; a copy where numpy lacks the type."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(tensor.numpy())


def _computed(name: str, values: list[Array], call: Call) -> Array:
    with np.errstate(all="ignore"):
        if name in _CONVERSIONS:
            return _CONVERSIONS[name](values, call)
        if any(value.dtype.kind != "f" for value in values):
            raise TypeError("not floating point")
        return _ARITHMETIC[name](*values)


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]
    """Replaces calls on constants by their value."""

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        try:
            if name in shapes.OPERATORS and (known := shapes.folded(call, self._value)) is not None:
                return known
        except ValueError:  # not the arithmetic of shapes
            pass
        if not (name in _ARITHMETIC or name in _CONVERSIONS) or not isinstance(call.ty, relax.TensorType):
            return call
        operands = [self._value(argument) for argument in call.args if not isinstance(argument, relax.ShapeExpr)]
        values = [value for value in operands if value is not None]
        if not values or len(values) < len(operands):
            return call
        try:
            result = _computed(name, values, call)
        except (TypeError, ValueError):  # a symbolic shape, or arithmetic that is left to TVM
            return call
        dtype = str(call.ty.dtype)
        return relax.const(np.asarray(result, dtype, order="C"), dtype)  # without its dtype, TVM narrows 64 bits to 32

    def _value(self, expression: relax.Expr) -> Array | None:
        if isinstance(expression, relax.Var):
            bound = self.lookup_binding(expression)
            return None if bound is None else constant(bound)
        return constant(expression)


@tvm.transform.module_pass(opt_level=0, name="farm.FoldConstants")
class FoldConstants:
    """Fold element-wise arithmetic and changes of shape and layout on constants."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return relax.transform.CanonicalizeBindings()(rewritten(module, _Folder))


Rewriters = Callable[[tvm.IRModule], PyExprMutator]  # what makes one for a module


def rewritten(module: tvm.IRModule, rewriter: Rewriters) -> tvm.IRModule:
    """A copy of a module with its Relax functions rewritten, and the kernels that this takes."""
    result = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator = rewriter(result)
            result.update_func(name, mutator.visit_expr(function))
            for variable, made in mutator.builder_.get().functions_items():
                if isinstance(made, tvm.tirx.PrimFunc):
                    result.update_func(variable, made)
    return result


def rewriting(name: str, rewriter: Rewriters) -> tvm.transform.Pass:
    """A pass of this name that rewrites the Relax functions of a module."""

    def transform(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return rewritten(module, rewriter)

    return tvm.transform.module_pass(transform, opt_level=0, name=name)
