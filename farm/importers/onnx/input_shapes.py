"""Determine the shape of every input of an ONNX model.

Extents come from the file and from the user; an open batch axis is set to 1 and may stay open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from farm.errors import ModelError, did_you_mean
from farm.importers.onnx.extent_expressions import extent_of_expression
from farm.types import TensorSpec

Array = np.ndarray[Any, Any]
Axis = int | str  # an extent, or the symbol of an open axis

# What exporters call axes whose extents they do not know: many axes of one file, of different
# extents.
_NAMELESS = frozenset(("", "*", "-1", "none", "null", "unknown"))
_OWN = "?"  # begins the symbol of such an axis
_NUMBERED = re.compile(r"unk__\d+|DynamicDimension\.\d+")  # ONNX Runtime and tf2onnx; paddle2onnx

_DTYPES = (
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


@dataclass(frozen=True, slots=True)
class _Input:
    """An input as the file declares it."""

    name: str
    axes: tuple[Axis, ...] | None  # None if the rank is unknown
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {'of unknown rank' if self.axes is None else axes_in_words(self.axes)}"


def inputs_without_initializers(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller feeds.

    Old files list the initializers among the inputs too; those are weights.
    """
    weights = {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }
    return [value for value in graph.input if value.name not in weights]


def input_specs(
    graph: onnx.GraphProto,
    overrides: Mapping[str, tuple[int, ...]],
    known: Mapping[str, Array],
    what: str,
) -> tuple[TensorSpec, ...]:
    """Return name, shape and dtype of each input whose value is not known, in order.

    An open axis gets its extent from the override, or from the override or the known value of
    another input with the same symbol. If its symbol is an expression over axes with an extent, the
    extent is computed. An axis that is still open must be a first axis; its extent is set to 1. The
    spec is open if the first axes of all such inputs have one symbol, and no other axis has that
    symbol. An extent that is stated may be 0.
    Raises ModelError for any other open axis, and for overrides that do not fit.
    """
    inputs = [_read(value, what) for value in inputs_without_initializers(graph)]
    if unknown := sorted(set(overrides) - {one.name for one in inputs}):
        near = did_you_mean(unknown[0], [one.name for one in inputs])
        raise ModelError(
            f"{what} has no input {unknown[0]!r}",
            f"its inputs are {', '.join(map(str, inputs))}",
            near,
        )
    lengths: dict[str, int] = {}
    batches: dict[str, str] = {}  # the symbol of the open first axis, by input name
    for one in inputs:
        if one.name in known and known[one.name].size:
            _bind(one, known[one.name].shape, lengths, what)
        elif one.name in overrides:
            _bind(one, overrides[one.name], lengths, what)
    inputs = [one for one in inputs if one.name not in known]
    _compute_extents(inputs, lengths)
    for one in inputs:
        if one.name not in overrides and (
            first := _open_batch(one, lengths, set(batches.values()))
        ):
            batches[one.name] = first
    lengths |= dict.fromkeys(batches.values(), 1)
    shapes = {one.name: overrides.get(one.name) or _fill(one, lengths) for one in inputs}
    if missing := [one for one in inputs if shapes[one.name] is None]:
        raise _unknown_shapes(missing, lengths, what)
    stays = len(set(batches.values())) == 1 and not any(
        set(batches.values()) & set((one.axes or ())[1:]) for one in inputs
    )
    return tuple(
        TensorSpec(
            one.name, tuple(shapes[one.name] or ()), one.dtype, stays and one.name in batches
        )
        for one in inputs
    )


def input_axes(value: onnx.ValueInfoProto, what: str) -> tuple[tuple[Axis, ...] | None, str]:
    """Return the axes of an input (None if the rank is unknown) and its element type.

    Raises ModelError for types that farm does not feed.
    """
    declared = _read(value, what)
    return declared.axes, declared.dtype


