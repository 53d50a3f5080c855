"""What an ONNX file holds, without importing it: inputs, outputs, weights, operators, and all of it that cannot be imported."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import onnx

from farm.importers.onnx_file import opened
from farm.importers.onnx_operators import nodes, problems
from farm.importers.outline import Outline
from farm.types import Model, shape_in_words


def outline(source: Model) -> Outline:
    """Raises ModelError for a file that cannot be read, and for open shapes."""
    as_written, model, inputs = opened(source)
    weights = as_written.graph.initializer
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


def _shown(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    axes = [axis.dim_param or axis.dim_value for axis in tensor.shape.dim]
    return f"{value.name} {onnx.TensorProto.DataType.Name(tensor.elem_type).lower()} {axes}"


def _nbytes(tensor: onnx.TensorProto) -> int:
    return int(prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
