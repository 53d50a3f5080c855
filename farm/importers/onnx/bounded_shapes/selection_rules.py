"""Rules of operators that select elements by value, index or rank, and of scatters."""

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
    """List the indices of the elements that are not zero."""
    found = _non_zero(graph, node.input[0])
    graph.write(helper.make_node("Identity", [found], node.output))
    graph.set_extents(node.output[0], graph.extents.get(found, {}))
    graph.non_negative.add(node.output[0])


def _non_zero(graph: BoundedGraph, name: str) -> str:
    """Return the indices. They are found once for a tensor, so that their number is one count."""
    found, padded = graph.non_zero_results.get(name, ""), graph.padded_shape(name)
    if not found and 0 in padded:
        found = graph.constant(np.zeros((len(padded), 0), np.int64))
    elif not found:
        found, count = graph.new_name(name), graph.new_name(f"{name}/count")
        most = prod(padded)
        filled = graph.fill_padding(name, range(len(padded)), 0)
        graph.emit_own(
            "BoundedNonZero",
            [filled],
            [
                (found, TensorProto.INT64, [max(1, len(padded)), most]),
                (count, TensorProto.INT64, [1]),
            ],
        )
        graph.set_extents(found, {1: Extent.of(Count(count, most))})
    graph.non_zero_results[name] = found
    return found


