"""Rules of operators that select elements by value, place or rank, and that write to places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper

from farm.importers.onnx.bounded_shapes.extent import Count, Extent
from farm.importers.onnx.bounded_shapes.graph_writer import BoundedGraph, UnboundedShape
from farm.importers.onnx.node_reading import node_attribute, optional_input

Rule = Callable[[BoundedGraph, onnx.NodeProto], None]
_LIMIT = 2**31 - 1


def non_zero(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """List the places of the elements that are not zero."""
    found = _non_zero(graph, node.input[0])
    graph.write(helper.make_node("Identity", [found], node.output))
    graph.set_extents(node.output[0], graph.extents.get(found, {}))
    graph.is_index.add(node.output[0])


def _non_zero(graph: BoundedGraph, name: str) -> str:
    """Return the places; those of one tensor are found once, so that their number is one count."""
    found, storage = graph.places_found.get(name, ""), graph.storage(name)
    if not found and 0 in storage:
        found = graph.constant(np.zeros((len(storage), 0), np.int64))
    elif not found:
        found, count = graph.new_name(name), graph.new_name(f"{name}/count")
        most = prod(storage)
        filled = graph.filled(name, range(len(storage)), 0)
        graph.emit_own(
            "BoundedNonZero",
            [filled],
            [
                (found, TensorProto.INT64, [max(1, len(storage)), most]),
                (count, TensorProto.INT64, [1]),
            ],
        )
        graph.set_extents(found, {1: Extent.of(Count(count, most))})
    graph.places_found[name] = found
    return found


def compress(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the elements along an axis, or of a whole tensor, for which a condition holds."""
    data, axis = graph.tensor(node.input[0]), node_attribute(node, "axis")
    if axis is None:
        if data in graph.extents:
            raise UnboundedShape("it selects from a whole tensor of counted extents")
        data, axis = graph.reshaped(data, [prod(graph.storage(data))]), 0
    found = _non_zero(graph, graph.tensor(node.input[1]))
    places = graph.reshaped(found, [graph.storage(found)[1]])
    graph.set_extents(places, {0: graph.shape(found)[1]})
    graph.is_index.add(places)
    gather(graph, helper.make_node("Gather", [data, places], node.output, axis=axis))


