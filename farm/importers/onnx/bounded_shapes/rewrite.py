"""Rewrite a graph with data-dependent shapes as one of padded shapes and counts.

The result of NonZero or NonMaxSuppression gets as many elements as it can have, and a count of
those that are valid. The operators behind it compute on the padded shape; those that would mix
valid elements with padding are rewritten. The graph's outputs are sliced to their dynamic extents
at the end. XLA has this as bounded dynamic shapes (DynamicPadder, PadToStatic, SliceToDynamic).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx

from farm.errors import ModelError
from farm.importers.onnx.bounded_shapes import arithmetic_rules, layout_rules, selection_rules
from farm.importers.onnx.bounded_shapes.branches import write_branches
from farm.importers.onnx.bounded_shapes.extent import Extent
from farm.importers.onnx.bounded_shapes.graph_writer import DOMAIN, BoundedGraph, UnboundedShape
from farm.importers.onnx.bounded_shapes.shape_data_rules import compute_shape_data, minimum
from farm.importers.onnx.inferred_types import known_types
from farm.importers.onnx.node_evaluation import DEFAULT_DOMAINS, MOST_ELEMENTS
from farm.importers.onnx.node_reading import all_nodes, names_read, subgraphs

_RULES = {**layout_rules.RULES, **arithmetic_rules.RULES, **selection_rules.RULES}
# Their result is known not to be negative if their first input is
_KEEP_SIGN = (
    *("Transpose", "Squeeze", "Unsqueeze", "Flatten", "Reshape", "Slice", "Identity", "Cast"),
    *("Gather", "GatherND", "GatherElements", "Expand", "Tile"),
)
_FIX = (
    "end the model before it and do that step outside, or export the model with a fixed number of "
    "results"
)


@dataclass(frozen=True, slots=True)
class BoundedModel:
    """A model of padded shapes, and the padded shapes of outputs with dynamic extents, by name."""

    model: onnx.ModelProto
    output_bounds: dict[str, tuple[int, ...]]


def has_data_dependent_shapes(model: onnx.ModelProto) -> bool:
    """Return whether a model has operators whose output shape depends on values."""
    return any(node.op_type in selection_rules.DATA_DEPENDENT for node in all_nodes(model.graph))


def bound_shapes(model: onnx.ModelProto, what: str) -> BoundedModel:
    """Return a model with data-dependent shapes as one of padded shapes.

    Raises ModelError, which names the node, if an operator has no rule for dynamic extents.
    """
    types = known_types(model)
    given = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    writer = BoundedGraph(
        opsets={one.domain: one.version for one in model.opset_import},
        types={name: types[name] for name in given},
        constants={
            tensor.name: tensor
            for tensor in model.graph.initializer
            if prod(tensor.dims) <= MOST_ELEMENTS
        },
        inferred=types,
    )
    _visit(writer, model.graph.node, what)
    bounds = {}
    outputs = []
    for value in model.graph.output:
        name = writer.tensor(value.name)
        if name in writer.extents:
            bounds[name] = writer.padded_shape(name)
            name = _slice_to_dynamic(writer, name)
        outputs.append(name)
    return BoundedModel(_model(model, writer, outputs), bounds)


def _visit(graph: BoundedGraph, nodes: Sequence[onnx.NodeProto], what: str) -> None:
    """Write nodes in order. Raises ModelError for one that cannot be written."""
    for node in nodes:
        try:
            _visit_node(graph, node, what)
        except UnboundedShape as error:
            reason = "how many results it gives depends on the values of its inputs"
            if node.op_type not in selection_rules.DATA_DEPENDENT:
                reason = "the extents of its inputs depend on values"
            raise ModelError(
                f"{what} uses what farm does not support: {node.op_type} "
                f"(node {node.name or '-> ' + node.output[0]}): {reason}",
                str(error),
                _FIX,
            ) from error


def _visit_node(graph: BoundedGraph, node: onnx.NodeProto, what: str) -> None:
    if node.domain not in DEFAULT_DOMAINS:
        _write_unchanged(graph, node)
        return
    if compute_shape_data(graph, node):
        return
    if node.op_type == "If" and _has_dynamic_extents(graph, node):
        write_branches(graph, node, lambda nodes: _visit(graph, nodes, what))
        return
    if _takes_stated_extents(graph, node):
        layout_rules.RULES_OF_STATED_EXTENTS[node.op_type](graph, node)
    elif node.op_type in selection_rules.DATA_DEPENDENT and not _is_constant(graph, node):
        graph.tensor(node.input[0])
        selection_rules.DATA_DEPENDENT[node.op_type](graph, node)
    else:
        for name in node.input:
            graph.tensor(name)
        rule = _RULES.get(node.op_type)
        if rule is not None and any(name in graph.extents for name in node.input):
            rule(graph, node)
        else:
            _write_unchanged(graph, node)
    if node.op_type in _KEEP_SIGN and node.input[0] in graph.non_negative:
        graph.non_negative.add(node.output[0])


def _has_dynamic_extents(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    """Return whether an `If` has a known condition, or branches with dynamic extents."""
    return (
        node.input[0] in graph.constants
        or any(name in graph.extents or name in graph.shape_data for name in names_read(node))
        or any(
            inner.op_type in selection_rules.DATA_DEPENDENT
            for branch in subgraphs(node)
            for inner in all_nodes(branch)
        )
    )


def _takes_stated_extents(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    """Return whether an input of a node states extents that are dynamic."""
    return node.op_type in layout_rules.RULES_OF_STATED_EXTENTS and any(
        name in graph.shape_data for name in node.input
    )


def _is_constant(graph: BoundedGraph, node: onnx.NodeProto) -> bool:
    return all(name in graph.constants for name in node.input if name)


def _write_unchanged(graph: BoundedGraph, node: onnx.NodeProto) -> None:
    """Write a node of tensors whose extents are constant."""
    for name in names_read(node):
        graph.tensor(name)
        if name in graph.extents:
            raise UnboundedShape(f"farm does not know how {node.op_type} computes on them")
    graph.write(node)


def _slice_to_dynamic(graph: BoundedGraph, name: str) -> str:
    """Write the operator that returns the valid elements, and return the name of its result."""
    extents, result = graph.extents[name], graph.new_name(name)
    axes, padded = sorted(extents), graph.padded_shape(name)
    counts = [
        graph.extent_tensor(minimum(graph, extents[axis], Extent(padded[axis]))) for axis in axes
    ]
    graph.emit_own(
        "SliceToDynamic",
        [name, *counts],
        [(result, graph.dtype(name), padded)],
        axes=axes,
    )
    return result


def _model(model: onnx.ModelProto, writer: BoundedGraph, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the model with the nodes that were written."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    written = {tensor.name for tensor in writer.added}
    kept = [tensor for tensor in graph.initializer if tensor.name not in written]
    for field in ("node", "initializer", "value_info"):
        graph.ClearField(field)
    needed = _needed(writer.nodes, outputs)
    graph.node.extend(needed)
    used = {name for node in needed for name in names_read(node)} | set(outputs)
    graph.initializer.extend(tensor for tensor in (*kept, *writer.added) if tensor.name in used)
    known = {value.name for value in (*graph.input, *graph.initializer)} | set(outputs)
    graph.value_info.extend(
        onnx.ValueInfoProto(name=name, type=writer.types[name])
        for node in needed
        for name in node.output
        if name in writer.types and name not in known
    )
    for value, name in zip(graph.output, outputs, strict=True):
        value.name = name
        if name in writer.types:
            value.type.CopyFrom(writer.types[name])
    result.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return result


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes on which the outputs depend."""
    read, kept = set(outputs), []
    for node in reversed(nodes):
        if read.intersection(node.output):
            kept.append(node)
            read |= set(names_read(node))
    return kept[::-1]
