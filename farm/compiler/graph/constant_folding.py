"""Fold constant expressions, in numpy, and the shape arithmetic that exporters write as operators.

TVM's own pass compiles every constant expression, which takes 15 s for MobileNetV2.

Exporters compute shapes by operators (Shape, Gather, Add, Div, Slice) on small tensors of integers.
If these were left to run, every tensor whose shape depends on them would have no static shape, and
so no code. They are computed here if all of their operands are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name, rewrite_module

Array = np.ndarray[Any, Any]
_LARGE = (
    1 << 20
)  # bytes; larger tensors are transposed in strips, as numpy alone is several times slower
_STRIP = 64  # elements: a few cache lines
_MOST_EXTENTS = 64  # elements of a tensor that may be a shape
_BEYOND = (
    1 << 31
)  # such numbers stand for "to the end" and are no extents: nothing is computed with them


def _reshaped(values: list[Array], call: Call) -> Array:
    return values[0].reshape(tuple(int(extent) for extent in call.ty.shape))


def _reduced(reduction: Callable[..., Array]) -> Callable[[list[Array], Call], Array]:
    def reduced(values: list[Array], call: Call) -> Array:
        axes = call.attrs.axis
        return reduction(
            *_in_float64(values),
            None if axes is None else tuple(map(int, axes)),
            keepdims=bool(call.attrs.keepdims),
        )

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
    (value,) = values
    dtype = np.dtype(str(call.ty.dtype))
    if value.dtype.kind == "f" and dtype.kind in "iu":
        limits, wide = np.iinfo(dtype), value.astype(np.float64)
        # max + 1 is a power of two, which float64 has; it does not have each max
        if not ((wide >= float(limits.min)) & (wide < float(limits.max // 2 + 1) * 2)).all():
            raise TypeError("what becomes of NaN and of what is out of range is up to each machine")
    return value.astype(dtype)


def _sliced(values: list[Array], call: Call) -> Array:
    axes, begins, ends, *strides = (
        [int(number) for number in argument.fields] for argument in call.args[1:]
    )
    places = [slice(None)] * values[0].ndim
    for number, axis in enumerate(axes):
        stride = strides[0][number] if strides else 1
        if stride < 0:
            raise ValueError("its bounds are not those of numpy")
        places[axis] = slice(begins[number], ends[number], stride)
    return np.asarray(values[0][tuple(places)])


def _normalized(values: list[Array], call: Call) -> Array:
    data, scale, shift = _in_float64(values)
    axes = tuple(int(axis) for axis in call.attrs.axes)
    centered = data - data.mean(axes, keepdims=True)
    result = centered / np.sqrt((centered**2).mean(axes, keepdims=True) + call.attrs.epsilon)
    if call.attrs.scale:
        result = result * scale
    return np.asarray(result + shift if call.attrs.center else result)


def _matrix_product(values: list[Array], _: Call) -> Array:
    left, right = _in_float64(values)
    return np.asarray(left @ right)


def _in_float64(values: list[Array]) -> list[Array]:
    if any(value.dtype.kind != "f" for value in values):
        raise TypeError("not floating point")
    return [value.astype(np.float64) for value in values]


def _larger(left: Array, right: Array) -> Array:
    """Return the maximum of kernels: NaN if an operand is, the right one of two zeros."""
    larger: Array = np.where((left > right) | np.isnan(left), left, right)
    return larger


def _smaller(left: Array, right: Array) -> Array:
    smaller: Array = np.where((left < right) | np.isnan(left), left, right)
    return smaller


# On floating point, kernels and numpy agree to the bit. Integers are left to TVM: its division
# truncates, numpy's does not.
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
    "relax.mean": _reduced(
        np.mean
    ),  # of weights that are standardized, as in normalizer-free networks
    "relax.variance": _reduced(np.var),
    "relax.sum": _reduced(np.sum),  # of those that are divided by their norm
    "relax.nn.layer_norm": _normalized,  # and products: of the queries of a decoder
    "relax.matmul": _matrix_product,
    "relax.strided_slice": _sliced,
    "relax.isnan": lambda values, _: np.isnan(values[0]),
    "relax.where": lambda values, _: np.where(*values),
}


def _computed(name: str, values: list[Array], call: Call) -> Array:
    with np.errstate(all="ignore"):
        if name in _CONVERSIONS:
            return _CONVERSIONS[name](values, call)
        if any(value.dtype.kind != "f" for value in values):
            raise TypeError("not floating point")
        return _ARITHMETIC[name](*values)


def _take(_: Call, data: Array, index: Array) -> Array:
    if data.ndim != 1 or (data.size <= index).any() or (index < -data.size).any():
        raise ValueError("not an element of a shape")
    return np.asarray(data[index])


def _scattered(call: Call, data: Array, index: Array, updates: Array) -> Array:
    if data.ndim != 1 or str(call.attrs.reduction) != "update":
        raise ValueError("not one element of a shape")
    result = np.array(data)
    result[index] = updates
    return result


def _truncated_quotient(_: Call, left: Array, right: Array) -> Array:
    """Return the quotient rounded towards zero, as TVM's division does."""
    if (right == 0).any():
        raise ValueError("division by zero")
    return np.asarray(np.sign(left) * np.sign(right) * (np.abs(left) // np.abs(right)))


_SHAPE_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "relax.add": lambda _, left, right: left + right,
    "relax.subtract": lambda _, left, right: left - right,
    "relax.multiply": lambda _, left, right: left * right,
    "relax.divide": _truncated_quotient,
    "relax.less": lambda _, left, right: left < right,
    "relax.equal": lambda _, left, right: left == right,
    "relax.where": lambda _, condition, left, right: np.asarray(np.where(condition, left, right)),
    "relax.take": _take,
    "relax.scatter_elements": _scattered,
}
_WITH_LIMITS = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
_SHAPE_OPERATORS = {
    *_SHAPE_ARITHMETIC,
    "relax.shape_of",
    "relax.shape_to_tensor",
    "relax.tensor_to_shape",
    "relax.dynamic_strided_slice",
}


def fold_shape_operator(
    call: Call, value: Callable[[relax.Expr], Array | None]
) -> relax.Expr | None:
    """Return the result of an operator on shapes; None if an operand is unknown.

    `value` returns the value of a constant.
    """
    name = op_name(call)
    if name == "relax.shape_of":
        shape = getattr(call.args[0].ty, "shape", None)
        return shape if isinstance(shape, relax.ShapeExpr) and _known(shape.values) else None
    if name == "relax.shape_to_tensor":
        values = getattr(call.args[0].ty, "values", None)
        return (
            relax.const(np.array([int(extent) for extent in values], "int64"), "int64")
            if values is not None and _known(values)
            else None
        )
    operands = [value(argument) for argument in call.args[name == "relax.dynamic_strided_slice" :]]
    known = [operand for operand in operands if operand is not None and _is_of_shapes(operand)]
    if len(known) < len(operands):
        return None
    if name == "relax.tensor_to_shape":
        return relax.ShapeExpr([int(extent) for extent in known[0]])
    if name == "relax.dynamic_strided_slice":
        begin, end, strides = ([int(number) for number in operand] for operand in known)
        return relax.op.strided_slice(call.args[0], list(range(len(begin))), begin, end, strides)
    if name in _WITH_LIMITS and any((abs(operand) >= _BEYOND).any() for operand in known):
        return None
    result = np.asarray(_SHAPE_ARITHMETIC[name](call, *known), order="C")
    return relax.const(result, result.dtype.name)


def _is_of_shapes(value: Array) -> bool:
    """Return whether a value may be extents, axes, or comparisons of them.

    TVM computes other integers.
    """
    return value.size <= _MOST_EXTENTS and value.dtype in (np.int64, np.bool_)


def _known(extents: Any) -> bool:
    return all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)