def non_max_suppression(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the boxes with the highest scores that overlap no better one, class by class."""
    boxes, scores = (graph.tensor(name) for name in node.input[:2])
    shape = graph.shape(boxes)
    if shape[1] != graph.shape(scores)[2] or any(
        not one.is_constant for one in (shape[0], *graph.shape(scores)[:2])
    ):
        raise UnboundedShape("the numbers of its boxes and scores are not known to be equal")
    count, classes = (
        min(graph.storage(boxes)[1], graph.storage(scores)[2]),
        graph.storage(scores)[1],
    )
    boxes, scores = graph.cropped(boxes, 1, count), graph.cropped(scores, 2, count)
    limit = optional_input(node, 2)
    values = graph.known_numbers(limit) if limit else np.array([Extent(0)], object)
    most = Extent(_LIMIT) if values is None else values.flat[0]
    per_class = min(count, max(0, most.most))
    room = graph.storage(boxes)[0] * classes * per_class
    if not room:
        graph.add_constant(np.zeros((0, 3), np.int64), node.output[0])
        return
    limit = (
        graph.reshaped(graph.tensor(limit), [1]) if values is None else graph.extent_tensor(most)
    )
    found, number = graph.new_name(node.output[0]), graph.new_name(f"{node.output[0]}/count")
    graph.emit_own(
        "BoundedNonMaxSuppression",
        [
            boxes,
            scores,
            graph.extent_tensor(shape[1]),
            limit,
            _threshold(graph, node, 3, 0.0),
            _threshold(graph, node, 4, -np.inf),
        ],
        [(found, TensorProto.INT64, [room, 3]), (number, TensorProto.INT64, [1])],
        center_point_box=node_attribute(node, "center_point_box", 0),
        per_class=per_class,
    )
    graph.write(helper.make_node("Identity", [found], node.output))
    graph.set_extents(node.output[0], {0: Extent.of(Count(number, room))})
    graph.is_index.add(node.output[0])


def _threshold(graph: BoundedGraph, node: onnx.NodeProto, place: int, default: float) -> str:
    name = optional_input(node, place)
    if not name:
        return graph.constant(np.array([default], np.float32))
    return graph.reshaped(graph.tensor(name), [1])


def top_k(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the highest or lowest elements of an axis, as many as a count says."""
    data = graph.tensor(node.input[0])
    numbers = graph.known_numbers(optional_input(node, 1)) if len(node.input) > 1 else None
    if numbers is None:
        raise UnboundedShape("how many elements it selects is not known")
    wanted, storage = numbers.flat[0], graph.storage(data)
    axis = node_attribute(node, "axis", -1) % len(storage)
    extents = dict(graph.extents.get(data, {}))
    largest, count = node_attribute(node, "largest", 1), min(wanted.most, storage[axis])
    if axis in extents and axis == len(storage) - 1 and graph.dtype(data) == TensorProto.FLOAT:
        values, places = (name or graph.new_name(node.name) for name in (*node.output, "")[:2])
        shape = (*storage[:-1], count)
        graph.emit_own(
            "CountedTopK",
            [data, graph.extent_tensor(extents[axis])],
            [(values, TensorProto.FLOAT, shape), (places, TensorProto.INT64, shape)],
            count=count,
            largest=largest,
        )
    else:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[0] = graph.filled(data, [axis], graph.lowest(data, highest=not largest))
        changed.input[1] = graph.constant(np.array([count], np.int64))
        graph.write(changed)
    extents[axis] = wanted
    for name in node.output:
        if name:
            graph.set_extents(name, extents)
    graph.is_index.update(node.output[1:])


def gather(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select places of one axis."""
    data, places = (graph.tensor(name) for name in node.input)
    shape = graph.shape(data)
    axis = node_attribute(node, "axis", 0) % len(shape)
    places = _from_start(graph, places, [shape[axis]])
    graph.write(helper.make_node("Gather", [data, places], node.output, axis=axis))
    held = [*shape[:axis], *graph.shape(places), *shape[axis + 1 :]]
    graph.set_extents(node.output[0], dict(enumerate(held)))


def gather_nd(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the parts of a tensor at points."""
    data, points = (graph.tensor(name) for name in node.input)
    batch, shape, at = node_attribute(node, "batch_dims", 0), graph.shape(data), graph.shape(points)
    if any(not one.is_constant for one in (*at[:batch], *shape[:batch], at[-1])):
        raise UnboundedShape("the extents of its batch are not constant")
    axes = at[-1].constant
    if axes == 1 and not batch:  # one kernel, which also keeps the places within the tensor
        places = graph.reshaped(points, graph.storage(points)[:-1])
        graph.set_extents(places, dict(enumerate(at[:-1])))
        if points in graph.is_index:
            graph.is_index.add(places)
        gather(graph, helper.make_node("Gather", [data, places], node.output))
        return
    points = _from_start(graph, points, shape[batch : batch + axes])
    changed = helper.make_node("GatherND", [data, points], node.output)
    if batch:
        changed.attribute.append(helper.make_attribute("batch_dims", batch))
    graph.write(changed)
    graph.set_extents(node.output[0], dict(enumerate([*at[:-1], *shape[batch + axes :]])))


def gather_elements(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select, for each index, the element of its row."""
    data, places = (graph.tensor(name) for name in node.input)
    axis = node_attribute(node, "axis", 0) % len(graph.storage(data))
    places = _from_start(graph, places, [graph.shape(data)[axis]])
    graph.write(helper.make_node("GatherElements", [data, places], node.output, axis=axis))
    graph.set_extents(node.output[0], graph.extents.get(places, {}))


def _from_start(graph: BoundedGraph, places: str, extents: Sequence[Extent]) -> str:
    """Return places that count from the start, if negative ones count from a counted end.

    `extents` are those of the axes that the last axis of `places` tells apart, or of all of them.
    """
    if places in graph.is_index or all(extent.is_constant for extent in extents):
        return places
    known = graph.array(places)
    if known is not None and (known >= 0).all():
        return places
    parts = [graph.extent_tensor(extent) for extent in extents]
    ends = parts[0] if len(parts) == 1 else graph.emit("Concat", parts, axis=0)
    if not graph.storage(places):
        ends = graph.reshaped(ends, [])
    kind = graph.dtype(places)
    if kind != TensorProto.INT64:
        ends = graph.emit("Cast", [ends], to=kind)
    zero = graph.constant(np.array(0, helper.tensor_dtype_to_np_dtype(kind)))
    shifted = graph.emit("Add", [places, ends])
    made = graph.emit("Where", [graph.emit("Less", [places, zero]), shifted, places])
    graph.set_extents(made, graph.extents.get(places, {}))
    graph.is_index.add(made)
    return made


def _scatter_rows(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    """Write whole rows to places of the first axis, if a node does; return whether it does."""
    data, places, updates = (graph.tensor(name) for name in node.input)
    storage = graph.storage(data)
    if node.op_type == "ScatterElements":
        rows = graph.spread_rows.get(places, "")
        if not rows or node_attribute(node, "axis", 0) % len(storage):
            return False
    else:
        rows = places
        if len(graph.storage(places)) != 2 or graph.storage(places)[1] != 1:
            return False
    if (
        set(graph.extents.get(rows, {})) != {0}
        or node_attribute(node, "reduction", b"none") != b"none"
        or graph.storage(updates)[1:] != storage[1:]
        or graph.shape(updates)[0] != graph.shape(rows)[0]
        or graph.storage(updates)[0] != graph.storage(rows)[0]
        or any(axis for axis in graph.extents.get(updates, {}))
    ):
        return False
    flat = graph.reshaped(rows, graph.storage(rows)[:1])
    graph.set_extents(flat, {0: graph.extents[rows][0]})
    flat = _from_start(graph, flat, graph.shape(data)[:1])
    if graph.dtype(flat) != TensorProto.INT64:
        flat = graph.emit("Cast", [flat], to=TensorProto.INT64)
    count = graph.extent_tensor(graph.extents[rows][0])
    output = (node.output[0], graph.dtype(data), storage)
    graph.emit_own("ScatterRows", [data, flat, count, updates], [output])
    graph.set_extents(node.output[0], graph.extents.get(data, {}))
    return True


def scatter(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Write elements to places; those of places that hold none go to a row that is cut off."""
    if _scatter_rows(graph, node):
        return
    data, places, updates = (graph.tensor(name) for name in node.input)
    by_points = node.op_type == "ScatterND"
    axis = 0 if by_points else node_attribute(node, "axis", 0) % len(graph.storage(data))
    shape, storage = graph.shape(data), graph.storage(data)
    axes = graph.storage(places)[-1] if by_points else 1
    places = _from_start(graph, places, shape[axis : axis + axes])
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    counted = graph.extents.get(places, {})
    spare = bool(counted)
    if spare:
        data = graph.padded(data, axis, storage[axis] + 1)
        held, kind = graph.storage(places), helper.tensor_dtype_to_np_dtype(graph.dtype(places))
        outside = np.full(held[-1:] if by_points else (), storage[axis], kind)
        if by_points:
            outside[1:] = 0
        for one, extent in counted.items():
            inside = graph.is_element(extent, held[one], one, len(held))
            places = graph.emit("Where", [inside, places, graph.constant(outside)])
    del changed.input[:]
    changed.input.extend([data, places, updates])
    changed.output[0] = graph.new_name(node.output[0]) if spare else node.output[0]
    graph.write(changed)
    if spare:
        cut = graph.sliced(changed.output[0], axis, 0, storage[axis])
        graph.write(helper.make_node("Identity", [cut], node.output))
    graph.set_extents(node.output[0], dict(enumerate(shape)))


# Their number of results depends on values, whatever their inputs are.
SOURCES: Mapping[str, Rule] = {
    "NonZero": non_zero,
    "NonMaxSuppression": non_max_suppression,
    "Compress": compress,
}
RULES: Mapping[str, Rule] = {
    "TopK": top_k,
    "Gather": gather,
    "GatherND": gather_nd,
    "GatherElements": gather_elements,
    "ScatterND": scatter,
    "ScatterElements": scatter,
}
