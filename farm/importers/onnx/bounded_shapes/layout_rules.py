"""Rules of operators that move elements: reshape, concatenate, slice, pad, repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper

from farm.importers.onnx.bounded_shapes.extent import Extent, Product, pair_reshaped_axes
from farm.importers.onnx.bounded_shapes.graph_writer import Array, BoundedGraph, UnboundedShape
from farm.importers.onnx.bounded_shapes.shape_data_rules import maximum, minimum, quotient
from farm.importers.onnx.node_evaluation import MOST_ELEMENTS
from farm.importers.onnx.node_reading import node_attribute, optional_input, stated_axes

_NO_END = 2**31 - 1  # exporters write this or more for "to the end"


def _extents_of_input(graph: BoundedGraph, node: onnx.NodeProto, place: int) -> list[Extent]:
    """Return the elements of an input that states extents. Raises UnboundedShape otherwise."""
    name = optional_input(node, place)
    values = graph.known_shape_data(name) if name else None
    if values is None:
        raise UnboundedShape("its extents are computed of the values of tensors")
    return list(values.flat)


def transpose(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Permute the axes."""
    rank = len(graph.padded_shape(node.input[0]))
    axes = list(node_attribute(node, "perm", range(rank)[::-1]))
    graph.write(node)
    extents = graph.extents[node.input[0]]
    graph.set_extents(
        node.output[0], {axes.index(axis): extent for axis, extent in extents.items()}
    )


