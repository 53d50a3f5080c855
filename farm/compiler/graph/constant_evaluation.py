"""Evaluate operators on constants in numpy, right before operators become loops.

These are tables that exporters leave as operators: relative positions by a small network (Swin
Transformer V2), encodings by sines, masks. TVM's own pass compiles each of them, one after another:
6 s of 18 for a network of 12 such tables. It still evaluates what has no rule here.

Earlier passes look for some of these operators on floating point, so those are not folded before.
Integers are: indices that exporters compute are constants to the passes that rewrite scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.constant_folding import FOLDABLE, fold_call
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name

Array = np.ndarray[Any, Any]
Evaluation = Callable[[list[Array], Call], Array]
# Elements of a tensor made from its shape alone: larger ones would make the files larger.
_MOST_CREATED = 1024


def _of_floats(function: Callable[..., Array]) -> Evaluation:
    """Return the evaluation of a function of floating point, computed with 64 bits."""

    def evaluated(values: list[Array], _: Call) -> Array:
        if any(value.dtype not in (np.float32, np.float64) for value in values):
            raise TypeError("not floating point of 32 or 64 bits")
        return function(*(value.astype(np.float64) for value in values))

    return evaluated


def _of_integers(function: Callable[..., Array]) -> Evaluation:
    """Return the evaluation of a function of integers and truth values, which wraps as C's."""

    def evaluated(values: list[Array], _: Call) -> Array:
        if any(value.dtype.kind not in "iub" for value in values):
            raise TypeError("not integers")
        return function(*values)

    return evaluated


def _of_any(function: Callable[..., Array]) -> Evaluation:
    return lambda values, _: function(*values)


def _reduced(reduction: Callable[..., Array]) -> Evaluation:
    """Return the evaluation of a reduction of integers."""

    def reduced(values: list[Array], call: Call) -> Array:
        axes = None if call.attrs.axis is None else tuple(map(int, call.attrs.axis))
        return _of_integers(
            lambda value: reduction(value, axes, keepdims=bool(call.attrs.keepdims))
        )(values, call)

    return reduced


def _sigmoid(value: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-value)))


def _softmax(values: list[Array], call: Call) -> Array:
    axis = int(call.attrs.axis)

    def softmax(value: Array) -> Array:
        powers = np.exp(value - value.max(axis, keepdims=True))
        return np.asarray(powers / powers.sum(axis, keepdims=True))

    return _of_floats(softmax)(values, call)


def _taken(values: list[Array], call: Call) -> Array:
    data, indices = values
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)  # None for a vector only
    _check_inside(indices, data.shape[axis])
    return np.take(data, indices, axis)


def _gathered(values: list[Array], call: Call) -> Array:
    data, indices = values
    if int(call.attrs.batch_dims):
        raise ValueError("a gather of a batch")
    points = np.moveaxis(indices, -1, 0)
    for point, extent in zip(points, data.shape, strict=False):
        _check_inside(point, extent)
    return np.asarray(data[tuple(points)])


def _check_inside(indices: Array, extent: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= extent):
        raise ValueError("an index outside of the tensor is up to the kernel")


def _joined(values: list[Array], call: Call) -> Array:
    return np.concatenate(values, int(call.attrs.axis))


def _tiled(values: list[Array], call: Call) -> Array:
    return np.tile(values[0], [int(count) for count in call.attrs.repeats])


def _cumulated(values: list[Array], call: Call) -> Array:
    (value,) = values
    if call.attrs.exclusive:
        raise ValueError("an exclusive sum is up to the kernel")
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    dtype = np.dtype(str(call.ty.dtype))
    if np.float16 in (value.dtype, dtype) or dtype.kind == "b":
        raise TypeError("how sums of few bits are rounded is up to the kernel")
    if dtype.kind == "f":
        return np.cumsum(value, axis, dtype=np.float64)
    return np.cumsum(_of_integers(np.asarray)([value], call), axis, dtype=dtype)


def _resized(values: list[Array], call: Call) -> Array:
    """Return an image of equal pixels, such as a mask, in another size."""
    (image,) = values
    if call.attrs.coordinate_transformation_mode == "tf_crop_and_resize":
        raise ValueError("pixels outside of the image have a value of their own")
    if not image.size or not bool((image == image.flat[0]).all()):
        raise ValueError("interpolation is up to the kernel")
    return np.full([int(extent) for extent in call.ty.shape], image.flat[0])