def axes_in_words(axes: Iterable[Axis]) -> str:
    """Return axes as [batch, 3, open]: "open" is an open axis whose name says nothing."""
    return f"[{', '.join('open' if _says_nothing(axis) else str(axis) for axis in axes)}]"


def output_axes(value: onnx.ValueInfoProto) -> tuple[Axis, ...]:
    """Return the axes of an output as the file declares them; none if the rank is unknown."""
    return tuple(
        _axis(value.name, index, axis)
        for index, axis in enumerate(value.type.tensor_type.shape.dim)
    )


def _says_nothing(axis: Axis) -> bool:
    """Return whether an axis is open and has no name, or one that a program counted up."""
    return isinstance(axis, str) and (
        axis.startswith(_OWN) or _NUMBERED.fullmatch(axis) is not None
    )


def _read(value: onnx.ValueInfoProto, what: str) -> _Input:
    """Return an input as the file declares it; raise ModelError for unsupported types."""
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    dtype = fed_dtype(tensor.elem_type) if kind == "tensor_type" else None
    if dtype is None:
        found = (
            onnx.TensorProto.DataType.Name(tensor.elem_type).lower() + " tensor"
            if kind == "tensor_type"
            else str(kind).replace("_type", "")
        )
        raise ModelError(
            f"{what}: input {value.name!r} is a {found}",
            "farm feeds tensors of numbers and booleans only",
            "export the model with inputs of one of these types: " + ", ".join(_DTYPES),
        )
    if not tensor.HasField("shape"):
        return _Input(value.name, None, dtype)
    axes = tuple(_axis(value.name, index, axis) for index, axis in enumerate(tensor.shape.dim))
    return _Input(value.name, axes, dtype)


def fed_dtype(element: int) -> str | None:
    """Return numpy's name of an ONNX element type; None if farm does not feed it."""
    try:
        name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name
    except (KeyError, TypeError):
        return None
    return name if name in _DTYPES else None


def _axis(name: str, index: int, axis: onnx.TensorShapeProto.Dimension) -> Axis:
    """Return the extent of an axis, or the symbol of an open one.

    Exporters write an open axis as a symbol, as an empty dimension, as an extent of 0 or -1, or as
    a word such as `?` or `None`. All but the symbol are anonymous: each gets a symbol of its own.
    """
    if axis.dim_value > 0:
        return int(axis.dim_value)
    symbol: str = axis.dim_param.strip("? ")
    return f"{_OWN}{name}.{index}" if symbol.lower() in _NAMELESS else symbol


def _bind(one: _Input, shape: tuple[int, ...], lengths: dict[str, int], what: str) -> None:
    """Check an override against the file, and bind its extents to the symbols in `lengths`."""
    if any(length < 0 for length in shape):
        raise _wrong(one, shape, "no axis can be shorter than 0", what)
    if one.axes is None:
        return
    if len(shape) != len(one.axes):
        raise _wrong(
            one, shape, f"the model has {len(one.axes)} axes there, the override {len(shape)}", what
        )
    for index, (axis, length) in enumerate(zip(one.axes, shape, strict=True)):
        if isinstance(axis, int) and axis != length:
            raise _wrong(one, shape, f"the model fixes axis {index} to {axis}", what)
        if isinstance(axis, str) and lengths.setdefault(axis, length) != length:
            named = (
                f"axis {index}, which it shares," if _says_nothing(axis) else f"the axis {axis!r}"
            )
            raise _wrong(one, shape, f"another extent sets {named} to {lengths[axis]}", what)


def _wrong(one: _Input, shape: tuple[int, ...], why: str, what: str) -> ModelError:
    """Return the ModelError for an override that does not fit."""
    return ModelError(
        f"{what}: the shape {list(shape)} does not fit input {one}",
        why,
        "change the override in devices.toml or --shape",
    )