def compress(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the elements along an axis, or of a whole tensor, for which a condition holds."""
    data, axis = graph.tensor(node.input[0]), node_attribute(node, "axis")
    if axis is None:
        if data in graph.extents:
            raise UnboundedShape("it selects from a whole tensor of dynamic extents")
        data, axis = graph.reshaped(data, [prod(graph.padded_shape(data))]), 0
    found = _non_zero(graph, graph.tensor(node.input[1]))
    indices = graph.reshaped(found, [graph.padded_shape(found)[1]])
    graph.set_extents(indices, {0: graph.shape(found)[1]})
    graph.non_negative.add(indices)
    gather(graph, helper.make_node("Gather", [data, indices], node.output, axis=axis))


def non_max_suppression(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the boxes with the highest scores that overlap no better one, class by class."""
    boxes, scores = (graph.tensor(name) for name in node.input[:2])
    shape = graph.shape(boxes)
    if shape[1] != graph.shape(scores)[2] or any(
        not one.is_constant for one in (shape[0], *graph.shape(scores)[:2])
    ):
        raise UnboundedShape("the numbers of its boxes and scores are not known to be equal")
    count, classes = (
        min(graph.padded_shape(boxes)[1], graph.padded_shape(scores)[2]),
        graph.padded_shape(scores)[1],
    )
    boxes, scores = graph.cropped(boxes, 1, count), graph.cropped(scores, 2, count)
    limit = optional_input(node, 2)
    values = graph.known_shape_data(limit) if limit else np.array([Extent(0)], object)
    most = Extent(_LIMIT) if values is None else values.flat[0]
    per_class = min(count, max(0, most.upper_bound))
    room = graph.padded_shape(boxes)[0] * classes * per_class
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
    graph.non_negative.add(node.output[0])


def _threshold(graph: BoundedGraph, node: onnx.NodeProto, place: int, default: float) -> str:
    name = optional_input(node, place)
    if not name:
        return graph.constant(np.array([default], np.float32))
    return graph.reshaped(graph.tensor(name), [1])


def top_k(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Select the highest or lowest elements of an axis, as many as a count says."""
    data = graph.tensor(node.input[0])
    stated = graph.known_shape_data(optional_input(node, 1)) if len(node.input) > 1 else None
    if stated is None:
        raise UnboundedShape("how many elements it selects is not known")
    wanted, padded = stated.flat[0], graph.padded_shape(data)
    axis = node_attribute(node, "axis", -1) % len(padded)
    extents = dict(graph.extents.get(data, {}))
    largest, count = node_attribute(node, "largest", 1), min(wanted.upper_bound, padded[axis])
    if axis in extents and axis == len(padded) - 1 and graph.dtype(data) == TensorProto.FLOAT:
        values, indices = (name or graph.new_name(node.name) for name in (*node.output, "")[:2])
        shape = (*padded[:-1], count)
        graph.emit_own(
            "BoundedTopK",
            [data, graph.extent_tensor(extents[axis])],
            [(values, TensorProto.FLOAT, shape), (indices, TensorProto.INT64, shape)],
            count=count,
            largest=largest,
        )
    else:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[0] = graph.fill_padding(data, [axis], graph.lowest(data, highest=not largest))
        changed.input[1] = graph.constant(np.array([count], np.int64))
        graph.write(changed)
    extents[axis] = wanted
    for name in node.output:
        if name:
            graph.set_extents(name, extents)
    graph.non_negative.update(node.output[1:])


def gather(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Gather along one axis."""
    data, indices = (graph.tensor(name) for name in node.input)
    shape = graph.shape(data)
    axis = node_attribute(node, "axis", 0) % len(shape)
    indices = _non_negative_indices(graph, indices, [shape[axis]])
    graph.write(helper.make_node("Gather", [data, indices], node.output, axis=axis))
    held = [*shape[:axis], *graph.shape(indices), *shape[axis + 1 :]]
    graph.set_extents(node.output[0], dict(enumerate(held)))


def gather_nd(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Gather at points of several coordinates."""
    data, points = (graph.tensor(name) for name in node.input)
    batch, shape, at = node_attribute(node, "batch_dims", 0), graph.shape(data), graph.shape(points)
    if any(not one.is_constant for one in (*at[:batch], *shape[:batch], at[-1])):
        raise UnboundedShape("the extents of its batch are not constant")
    axes = at[-1].constant
    if axes == 1 and not batch:  # one kernel, which also clamps the indices
        indices = graph.reshaped(points, graph.padded_shape(points)[:-1])
        graph.set_extents(indices, dict(enumerate(at[:-1])))
        if points in graph.non_negative:
            graph.non_negative.add(indices)
        gather(graph, helper.make_node("Gather", [data, indices], node.output))
        return
    points = _non_negative_indices(graph, points, shape[batch : batch + axes])
    changed = helper.make_node("GatherND", [data, points], node.output)
    if batch:
        changed.attribute.append(helper.make_attribute("batch_dims", batch))
    graph.write(changed)
    graph.set_extents(node.output[0], dict(enumerate([*at[:-1], *shape[batch + axes :]])))


def gather_elements(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Gather, for each index, the element of its row."""
    data, indices = (graph.tensor(name) for name in node.input)
    axis = node_attribute(node, "axis", 0) % len(graph.padded_shape(data))
    indices = _non_negative_indices(graph, indices, [graph.shape(data)[axis]])
    graph.write(helper.make_node("GatherElements", [data, indices], node.output, axis=axis))
    graph.set_extents(node.output[0], graph.extents.get(indices, {}))


def _non_negative_indices(graph: BoundedGraph, indices: str, extents: Sequence[Extent]) -> str:
    """Return the indices with non-negative ones in the place of those that count from the end.

    `extents` has the extent of the axis that is indexed, or one for each coordinate of a point.
    """
    if indices in graph.non_negative or all(extent.is_constant for extent in extents):
        return indices
    known = graph.array(indices)
    if known is not None and (known >= 0).all():
        return indices
    parts = [graph.extent_tensor(extent) for extent in extents]
    ends = parts[0] if len(parts) == 1 else graph.emit("Concat", parts, axis=0)
    if not graph.padded_shape(indices):
        ends = graph.reshaped(ends, [])
    kind = graph.dtype(indices)
    if kind != TensorProto.INT64:
        ends = graph.emit("Cast", [ends], to=kind)
    zero = graph.constant(np.array(0, helper.tensor_dtype_to_np_dtype(kind)))
    shifted = graph.emit("Add", [indices, ends])
    made = graph.emit("Where", [graph.emit("Less", [indices, zero]), shifted, indices])
    graph.set_extents(made, graph.extents.get(indices, {}))
    graph.non_negative.add(made)
    return made


def _scatter_rows(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    """Write a scatter of whole rows along the first axis; return whether the node is one.

    Its rows replace others, or are added to them, as the messages of a graph's edges are.
    """
    data, indices, updates = (graph.tensor(name) for name in node.input)
    reduction = node_attribute(node, "reduction", b"none")
    padded = graph.padded_shape(data)
    if node.op_type == "ScatterElements":
        rows = graph.expanded_rows.get(indices, "")
        if not rows or node_attribute(node, "axis", 0) % len(padded):
            return False
    else:
        rows = indices
        if len(graph.padded_shape(indices)) != 2 or graph.padded_shape(indices)[1] != 1:
            return False
    if (
        set(graph.extents.get(rows, {})) != {0}
        or reduction not in (b"none", b"add")
        or graph.padded_shape(updates)[1:] != padded[1:]
        or graph.shape(updates)[0] != graph.shape(rows)[0]
        or graph.padded_shape(updates)[0] != graph.padded_shape(rows)[0]
        or any(axis for axis in graph.extents.get(updates, {}))
    ):
        return False
    flat = graph.reshaped(rows, graph.padded_shape(rows)[:1])
    graph.set_extents(flat, {0: graph.extents[rows][0]})
    flat = _non_negative_indices(graph, flat, graph.shape(data)[:1])
    if graph.dtype(flat) != TensorProto.INT64:
        flat = graph.emit("Cast", [flat], to=TensorProto.INT64)
    count = graph.extent_tensor(graph.extents[rows][0])
    output = (node.output[0], graph.dtype(data), padded)
    graph.emit_own("ScatterRows", [data, flat, count, updates], [output], reduction=reduction)
    graph.set_extents(node.output[0], graph.extents.get(data, {}))
    return True


def scatter(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Scatter; padding goes to a row more, which is sliced off."""
    if _scatter_rows(graph, node):
        return
    data, indices, updates = (graph.tensor(name) for name in node.input)
    by_points = node.op_type == "ScatterND"
    axis = 0 if by_points else node_attribute(node, "axis", 0) % len(graph.padded_shape(data))
    shape, padded = graph.shape(data), graph.padded_shape(data)
    axes = graph.padded_shape(indices)[-1] if by_points else 1
    indices = _non_negative_indices(graph, indices, shape[axis : axis + axes])
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    dynamic = graph.extents.get(indices, {})
    spare = bool(dynamic)
    if spare:
        data = graph.padded(data, axis, padded[axis] + 1)
        held, kind = (
            graph.padded_shape(indices),
            helper.tensor_dtype_to_np_dtype(graph.dtype(indices)),
        )
        outside = np.full(held[-1:] if by_points else (), padded[axis], kind)
        if by_points:
            outside[1:] = 0
        for one, extent in dynamic.items():
            inside = graph.valid_mask(extent, held[one], one, len(held))
            indices = graph.emit("Where", [inside, indices, graph.constant(outside)])
    del changed.input[:]
    changed.input.extend([data, indices, updates])
    changed.output[0] = graph.new_name(node.output[0]) if spare else node.output[0]
    graph.write(changed)
    if spare:
        cut = graph.sliced(changed.output[0], axis, 0, padded[axis])
        graph.write(helper.make_node("Identity", [cut], node.output))
    graph.set_extents(node.output[0], dict(enumerate(shape)))


# Operators whose output shape depends on values, whatever their inputs are
DATA_DEPENDENT: Mapping[str, Rule] = {
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
