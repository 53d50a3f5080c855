"""The graph that is written: its nodes, its types, and what is known of extents and numbers.

A tensor with an extent that the model computes is stored with the most elements that it can have
along this axis. Its elements are the first ones; what lies behind them is undefined.
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
_MOST_NUMBERS = 256  # of a tensor whose elements are known one by one
_NUMBER_TYPES = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
Array = np.ndarray[Any, Any]


class UnboundedShape(Exception):
    """A node whose result has no bounded shape, as far as this is understood; says why."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The elements of a small tensor: extents or bools, in an array of objects, and its type."""

    values: Array
    dtype: int


@dataclass(slots=True)
class BoundedGraph:
    """Nodes in order, and what is known of each value by its name.

    `inferred` has the types of the model as it was, for nodes whose types ONNX infers from the
    whole graph only.
    `extents` has the extents, by axis, of the tensors that have some that are not constant.
    `numbers` has the elements of tensors of extents; `tensor` writes their nodes.
    `is_index` names tensors that have no negative elements. `places_found` has the result of
    NonZero by its input, `spread_rows` the tensor of one element a row of which an Expand made
    rows.
    """

    opsets: Mapping[str, int]
    types: dict[str, onnx.TypeProto]
    constants: dict[str, onnx.TensorProto]
    inferred: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    added: list[onnx.TensorProto] = field(default_factory=list)
    extents: dict[str, dict[int, Extent]] = field(default_factory=dict)
    numbers: dict[str, Numbers] = field(default_factory=dict)
    is_index: set[str] = field(default_factory=set)
    places_found: dict[str, str] = field(default_factory=dict)
    spread_rows: dict[str, str] = field(default_factory=dict)
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
        if name in self.numbers:
            return self.numbers[name].dtype
        kind = self.types.get(name)
        if kind is None or not kind.tensor_type.elem_type:
            raise UnboundedShape(f"the type of {name!r} is not known")
        return int(kind.tensor_type.elem_type)

    def storage(self, name: str) -> tuple[int, ...]:
        """Return the extents with which a tensor is stored."""
        if name in self.numbers:
            return tuple(self.numbers[name].values.shape)
        extents = known_extents(self.types.get(name))
        if extents is None:
            raise UnboundedShape(f"the rank of {name!r} is not known")
        found = [extent for extent in extents if extent is not None]
        if len(found) < len(extents):
            raise UnboundedShape(f"the shape of {name!r} is not known")
        return tuple(found)

    def shape(self, name: str) -> list[Extent]:
        """Return the extents of a tensor."""
        found = [Extent(extent) for extent in self.storage(name)]
        for axis, extent in self.extents.get(name, {}).items():
            found[axis] = extent
        return found

    def set_extents(self, name: str, extents: Mapping[int, Extent]) -> None:
        """Set those extents of a tensor that are not constant.

        Raises UnboundedShape if a constant one is not that of the storage.
        """
        storage = self.storage(name)
        if any(one.is_constant and one.constant != storage[axis] for axis, one in extents.items()):
            raise UnboundedShape("it makes a constant extent of counted ones in a way of its own")
        kept = {axis: one for axis, one in extents.items() if not one.is_constant}
        if kept:
            self.extents[name] = kept

    def known_numbers(self, name: str) -> Array | None:
        """Return the elements of a small tensor of integers or bools, as extents and bools.

        Returns None for a tensor whose elements are not known so.
        """
        if name in self.numbers:
            return self.numbers[name].values
        array = self.array(name)
        if array is None or array.size > _MOST_NUMBERS or array.dtype.kind not in "ib":
            return None
        values = np.empty(array.shape, object)
        for at, value in np.ndenumerate(array):
            values[at] = bool(value) if array.dtype.kind == "b" else Extent(int(value))
        return values

    def set_numbers(self, name: str, values: Array, dtype: int) -> None:
        """Set the elements of a tensor; it becomes a constant if they all are constant."""
        if dtype not in _NUMBER_TYPES:
            raise UnboundedShape(f"{name!r} holds extents as {TensorProto.DataType.Name(dtype)}")
        fixed = [one.constant if isinstance(one, Extent) else one for one in values.flat]
        if all(not isinstance(one, Extent) or one.is_constant for one in values.flat):
            kind = helper.tensor_dtype_to_np_dtype(dtype)
            self.add_constant(np.array(fixed, kind).reshape(values.shape), name)
        else:
            self.numbers[name] = Numbers(values, dtype)

    def tensor(self, name: str) -> str:
        """Return the name of a tensor for which a node is written, which may be now."""
        if name in self.numbers and name not in self._written:
            self._written.add(name)
            made = self._tensor_of(self.numbers[name])
            self.write(helper.make_node("Identity", [made], [name]))
        return name

    def _tensor_of(self, numbers: Numbers) -> str:
        parts = [self.extent_tensor(one) for one in numbers.values.flat]
        joined = parts[0] if len(parts) == 1 else self.emit("Concat", parts, axis=0)
        shaped = self.reshaped(joined, numbers.values.shape)
        if numbers.dtype == TensorProto.INT64:
            return shaped
        return self.emit("Cast", [shaped], to=numbers.dtype)

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
        """Return a tensor with another storage, of as many elements; its extents are not kept."""
        if not output and tuple(shape) == self.storage(name):
            return name
        output = output or self.new_name(name)
        to = self.constant(np.array(shape, np.int64))
        more = {"allowzero": 1} if 0 in shape and self.opset >= 14 else {}
        self.write(helper.make_node("Reshape", [name, to], [output], **more))
        return output

    def is_element(self, extent: Extent, storage: int, axis: int, rank: int) -> str:
        """Return the bools that say which places of an axis hold elements.

        Their shape has `rank` axes, all of extent 1 but this one.
        """
        key = ("is_element", extent, storage, axis, rank)
        if key not in self._cached:
            places = self.constant(np.arange(storage, dtype=np.int64))
            inside = self.emit("Less", [places, self.extent_tensor(extent)])
            shape = [storage if one == axis else 1 for one in range(rank)]
            self._cached[key] = self.reshaped(inside, shape)
        return self._cached[key]

    def places_of_parts(self, parts: Sequence[Extent], lengths: Sequence[int]) -> str:
        """Return the places of the elements of parts that are stored one behind the other.

        `parts` are their extents, `lengths` the places that each of them takes. The result has as
        many places as there can be elements.
        """
        key = ("places", tuple(parts), tuple(lengths))
        if key not in self._cached:
            counts = self.emit("Concat", [self.extent_tensor(part) for part in parts], axis=0)
            self._cached[key] = self.new_name("places")
            most = min(sum(lengths), sum(parts, Extent(0)).most)
            self.emit_own(
                "PlacesOfParts",
                [counts],
                [(self._cached[key], TensorProto.INT64, [most])],
                lengths=lengths,
                most=most,
            )
        return self._cached[key]

    def filled(self, name: str, axes: Iterable[int], value: Any) -> str:
        """Return a tensor with `value` behind the elements of these axes, if they are bounded."""
        extents, storage = self.extents.get(name, {}), self.storage(name)
        kind = helper.tensor_dtype_to_np_dtype(self.dtype(name))
        for axis in axes:
            if axis in extents:
                inside = self.is_element(extents[axis], storage[axis], axis, len(storage))
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
        """Return the first `length` places of an axis; its extents are not kept."""
        storage = self.storage(name)
        if storage[axis] == length:
            return name
        return self.sliced(name, axis, 0, length)

    def sliced(self, name: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Return the places of an axis from `start` to before `end`; its extents are not kept."""
        bounds = [self.constant(np.array([one], np.int64)) for one in (start, end, axis, step)]
        return self.emit("Slice", [name, *bounds], like=name)

    def padded(self, name: str, axis: int, length: int, value: Any = 0) -> str:
        """Return a tensor with places of `value` at the end of an axis, which has `length` then."""
        storage = self.storage(name)
        if storage[axis] == length:
            return name
        shape = [length - one if at == axis else one for at, one in enumerate(storage)]
        kind = helper.tensor_dtype_to_np_dtype(self.dtype(name))
        return self.emit(
            "Concat", [name, self.constant(np.full(shape, value, kind))], axis=axis, like=name
        )
