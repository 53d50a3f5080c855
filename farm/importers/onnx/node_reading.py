"""Read attributes, inputs and subgraphs of nodes, whichever opset wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx


def node_attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, or the default."""
    for one in node.attribute:
        if one.name == name:
            return onnx.helper.get_attribute_value(one)
    return default


def optional_input(node: onnx.NodeProto, index: int) -> str:
    """Return the name of an input; "" if the node does not have it."""
    return node.input[index] if len(node.input) > index else ""


def stated_axes(node: onnx.NodeProto, given: np.ndarray[Any, Any] | None) -> list[int] | None:
    """Return the axes of an attribute, or those that an input has; None if neither states them."""
    found = node_attribute(node, "axes")
    if found is not None:
        return [int(axis) for axis in found]
    return None if given is None else [int(axis) for axis in np.ravel(given)]


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that are attributes of a node."""
    found = [one.g for one in node.attribute if one.HasField("g")]
    return found + [graph for one in node.attribute for graph in one.graphs]


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs within it."""
    yield graph
    for node in graph.node:
        for subgraph in subgraphs(node):
            yield from all_graphs(subgraph)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes of a graph, including those of subgraphs."""
    for node in graph.node:
        yield node
        for subgraph in subgraphs(node):
            yield from all_nodes(subgraph)


def names_read(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, including those inside its subgraphs."""
    names = set(node.input)
    for subgraph in subgraphs(node):
        names |= {name for inner in subgraph.node for name in names_read(inner)}
        names |= {value.name for value in subgraph.output}
    return names