def _open_axes(one: _Input, lengths: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return index and symbol of each axis whose extent is unknown."""
    return [
        (index, axis)
        for index, axis in enumerate(one.axes or ())
        if isinstance(axis, str) and axis not in lengths
    ]


def _open_batch(one: _Input, lengths: Mapping[str, int], batches: set[str]) -> str | None:
    """Return the symbol of the first axis if it is the only open axis; else None.

    Axes with the batch symbol of an earlier input are not counted.
    """
    opened = [
        (index, axis)
        for index, axis in _open_axes(one, lengths)
        if index == 0 or axis not in batches
    ]
    return opened[0][1] if len(opened) == 1 and opened[0][0] == 0 else None


def _fill(one: _Input, lengths: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the input's shape; None if an extent is unknown."""
    if one.axes is None or _open_axes(one, lengths):
        return None
    return tuple(axis if isinstance(axis, int) else lengths[axis] for axis in one.axes)


def _compute_extents(inputs: Iterable[_Input], lengths: dict[str, int]) -> None:
    """Add to `lengths` the extents of open axes that are expressions over axes in it."""
    for one in inputs:
        for _, axis in _open_axes(one, lengths):
            if (extent := extent_of_expression(axis, lengths)) is not None:
                lengths[axis] = extent


def _unknown_shapes(missing: Sequence[_Input], lengths: Mapping[str, int], what: str) -> ModelError:
    """Return the ModelError for inputs with unknown extents.

    It proposes shapes for as few inputs as determine all of them.
    """
    proposed = _proposed_shapes(missing, lengths)
    names = ", ".join(one.name for one in proposed)
    others = len(missing) - len(proposed)
    more = f" and {others} more input{'s' if others > 1 else ''}" if others else ""
    table = ", ".join(f"{_key(one.name)} = {list(shape)}" for one, shape in proposed.items())
    options = " ".join(
        f"--shape {one.name}:{','.join(map(str, shape))}" for one, shape in proposed.items()
    )
    return ModelError(
        f"{what} leaves the shape of {names}{more} open",
        "; ".join(_unknown_extents(one, lengths) for one in proposed)
        + ("; the shapes of the others follow from these" if others else ""),
        (
            f"say it, in devices.toml with `shapes = {{ {table} }}` or with `{options}` (with "
            "your own numbers)"
        ),
    )


def _proposed_shapes(
    missing: Sequence[_Input], lengths: Mapping[str, int]
) -> dict[_Input, tuple[int, ...]]:
    """Return shapes for some inputs, in their order, with which those of all others are known."""
    shown = dict(lengths)
    opened = {axis for one in missing for _, axis in _open_axes(one, lengths)}
    anything = {**dict.fromkeys(opened, 1), **lengths}
    computed = {axis for axis in opened if extent_of_expression(axis, anything) is not None}
    proposed = {}
    # What an input's axes are computed from may be the axes of a later one
    for one in sorted(missing, key=lambda one: not computed.isdisjoint(one.axes or ())):
        _compute_extents([one], shown)
        if _fill(one, shown) is None:
            proposed[one] = _example_shape(one, shown)
    return {one: proposed[one] for one in missing if one in proposed}


def _example_shape(one: _Input, shown: dict[str, int]) -> tuple[int, ...]:
    """Return a shape for an input, and add the extents of its open axes to `shown`."""
    if one.axes is None:
        return (1, 3, 224, 224)
    return tuple(
        axis
        if isinstance(axis, int)
        else shown.setdefault(axis, 1 if index == 0 or "batch" in axis.lower() else 224)
        for index, axis in enumerate(one.axes)
    )


def _unknown_extents(one: _Input, lengths: Mapping[str, int]) -> str:
    """Return which extents of an input are unknown, in words."""
    if one.axes is None:
        return f"{one.name}: even the number of axes"
    indices = ", ".join(f"axis {index}" for index, _ in _open_axes(one, lengths))
    return f"{one.name}: {indices} of {axes_in_words(one.axes)}"


def _key(name: str) -> str:
    """Return a name as a TOML key: bare if that is allowed, else quoted."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