FOLDABLE = frozenset({*_SHAPE_OPERATORS, *_ARITHMETIC, *_CONVERSIONS})


def fold_call(call: Call, value: Callable[[relax.Expr], Array | None]) -> relax.Expr | None:
    """Return the value of a call of one of FOLDABLE on constants; None if it is not folded here.

    `value` returns the value of a constant.
    """
    name = op_name(call)
    try:
        if name in _SHAPE_OPERATORS and (known := fold_shape_operator(call, value)) is not None:
            return known
    except ValueError:  # no arithmetic of shapes
        pass
    if not (name in _ARITHMETIC or name in _CONVERSIONS) or not isinstance(
        call.ty, relax.TensorType
    ):
        return None
    operands = [
        value(argument)
        for argument in call.args
        if not isinstance(argument, relax.ShapeExpr | relax.Tuple)
    ]
    values = [operand for operand in operands if operand is not None]
    if not values or len(values) < len(operands):
        return None
    try:
        result = _computed(name, values, call)
    except (TypeError, ValueError):  # a symbolic shape, or arithmetic that is left to TVM
        return None
    dtype = str(call.ty.dtype)
    return relax.const(
        np.asarray(result, dtype, order="C"), dtype
    )  # without its dtype, TVM narrows 64 bits to 32


@mutator
class _Folder(Rewriter):
    """Replaces calls on constants by their value."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return dict.fromkeys(FOLDABLE, self._fold)

    def _fold(self, call: Call) -> relax.Expr | None:
        return fold_call(call, self.value)


@tvm.transform.module_pass(opt_level=0, name="farm.FoldConstants")
class ConstantFolder:
    """Folds element-wise arithmetic and changes of shape and layout on constants."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module after this pass."""
        return relax.transform.CanonicalizeBindings()(rewrite_module(module, _Folder))
