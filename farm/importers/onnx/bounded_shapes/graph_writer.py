"""The graph that is written: its nodes, its types, and what is known of extents and shape data.

A tensor with a dynamic extent has a padded shape: along this axis as many elements as there can
be. The valid elements come first; the padding behind them is undefined.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from farm.importers.onnx.bounded_shapes.extent import Count, Extent
from farm.importers.onnx.inferred_types import is_fixed, known_extents
from farm.importers.onnx.node_evaluation import MOST_ELEMENTS, evaluate_node, infer_node_types

DOMAIN = "farm"  # of the operators that only farm's converters know
_MOST_SHAPE_DATA = 256  # of a tensor whose elements are known one by one
_SHAPE_DATA_TYPES = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
Array = np.ndarray[Any, Any]


class UnboundedShape(Exception):
    """Raised for a node whose result has no known bounded shape; says why."""


@dataclass(frozen=True, slots=True)
class ShapeData:
    """The elements of a small tensor, extents or bools in an array of objects, and its type."""

    values: Array
    dtype: int


@dataclass(slots=True)
class BoundedGraph:
    """Nodes in order, and what is known of each value by its name.

    `inferred` has the types of the model as it was, for nodes whose types ONNX infers from the
    whole graph only. `extents` has the dynamic extents of tensors, by axis. `shape_data` has the
    elements of small tensors that are extents; `tensor` writes their nodes. `non_negative` names
    tensors without negative elements. `non_zero_results` has the result of NonZero by its input.
    `expanded_rows` has, by the result of an Expand, its input of one element a row.
    """

    opsets: Mapping[str, int]
    types: dict[str, onnx.TypeProto]
    constants: dict[str, onnx.TensorProto]
    inferred: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    added: list[onnx.TensorProto] = field(default_factory=list)
    extents: dict[str, dict[int, Extent]] = field(default_factory=dict)
    shape_data: dict[str, ShapeData] = field(default_factory=dict)
    non_negative: set[str] = field(default_factory=set)
    non_zero_results: dict[str, str] = field(default_factory=dict)
    expanded_rows: dict[str, str] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _names: Any = field(default_factory=itertools.count)
    _cached: dict[Any, str] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """Return the version of ONNX's own operators."""
        return self.opsets.get("", 1)

    def new_name(self, stem: str) -> str:
        """Return a name that no value of the model has."""
        return f"{stem}/bounded{next(self._names)}"

    def write(self, node: onnx.NodeProto) -> None:
        """Add a node, or the constants that it computes."""
        inputs = [self.constants.get(name) for name in node.input if name]
        if inputs and None not in inputs:
            made = evaluate_node(
                node, {one: self.constants[one] for one in node.input if one}, self.opsets
            )
            if made is not None:
                for name, value in zip(node.output, made, strict=False):
                    self.add_constant(value, name)
                return
        self.nodes.append(node)
        self.types |= infer_node_types(node, self.types, self.constants, self.opsets)
        if not any(name in self.extents for name in node.input):
            for name in node.output:
                if name in self.inferred and not is_fixed(self.types.get(name)):
                    self.types[name] = self.inferred[name]

    def emit(
        self, operator: str, inputs: Sequence[str], *, like: str = "", **attributes: Any
    ) -> str:
        """Add a node with one output, and return the name of the output; `like` is its stem."""
        output = self.new_name(like or operator)
        self.write(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def emit_own(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[tuple[str, int, Sequence[int]]],
        **attributes: Any,
    ) -> None:
        """Add a node of farm's own domain with outputs of these names, types and shapes."""
        names = [name for name, _, _ in outputs]
        self.nodes.append(helper.make_node(operator, inputs, names, domain=DOMAIN, **attributes))
        for name, dtype, shape in outputs:
            self.types[name] = helper.make_tensor_type_proto(dtype, shape)

    def constant(self, value: Any, stem: str = "constant") -> str:
        """Return the name of a constant."""
        array = np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._cached:
            self._cached[key] = self.new_name(stem)
            self.add_constant(array, self._cached[key])
        return self._cached[key]

    def add_constant(self, value: Array, name: str) -> None:
        """Add a constant of this name."""
        tensor = numpy_helper.from_array(np.asarray(value), name)
        self.added.append(tensor)
        self.types[name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if np.size(value) <= MOST_ELEMENTS:
            self.constants[name] = tensor

    def array(self, name: str) -> Array | None:
        """Return the elements of a constant; None for other tensors."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def dtype(self, name: str) -> int:
        """Return the type of a tensor's elements, as ONNX numbers it."""
        if name in self.shape_data:
            return self.shape_data[name].dtype
        kind = self.types.get(name)
        if kind is None or not kind.tensor_type.elem_type:
            raise UnboundedShape(f"the type of {name!r} is not known")
        return int(kind.tensor_type.elem_type)

    def padded_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor with its padding."""
        if name in self.shape_data:
            return tuple(self.shape_data[name].values.shape)
        extents = known_extents(self.types.get(name))
        if extents is None:
            raise UnboundedShape(f"the rank of {name!r} is not known")
        found = [extent for extent in extents if extent is not None]
        if len(found) < len(extents):
            raise UnboundedShape(f"the shape of {name!r} is not known")
        return tuple(found)

    def shape(self, name: str) -> list[Extent]:
        """Return the extents of a tensor."""
        found = [Extent(extent) for extent in self.padded_shape(name)]
        for axis, extent in self.extents.get(name, {}).items():
            found[axis] = extent
        return found

    def set_extents(self, name: str, extents: Mapping[int, Extent]) -> None:
        """Set those extents of a tensor that are not constant.

        Raises UnboundedShape if a constant one differs from the padded shape.
        """
        padded = self.padded_shape(name)
        if any(one.is_constant and one.constant != padded[axis] for axis, one in extents.items()):
            raise UnboundedShape("a constant extent of its result is not that of the padded shape")
        kept = {axis: one for axis, one in extents.items() if not one.is_constant}
        if kept:
            self.extents[name] = kept

    def known_shape_data(self, name: str) -> Array | None:
        """Return the elements of a small tensor of integers or bools, as extents and bools.

        Returns None for a tensor whose elements are not known so.
        """
        if name in self.shape_data:
            return self.shape_data[name].values
        array = self.array(name)
        if array is None or array.size > _MOST_SHAPE_DATA or array.dtype.kind not in "ib":
            return None
        values = np.empty(array.shape, object)
        for at, value in np.ndenumerate(array):
            values[at] = bool(value) if array.dtype.kind == "b" else Extent(int(value))
        return values

    def set_shape_data(self, name: str, values: Array, dtype: int) -> None:
        """Set the elements of a tensor; it becomes a constant if they all are constant."""
        if dtype not in _SHAPE_DATA_TYPES:
            raise UnboundedShape(f"{name!r} holds extents as {TensorProto.DataType.Name(dtype)}")
        fixed = [one.constant if isinstance(one, Extent) else one for one in values.flat]
        if all(not isinstance(one, Extent) or one.is_constant for one in values.flat):
            kind = helper.tensor_dtype_to_np_dtype(dtype)
            self.add_constant(np.array(fixed, kind).reshape(values.shape), name)
        else:
            self.shape_data[name] = ShapeData(values, dtype)

    def tensor(self, name: str) -> str:
        """Return the name of a tensor for which a node is written, which may be now."""
        if name in self.shape_data and name not in self._written:
            self._written.add(name)
            made = self._tensor_of(self.shape_data[name])
            self.write(helper.make_node("Identity", [made], [name]))
        return name

    def _tensor_of(self, data: ShapeData) -> str:
        parts = [self.extent_tensor(one) for one in data.values.flat]
        joined = parts[0] if len(parts) == 1 else self.emit("Concat", parts, axis=0)
        shaped = self.reshaped(joined, data.values.shape)
        if data.dtype == TensorProto.INT64:
            return shaped
        return self.emit("Cast", [shaped], to=data.dtype)

    def extent_tensor(self, extent: Extent) -> str:
        """Return the name of an int64 tensor [1] that holds an extent."""
        if extent.is_constant:
            return self.constant(np.array([extent.constant], np.int64))
        if extent not in self._cached:
            made = self._sum_of_terms(extent)
            if extent.constant:
                shift = self.constant(np.array([extent.constant], np.int64))
                made = self.emit("Add", [made, shift])
            self._cached[extent] = made
        return self._cached[extent]

    def _sum_of_terms(self, extent: Extent) -> str:
        counts = [count.tensor for count, _ in extent.terms]
        factors = np.array([factor for _, factor in extent.terms], np.int64)
        joined = counts[0] if len(counts) == 1 else self.emit("Concat", counts, axis=0)
        if (factors != 1).any():
            joined = self.emit("Mul", [joined, self.constant(factors)])
        return joined if len(counts) == 1 else self.emit("ReduceSum", [joined])

    def new_count(self, operator: str, parts: Iterable[Extent], most: int) -> Extent:
        """Return the extent that an operator computes of others, which are its inputs [1]."""
        inputs = [self.extent_tensor(part) for part in parts]
        key = (operator, *inputs)
        if key not in self._cached:
            self._cached[key] = self.emit(operator, inputs)
        return Extent.of(Count(self._cached[key], most))

    def reshaped(self, name: str, shape: Sequence[int], output: str = "") -> str:
        """Return a tensor of another padded shape; its dynamic extents are not kept."""
        if not output and tuple(shape) == self.padded_shape(name):
            return name
        output = output or self.new_name(name)
        to = self.constant(np.array(shape, np.int64))
        more = {"allowzero": 1} if 0 in shape and self.opset >= 14 else {}
        self.write(helper.make_node("Reshape", [name, to], [output], **more))
        return output

    def valid_mask(self, extent: Extent, padded: int, axis: int, rank: int) -> str:
        """Return the bools that say which elements of an axis are valid.

        Their shape has `rank` axes, all of extent 1 but this one.
        """
        key = ("valid_mask", extent, padded, axis, rank)
        if key not in self._cached:
            indices = self.constant(np.arange(padded, dtype=np.int64))
            inside = self.emit("Less", [indices, self.extent_tensor(extent)])
            shape = [padded if one == axis else 1 for one in range(rank)]
            self._cached[key] = self.reshaped(inside, shape)
        return self._cached[key]

    def concat_indices(self, parts: Sequence[Extent], lengths: Sequence[int]) -> str:
        """Return the indices of the valid elements of tensors that were concatenated.

        `parts` are their extents along the axis, `lengths` those with padding. The result has as
        many indices as there can be valid elements.
        """
        key = ("indices", tuple(parts), tuple(lengths))
        if key not in self._cached:
            counts = self.emit("Concat", [self.extent_tensor(part) for part in parts], axis=0)
            self._cached[key] = self.new_name("indices")
            most = min(sum(lengths), sum(parts, Extent(0)).upper_bound)
            self.emit_own(
                "ConcatIndices",
                [counts],
                [(self._cached[key], TensorProto.INT64, [most])],
                lengths=lengths,
                most=most,
            )
        return self._cached[key]

    def fill_padding(self, name: str, axes: Iterable[int], value: Any) -> str:
        """Return a tensor with `value` as the padding of those of these axes that are dynamic."""
        extents, padded = self.extents.get(name, {}), self.padded_shape(name)
        kind = helper.tensor_dtype_to_np_dtype(self.dtype(name))
        for axis in axes:
            if axis in extents:
                inside = self.valid_mask(extents[axis], padded[axis], axis, len(padded))
                name = self.emit("Where", [inside, name, self.constant(np.array(value, kind))])
        return name

    def lowest(self, name: str, *, highest: bool = False) -> Any:
        """Return the lowest, or the highest, number of a tensor's type."""
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(self.dtype(name)))
        if kind.kind == "f":
            return np.inf if highest else -np.inf
        if kind.kind == "b":
            return highest
        limits = np.iinfo(kind)
        return limits.max if highest else limits.min

    def cropped(self, name: str, axis: int, length: int) -> str:
        """Return the first `length` elements of an axis; dynamic extents are not kept."""
        padded = self.padded_shape(name)
        if padded[axis] == length:
            return name
        return self.sliced(name, axis, 0, length)

    def sliced(self, name: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Slice an axis from `start` to before `end`; dynamic extents are not kept."""
        bounds = [self.constant(np.array([one], np.int64)) for one in (start, end, axis, step)]
        return self.emit("Slice", [name, *bounds], like=name)

    def padded(self, name: str, axis: int, length: int, value: Any = 0) -> str:
        """Pad the end of an axis with `value` to `length`; dynamic extents are not kept."""
        padded = self.padded_shape(name)
        if padded[axis] == length:
            return name
        shape = [length - one if at == axis else one for at, one in enumerate(padded)]
        kind = helper.tensor_dtype_to_np_dtype(self.dtype(name))
        return self.emit(
            "Concat", [name, self.constant(np.full(shape, value, kind))], axis=axis, like=name
        )
