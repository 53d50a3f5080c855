"""Infer the types of a graph's values without its large weights.

ONNX's inference is called by its model's bytes. It needs the shapes of weights, and the numbers of
small ones, such as those that are shapes.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

_MOST_BYTES = 1 << 14
# Of a tensor that is no shape, whatever its size
_KINDS = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
    *(TensorProto.INT8, TensorProto.UINT8),
)


def infer_types(model: onnx.ModelProto, *, data_prop: bool = False) -> onnx.GraphProto:
    """Return the graph with the types that ONNX infers, and without the numbers of large weights.

    `data_prop` propagates the values of small tensors. Raises what ONNX's inference raises.
    """
    return onnx.shape_inference.infer_shapes(_light(model), data_prop=data_prop).graph


def known_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of a graph's values by name, those of initializers among them."""
    try:
        graph = infer_types(model, data_prop=True)
    except Exception:  # ONNX's inference can raise on models that TVM imports
        graph = model.graph
    known = {
        tensor.name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
    }
    return known | {
        value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)
    }


def known_extents(type_: onnx.TypeProto | None) -> list[int | None] | None:
    """Return the extents of a tensor of known rank, with None for open ones; else None."""
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    return [
        axis.dim_value if axis.HasField("dim_value") else None
        for axis in type_.tensor_type.shape.dim
    ]


def is_fixed(type_: onnx.TypeProto | None) -> bool:
    """Return whether all extents of a type are known."""
    extents = known_extents(type_)
    return extents is not None and None not in extents


def _light(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose large weights have a type and a shape only."""
    light = onnx.ModelProto()
    _copy_fields(model, light, but="graph")
    _copy_fields(model.graph, light.graph, but="initializer")
    for tensor in model.graph.initializer:
        if tensor.data_type in _KINDS and tensor.ByteSize() > _MOST_BYTES:
            light.graph.initializer.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims
            )
        else:
            light.graph.initializer.append(tensor)
    return light


def _copy_fields(
    source: onnx.ModelProto | onnx.GraphProto,
    target: onnx.ModelProto | onnx.GraphProto,
    *,
    but: str,
) -> None:
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, (int, str)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)