def _filled(values: list[Array], call: Call) -> Array:
    _check_not_rounded(values[-1:], call)
    return np.full(_created_shape(call), values[-1])


def _arranged(values: list[Array], call: Call) -> Array:
    start, _, step = values
    _check_not_rounded(values, call)
    (count,) = _created_shape(call)
    dtype = np.dtype(str(call.ty.dtype))
    return np.asarray(start.astype(dtype) + np.arange(count).astype(dtype) * step.astype(dtype))


def _check_not_rounded(values: list[Array], call: Call) -> None:
    if any(value.dtype.kind == "f" for value in values) and "float" not in str(call.ty.dtype):
        raise TypeError("when a number is rounded to an integer is up to the kernel")


def _created_shape(call: Call) -> list[int]:
    shape = [int(extent) for extent in call.ty.shape]
    if int(np.prod(shape)) > _MOST_CREATED:
        raise ValueError("a large tensor is made where it is used")
    return shape


_EVALUATIONS: dict[str, Evaluation] = {
    "relax.nn.relu": _of_floats(lambda value: np.maximum(value, 0)),
    "relax.sigmoid": _of_floats(_sigmoid),
    "relax.tanh": _of_floats(np.tanh),
    "relax.exp": _of_floats(np.exp),
    "relax.log": _of_floats(np.log),
    "relax.sin": _of_floats(np.sin),
    "relax.cos": _of_floats(np.cos),
    "relax.power": _of_floats(np.power),
    "relax.nn.softmax": _softmax,
    "relax.abs": _of_any(np.abs),
    "relax.add": _of_integers(np.add),
    "relax.subtract": _of_integers(np.subtract),
    "relax.multiply": _of_integers(np.multiply),
    "relax.maximum": _of_integers(np.maximum),
    "relax.minimum": _of_integers(np.minimum),
    "relax.min": _reduced(np.min),
    "relax.max": _reduced(np.max),
    "relax.less": _of_any(np.less),
    "relax.less_equal": _of_any(np.less_equal),
    "relax.greater": _of_any(np.greater),
    "relax.greater_equal": _of_any(np.greater_equal),
    "relax.equal": _of_any(np.equal),
    "relax.not_equal": _of_any(np.not_equal),
    "relax.logical_and": _of_any(np.logical_and),
    "relax.logical_or": _of_any(np.logical_or),
    "relax.logical_not": _of_any(np.logical_not),
    "relax.bitwise_and": _of_integers(np.bitwise_and),
    "relax.bitwise_or": _of_integers(np.bitwise_or),
    "relax.take": _taken,
    "relax.gather_nd": _gathered,
    "relax.cumsum": _cumulated,
    "relax.image.resize2d": _resized,
    "relax.concat": _joined,
    "relax.tile": _tiled,
    "relax.full": _filled,
    "relax.full_like": _filled,
    "relax.arange": _arranged,
}


@mutator
class ConstantEvaluator(Rewriter):
    """Replaces calls on constants by their value, also those that `ConstantFolder` leaves.

    With `only_integers`, it replaces those whose value is integers or truth values.
    """

    def __init__(self, module: tvm.IRModule, *, only_integers: bool = False) -> None:
        super().__init__(module)
        self._only_integers = only_integers

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return dict.fromkeys({*FOLDABLE, *_EVALUATIONS}, self._evaluate)

    def _evaluate(self, call: Call) -> relax.Expr | None:
        if self._only_integers and "float" in str(getattr(call.ty, "dtype", "")):
            return None
        if (folded := fold_call(call, self.value)) is not None:
            return folded
        evaluation = _EVALUATIONS.get(op_name(call))
        if evaluation is None or not isinstance(call.ty, relax.TensorType):
            return None
        arguments = list(call.args)
        if op_name(call) == "relax.concat":
            joined = self.bound(call.args[0])
            if not isinstance(joined, relax.Tuple):
                return None
            arguments = list(joined.fields)
        values = []
        for argument in arguments:
            if isinstance(argument, relax.ShapeExpr):
                continue
            if (value := self.value(argument)) is None:
                return None
            values.append(value)
        try:
            with np.errstate(all="ignore"):
                result = evaluation(values, call)
        except (TypeError, ValueError):  # a symbolic shape, or what is up to the kernel
            return None
        dtype = str(call.ty.dtype)
        return relax.const(np.asarray(result, dtype, order="C"), dtype)