def squeeze(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Remove axes of extent 1. Without axes, those that are 1 for all counts."""
    shape = graph.shape(node.input[0])
    stated = stated_axes(node, graph.array(optional_input(node, 1)))
    gone = (
        [axis for axis, extent in enumerate(shape) if extent == Extent(1)]
        if stated is None
        else [axis % len(shape) for axis in stated]
    )
    _reshape_to(graph, node, [one for axis, one in enumerate(shape) if axis not in gone])


def unsqueeze(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Insert axes of extent 1."""
    shape = graph.shape(node.input[0])
    stated = stated_axes(node, graph.array(optional_input(node, 1)))
    if stated is None:
        raise UnboundedShape("its axes are not constant")
    rank = len(shape) + len(stated)
    for axis in sorted(one % rank for one in stated):
        shape.insert(axis, Extent(1))
    _reshape_to(graph, node, shape)


def flatten(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Join the axes before and from `axis` on."""
    shape = graph.shape(node.input[0])
    axis = node_attribute(node, "axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    parts = [Product.of(part).extent for part in (shape[:axis], shape[axis:])]
    if None in parts:
        raise UnboundedShape("it multiplies two extents that are not constant")
    _reshape_to(graph, node, [part for part in parts if part is not None])


def reshape(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Reshape to constant extents, to those of other tensors, and to what remains."""
    before, after = graph.shape(node.input[0]), _extents_of_input(graph, node, 1)
    if not node_attribute(node, "allowzero", 0):
        after = [before[at] if one == Extent(0) else one for at, one in enumerate(after)]
    if Extent(-1) in after:
        open_axis = after.index(Extent(-1))
        others = [one for at, one in enumerate(after) if at != open_axis]
        rest = Product.of(before).divided(Product.of(others))
        extent = None if rest is None else rest.extent
        if extent is None:
            raise UnboundedShape("the extent that it leaves open is no multiple of a count")
        after[open_axis] = extent
    _reshape_to(graph, node, after)


def _reshape_to(graph: BoundedGraph, node: onnx.NodeProto, after: list[Extent]) -> None:
    """Write the reshape of a node's first input to these extents."""
    name, before = node.input[0], graph.shape(node.input[0])
    groups = pair_reshaped_axes(before, after)
    if groups is None:
        raise UnboundedShape("it is not known to keep the number of elements")
    padded = graph.padded_shape(name)
    stored = [0] * len(after)
    for ins, outs in groups:
        kept = prod(padded[axis] for axis in ins)
        dynamic = [axis for axis in outs if not after[axis].is_constant]
        if any(not before[axis].is_constant for axis in ins):
            _check_leading(before, ins)
            _check_leading(after, outs)
        for axis in outs:
            stored[axis] = after[axis].constant if axis not in dynamic else 0
        if dynamic:
            others = max(1, prod(stored[axis] for axis in outs if axis != dynamic[0]))
            if kept % others:
                raise UnboundedShape("it divides an extent with a remainder")
            stored[dynamic[0]] = kept // others
    graph.reshaped(name, stored, node.output[0])
    graph.set_extents(node.output[0], dict(enumerate(after)))


def _check_leading(shape: Sequence[Extent], axes: Sequence[int]) -> None:
    """Check that the valid elements of these axes lie before all padding."""
    real = [axis for axis in axes if shape[axis] != Extent(1)]
    if any(not shape[axis].is_constant for axis in real[1:]):
        raise UnboundedShape("it joins an extent that is not constant with one before it")


def concat(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Concatenate; along a dynamic axis, valid elements move together."""
    names = [graph.tensor(name) for name in node.input]
    rank = len(graph.padded_shape(names[0]))
    axis = node_attribute(node, "axis", 0) % rank
    names, extents = aligned(graph, names, axis)
    parts = [graph.shape(name)[axis] for name in names]
    lengths = [graph.padded_shape(name)[axis] for name in names]
    extents[axis] = sum(parts, Extent(0))
    if all(part.is_constant for part in parts[:-1]):
        graph.write(helper.make_node("Concat", names, node.output, axis=axis))
    else:
        joined = graph.emit("Concat", names, axis=axis)
        indices = graph.concat_indices(parts, lengths)
        graph.write(helper.make_node("Gather", [joined, indices], node.output, axis=axis))
    graph.set_extents(node.output[0], extents)


def aligned(
    graph: BoundedGraph, names: Sequence[str], except_axis: int
) -> tuple[list[str], dict[int, Extent]]:
    """Return tensors of equal extents cropped to one padded shape, and their dynamic extents.

    `except_axis` may differ. Raises UnboundedShape if other extents are not known to be equal.
    """
    shapes = [graph.shape(name) for name in names]
    extents: dict[int, Extent] = {}
    result = list(names)
    for axis, extent in enumerate(shapes[0]):
        if axis == except_axis:
            continue
        if any(shape[axis] != extent for shape in shapes[1:]):
            raise UnboundedShape("the extents of its inputs are not known to be equal")
        if not extent.is_constant:
            extents[axis] = extent
            least = min(graph.padded_shape(name)[axis] for name in result)
            result = [_cropped(graph, name, axis, least) for name in result]
    return result, extents


def _cropped(graph: BoundedGraph, name: str, axis: int, length: int) -> str:
    made = graph.cropped(name, axis, length)
    if made != name:
        graph.set_extents(made, graph.extents.get(name, {}))
    return made


def split(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Cut along an axis of constant extent."""
    extents = graph.extents[node.input[0]]
    axis = node_attribute(node, "axis", 0) % len(graph.padded_shape(node.input[0]))
    if axis in extents:
        raise UnboundedShape("it cuts along an extent that is not constant")
    graph.write(node)
    for name in node.output:
        if name:
            graph.set_extents(name, extents)


def slice_(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Slice axes, also by dynamic bounds."""
    if graph.opset < 10:
        raise UnboundedShape("its bounds are attributes; export with opset_version 10 or newer")
    name = graph.tensor(node.input[0])
    starts, ends = _extents_of_input(graph, node, 1), _extents_of_input(graph, node, 2)
    axes = stated_axes(node, graph.array(optional_input(node, 3)))
    steps = graph.array(optional_input(node, 4))
    rank = len(graph.padded_shape(name))
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[at] if axes is not None else at) % rank
        step = int(steps[at]) if steps is not None else 1
        name = _sliced(graph, name, axis, start, end, step)
    graph.write(helper.make_node("Identity", [name], node.output))
    graph.set_extents(node.output[0], graph.extents.get(name, {}))


def _sliced(
    graph: BoundedGraph, name: str, axis: int, start: Extent, end: Extent, step: int
) -> str:
    """Return the part of a tensor from `start` to before `end` along one axis."""
    extents, length = dict(graph.extents.get(name, {})), graph.padded_shape(name)[axis]
    extent = graph.shape(name)[axis]
    if all(one.is_constant for one in (extent, start, end)):
        made = graph.sliced(name, axis, start.constant, end.constant, step)
        graph.set_extents(made, extents)
        return made
    first, last = (_bound(graph, one, extent) for one in (start, end))
    span = maximum(graph, last - first, Extent(0))
    if step < 1:
        raise UnboundedShape("it goes backwards along an extent that is not constant")
    part = span if step == 1 else quotient(graph, span + (step - 1), step)
    if part is None:
        raise UnboundedShape("its bounds are not understood")
    most = min(part.upper_bound, -(-length // step))
    if most < 1:
        shape = [0 if at == axis else one for at, one in enumerate(graph.padded_shape(name))]
        kind = helper.tensor_dtype_to_np_dtype(graph.dtype(name))
        made = graph.constant(np.zeros(shape, kind))
    elif first.is_constant:
        made = graph.sliced(
            name, axis, first.constant, min(first.constant + most * step, length), step
        )
    else:
        steps = graph.constant(np.arange(most, dtype=np.int64) * step)
        indices = graph.emit("Add", [steps, graph.extent_tensor(first)])
        highest = graph.constant(np.array(length - 1, np.int64))
        made = graph.emit("Gather", [name, graph.emit("Min", [indices, highest])], axis=axis)
    extents[axis] = part if most > 0 else Extent(0)
    graph.set_extents(made, extents)
    return made


def _bound(graph: BoundedGraph, place: Extent, extent: Extent) -> Extent:
    """Return a bound of a slice as a place from 0 to the extent of the axis."""
    if place.is_constant and place.constant >= _NO_END:
        return extent
    if place.upper_bound < 0:
        place = maximum(graph, place + extent, Extent(0))
    elif place.lower_bound < 0:
        raise UnboundedShape("a bound of it may be negative or not")
    return minimum(graph, place, extent)


def pad(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Pad with a constant; the amount at an end may be dynamic."""
    if graph.opset < 11:
        raise UnboundedShape("its amounts are attributes; export with opset_version 11 or newer")
    if node_attribute(node, "mode", b"constant") != b"constant":
        raise UnboundedShape("it repeats elements at an end that is not constant")
    amounts = _extents_of_input(graph, node, 1)
    name = graph.tensor(node.input[0])
    stated = stated_axes(node, graph.array(optional_input(node, 3)))
    axes = range(len(graph.padded_shape(name))) if stated is None else stated
    value = 0
    if optional_input(node, 2):
        given = graph.array(node.input[2])
        if given is None:
            raise UnboundedShape("its value is not constant")
        value = given.reshape(-1)[0]
    extents = dict(graph.extents.get(name, {}))
    for at, axis in enumerate(axes):
        before, after = amounts[at], amounts[at + len(axes)]
        if before == Extent(0) and after == Extent(0):
            continue
        if not before.is_constant or before.constant < 0:
            raise UnboundedShape("its amount before the elements is not constant")
        length = graph.shape(name)[axis] + before + after
        kept = graph.fill_padding(name, [axis], value)
        if before.constant:
            kept = _padded_before(graph, kept, axis, before.constant, value)
        held = graph.padded_shape(kept)[axis]
        most = max(0, length.upper_bound)
        name = (
            graph.cropped(kept, axis, most)
            if held > most
            else graph.padded(kept, axis, most, value)
        )
        extents[axis] = length
        graph.set_extents(name, extents)
    graph.write(helper.make_node("Identity", [name], node.output))
    graph.set_extents(node.output[0], extents)


def _padded_before(graph: BoundedGraph, name: str, axis: int, count: int, value: Any) -> str:
    padded = graph.padded_shape(name)
    shape = [count if at == axis else one for at, one in enumerate(padded)]
    kind = helper.tensor_dtype_to_np_dtype(graph.dtype(name))
    return graph.emit("Concat", [graph.constant(np.full(shape, value, kind)), name], axis=axis)


def expand(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Broadcast to extents that may be dynamic."""
    wanted = _extents_of_input(graph, node, 1)
    name = graph.tensor(node.input[0])
    have, padded = graph.shape(name), list(graph.padded_shape(name))
    rank = max(len(wanted), len(have))
    have = [Extent(1)] * (rank - len(have)) + have
    padded = [1] * (rank - len(padded)) + padded
    wanted = [Extent(1)] * (rank - len(wanted)) + wanted
    extents, stored = {}, []
    for axis, (one, other) in enumerate(zip(have, wanted, strict=True)):
        if one != other and Extent(1) not in (one, other):
            raise UnboundedShape("its extents are not known to be equal")
        extents[axis] = other if one == Extent(1) else one
        stored.append(max(0, other.upper_bound) if one == Extent(1) else padded[axis])
    if rank == len(graph.padded_shape(name)) and all(one == Extent(1) for one in have[1:]):
        graph.expanded_rows[node.output[0]] = name
    shape = graph.constant(np.array(stored, np.int64))
    graph.write(helper.make_node("Expand", [name, shape], node.output))
    graph.set_extents(node.output[0], extents)


def tile(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Repeat along axes; an axis of extent 1 a dynamic number of times."""
    repeats = _extents_of_input(graph, node, 1)
    name = graph.tensor(node.input[0])
    shape = graph.shape(name)
    extents, times = {}, []
    for axis, (extent, repeat) in enumerate(zip(shape, repeats, strict=True)):
        if not extent.is_constant and repeat != Extent(1):
            raise UnboundedShape("it repeats along an extent that is not constant")
        made = Product.of((extent, repeat)).extent
        assert made is not None
        extents[axis] = made
        times.append(repeat.upper_bound)
    graph.write(
        helper.make_node("Tile", [name, graph.constant(np.array(times, np.int64))], node.output)
    )
    graph.set_extents(node.output[0], extents)


def constant_of_shape(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Fill a tensor that has as many elements as there can be."""
    extents = _extents_of_input(graph, node, 0)
    value = node_attribute(node, "value")
    filler: Array = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    shape = [max(0, one.upper_bound) for one in extents]
    number = filler.reshape(-1)[0]
    if prod(shape) <= MOST_ELEMENTS:
        graph.add_constant(np.full(shape, number, filler.dtype), node.output[0])
    else:
        single = graph.constant(np.full([1] * len(shape), number, filler.dtype))
        stored = graph.constant(np.array(shape, np.int64))
        graph.write(helper.make_node("Expand", [single, stored], node.output))
    graph.set_extents(node.output[0], dict(enumerate(extents)))


def range_(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Count from a constant by a constant to a dynamic limit."""
    (start,), (limit,), (delta,) = (_extents_of_input(graph, node, at) for at in range(3))
    if not (start.is_constant and delta.is_constant and delta.constant > 0):
        raise UnboundedShape("its start or its step is not constant")
    span = maximum(graph, limit - start + (delta.constant - 1), Extent(0))
    extent = quotient(graph, span, delta.constant)
    assert extent is not None
    kind = helper.tensor_dtype_to_np_dtype(graph.dtype(node.input[0]))
    values = start.constant + delta.constant * np.arange(extent.upper_bound)
    graph.add_constant(values.astype(kind), node.output[0])
    graph.set_extents(node.output[0], {0: extent})
    if start.constant >= 0:
        graph.non_negative.add(node.output[0])


RULES: Mapping[str, Callable[[BoundedGraph, onnx.NodeProto], None]] = {
    "Transpose": transpose,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Flatten": flatten,
    "Reshape": reshape,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Pad": pad,
    "Expand": expand,
    "Tile": tile,
}
# Their results have the extents that an input states; the input is no tensor of many elements.
RULES_OF_STATED_EXTENTS: Mapping[str, Callable[[BoundedGraph, onnx.NodeProto], None]] = {
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Expand": expand,
    "Reshape": reshape,
    "Slice": slice_,
    "Pad": pad,
    "Tile": tile,
}
