"""Make constants of the inputs of an ONNX model whose values the user states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from farm.errors import ModelError, did_you_mean
from farm.importers.onnx.input_shapes import (
    Axis,
    axes_in_words,
    input_axes,
    inputs_without_initializers,
)
from farm.importers.size_limits import check_tensor_fits_memory
from farm.types import Value

Array = np.ndarray[Any, Any]
_KINDS = {
    "b": "true or false",
    "i": "whole numbers",
    "u": "whole numbers of at least 0",
    "f": "numbers",
}
_FIX = "correct --value, or `values` in devices.toml"


def user_values_as_arrays(
    graph: onnx.GraphProto,
    values: Mapping[str, Value],
    shapes: Mapping[str, tuple[int, ...]],
    what: str,
) -> dict[str, Array]:
    """Return the stated values by input name, in the shapes and element types of the inputs.

    A number alone fills the shape that is stated for its input or that the file has.

    Raises ModelError for a name that is no input, for a value of another type or shape, and if no
    input remains.
    """
    if not values:
        return {}
    inputs = {value.name: value for value in inputs_without_initializers(graph)}
    if unknown := sorted(set(values) - set(inputs)):
        listed = f"its inputs are {', '.join(inputs)}"
        raise ModelError(
            f"{what} has no input {unknown[0]!r}",
            listed,
            did_you_mean(unknown[0], list(inputs)) or _FIX,
        )
    if set(values) == set(inputs):
        raise ModelError(
            f"{what} has no input left", "--value states all of them", "leave one --value out"
        )
    return {
        name: _array(inputs[name], value, shapes.get(name), what) for name, value in values.items()
    }


def turn_inputs_into_initializers(
    model: onnx.ModelProto, known: Mapping[str, Array]
) -> onnx.ModelProto:
    """Return a copy of the model in which these inputs are initializers."""
    if not known:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    left = [value for value in result.graph.input if value.name not in known]
    del result.graph.input[:]
    result.graph.input.extend(left)
    result.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in known.items()
    )
    return result


def _array(
    declared: onnx.ValueInfoProto, value: Value, stated: tuple[int, ...] | None, what: str
) -> Array:
    """Return a value as the input's tensor.

    Where the extents of axes are not known, a number alone is one element.
    """
    axes, dtype = input_axes(declared, what)
    name, kind = declared.name, np.dtype(dtype).kind
    try:
        given: Array = np.asarray(value)
    except ValueError as exc:
        raise ModelError(
            f"{what}: the value of input {name} is no tensor",
            "its rows have different lengths",
            _FIX,
        ) from exc
    if not _fits(given, kind):
        raise ModelError(
            f"{what}: the value of input {name} is of another type",
            f"it is {dtype}, which takes {_KINDS[kind]}",
            _FIX,
        )
    if (
        kind in "iu"
        and given.size
        and not (np.iinfo(dtype).min <= given.min() and given.max() <= np.iinfo(dtype).max)
    ):
        raise ModelError(
            f"{what}: the value of input {name} is out of range", f"it is {dtype}", _FIX
        )
    array: Array = np.ascontiguousarray(given, dtype).reshape(given.shape)
    if array.ndim == 0 and (stated is not None or axes is not None):
        if stated is None:
            stated = tuple(axis if isinstance(axis, int) else 1 for axis in axes or ())
        check_tensor_fits_memory(what, f"the value of input {name}", stated, array.itemsize)
        array = np.full(stated, array, dtype)
    if axes is None:
        return array
    if not _is_shape(array.shape, axes):
        why = f"the value has {list(array.shape)}, the model {axes_in_words(axes)}"
        raise ModelError(f"{what}: the value of input {name} is of another shape", why, _FIX)
    return array


def _is_shape(shape: Sequence[int], axes: Sequence[Axis]) -> bool:
    """Return whether a shape has these extents; a symbol stands for any."""
    same = (
        isinstance(axis, str) or axis == extent for axis, extent in zip(axes, shape, strict=False)
    )
    return len(axes) == len(shape) and all(same)


def _fits(given: Array, kind: str) -> bool:
    """Return whether an array of Python numbers can be of this kind of element type."""
    taken = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[kind]
    return given.dtype.kind in taken or given.size == 0
