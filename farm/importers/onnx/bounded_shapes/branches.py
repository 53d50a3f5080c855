"""Compute both branches of an `If` whose results have dynamic extents, and choose between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import onnx
from onnx import helper, numpy_helper

from farm.importers.onnx.bounded_shapes.extent import Count, Extent
from farm.importers.onnx.bounded_shapes.graph_writer import BoundedGraph, UnboundedShape
from farm.importers.onnx.node_reading import node_attribute
from farm.importers.onnx.rewrites.unroll import copy_body

_branch_numbers = itertools.count()
Visit = Callable[[Sequence[onnx.NodeProto]], None]


def write_branches(graph: BoundedGraph, node: onnx.NodeProto, visit: Visit) -> None:
    """Write the branch that a known condition selects; else both, and a selection.

    `visit` writes nodes.
    """
    condition = graph.array(node.input[0])
    branches = [node_attribute(node, name) for name in ("then_branch", "else_branch")]
    if condition is not None:
        chosen = branches[0 if bool(condition.reshape(-1)[0]) else 1]
        results = _inlined(graph, node, chosen, visit)
        for name, output in zip(results, node.output, strict=True):
            _write_same(graph, name, output)
        return
    pairs = [_inlined(graph, node, branch, visit) for branch in branches]
    chooser = graph.reshaped(graph.tensor(node.input[0]), [1])
    for one, other, output in zip(*pairs, node.output, strict=True):
        if output:
            _select(graph, chooser, graph.tensor(one), graph.tensor(other), output)


def _inlined(
    graph: BoundedGraph, node: onnx.NodeProto, branch: onnx.GraphProto, visit: Visit
) -> list[str]:
    """Write the nodes of a branch, and return the names of its results."""
    copy = copy_body(branch, [], f"{node.name or node.output[0]}/branch{next(_branch_numbers)}/")
    for tensor in copy.initializers:
        graph.add_constant(numpy_helper.to_array(tensor), tensor.name)
    visit(copy.nodes)
    return copy.results


def _write_same(graph: BoundedGraph, name: str, output: str) -> None:
    if output:
        graph.write(helper.make_node("Identity", [graph.tensor(name)], [output]))
        graph.set_extents(output, graph.extents.get(name, {}))


def _select(graph: BoundedGraph, chooser: str, one: str, other: str, output: str) -> None:
    """Write one tensor if `chooser` holds, else the other; their extents may differ."""
    shapes = graph.shape(one), graph.shape(other)
    padded_shapes = graph.padded_shape(one), graph.padded_shape(other)
    if len(shapes[0]) != len(shapes[1]):
        raise UnboundedShape("its branches give tensors of different ranks")
    extents: dict[int, Extent] = {}
    for axis, (left, right) in enumerate(zip(*shapes, strict=True)):
        extents[axis] = left
        if left != right:
            parts = [graph.extent_tensor(extent) for extent in (left, right)]
            made = graph.emit("Where", [chooser, *parts])
            extents[axis] = Extent.of(Count(made, max(left.upper_bound, right.upper_bound)))
    stored = [max(pair) for pair in zip(*padded_shapes, strict=True)]
    filled = [
        name for name, padded in zip((one, other), padded_shapes, strict=True) if 0 not in padded
    ]
    if len(filled) == 2:
        for axis, length in enumerate(stored):
            one, other = (graph.padded(name, axis, length) for name in (one, other))
        chosen = graph.reshaped(chooser, [1] * len(stored))
        graph.write(helper.make_node("Where", [chosen, one, other], [output]))
    else:  # a tensor without elements has none to choose
        whole = filled[0] if filled else one
        for axis, length in enumerate(stored):
            whole = graph.padded(whole, axis, length)
        graph.write(helper.make_node("Identity", [whole], [output]))
    graph.set_extents(output, extents)
