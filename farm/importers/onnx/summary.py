"""Summarise an ONNX file for `farm check` without importing it.

The outline lists inputs, outputs, weights, operators and everything that cannot be imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx

from farm.importers.onnx.input_shapes import axes_in_words, output_axes
from farm.importers.onnx.load import opened
from farm.importers.onnx.operators import nodes, problems
from farm.importers.summary import Outline
from farm.types import Model, shape_in_words

_NO_WEIGHTS = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING)


def outline(source: Model) -> Outline:
    """Return the outline of a file; raise ModelError if it is unreadable or leaves shapes open."""
    as_written, model, inputs = opened(source)
    weights = [*as_written.graph.initializer, *_constants(as_written.graph)]
    operators = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes(as_written.graph))
    return Outline(
        inputs=tuple(f"{spec.name} {spec.dtype} {shape_in_words(spec)}" for spec in inputs),
        outputs=tuple(_shown(value) for value in as_written.graph.output),
        parameters=sum(prod(tensor.dims) for tensor in weights),
        parameter_bytes=sum(_nbytes(tensor) for tensor in weights),
        operators=dict(operators.most_common()),
        problems=tuple(problems(model)),
        source=Path(source.source).name,
    )


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield weights that an exporter wrote as Constant nodes; int64 ones are shapes and axes."""
    for node in nodes(graph):
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_type not in _NO_WEIGHTS:
                    yield attribute.t


def _shown(value: onnx.ValueInfoProto) -> str:
    """Return an output's name, type and shape as text."""
    dtype = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{value.name} {dtype} {axes_in_words(output_axes(value))}"


def _nbytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor in bytes."""
    return int(prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
