"""Summarise an ONNX file for `farm check` without importing it.

The outline lists inputs, outputs, weights, operators and everything that cannot be imported. With
values for inputs, it counts what they leave of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx

from farm.importers.onnx.input_shapes import axes_in_words, fed_dtype, output_axes
from farm.importers.onnx.load import OpenedModel, open_and_simplify
from farm.importers.onnx.node_reading import all_nodes
from farm.importers.onnx.operator_support import has_converter, import_problems
from farm.importers.onnx.rewrites.inputs_to_initializers import turn_inputs_into_initializers
from farm.importers.onnx.rewrites.simplify import simplify_graph
from farm.importers.summary import ModelSummary
from farm.types import Model, describe_shape

_NO_WEIGHTS = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING)


def summarize(source: Model) -> ModelSummary:
    """Return the outline of a file; raise ModelError if it is unreadable or leaves shapes open."""
    opened = open_and_simplify(source)
    as_written = opened.written
    graph = _remaining(opened) if opened.inputs.constants else as_written.graph
    weights = list(_weights(graph))
    operators = Counter(
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        for node in all_nodes(graph)
    )
    return ModelSummary(
        inputs=tuple(
            f"{spec.name} {spec.dtype} {describe_shape(spec)}" for spec in opened.inputs.fed
        ),
        outputs=tuple(_shown(value) for value in as_written.graph.output),
        parameters=sum(prod(tensor.dims) for tensor in weights),
        parameter_bytes=sum(_nbytes(tensor) for tensor in weights),
        operators=dict(operators.most_common()),
        problems=tuple(import_problems(opened.simplified)),
        source=Path(source.source).name,
    )


def _remaining(opened: OpenedModel) -> onnx.GraphProto:
    """Return the graph that is left once the constant inputs are folded.

    Branches that are not taken are gone, and so are the weights that no node reads any more.
    """
    graph = simplify_graph(
        turn_inputs_into_initializers(opened.written, opened.inputs.constants),
        opened.inputs.fed,
        has_converter,
    ).graph
    read = {name for node in all_nodes(graph) for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    computing = [node for node in graph.node if node.op_type != "Identity"]  # folding adds some
    return onnx.GraphProto(node=computing, initializer=kept)


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the weights of a graph and its subgraphs: initializers, and Constant nodes.

    int64 and boolean tensors of Constant nodes are shapes, axes and masks.
    """
    yield from graph.initializer
    for node in all_nodes(graph):
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from subgraph.initializer
            constant = (
                node.op_type == "Constant"
                and node.domain in ("", "ai.onnx")
                and attribute.name == "value"
            )
            if constant and attribute.t.data_type not in _NO_WEIGHTS:
                yield attribute.t


def _shown(value: onnx.ValueInfoProto) -> str:
    """Return an output's name, type and shape as text."""
    element = value.type.tensor_type.elem_type
    dtype = fed_dtype(element) or onnx.TensorProto.DataType.Name(element).lower()
    return f"{value.name} {dtype} {axes_in_words(output_axes(value))}"


def _nbytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor in bytes."""
    return int(prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
