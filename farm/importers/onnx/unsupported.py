"""Refuse operators and attributes that TVM's ONNX importer or farm's converters would get wrong.

They are refused by operator and attribute, before anything is computed. They were found by the node
tests that ship with onnx (tools/node-tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from farm.importers.onnx.inferred_types import infer_types
from farm.importers.onnx.node_reading import node_attribute

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_INTEGERS = tuple(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_WHOLE_BYTES = (*_FLOATS, *_INTEGERS, TensorProto.BOOL)


@dataclass(frozen=True)
class GraphFacts:
    """Known facts about a graph: constants, element types, shapes and the names that are read."""

    constants: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    read: frozenset[str] = frozenset()


def graph_facts(model: onnx.ModelProto) -> GraphFacts:
    """Return the facts of a model's graph."""
    graph = model.graph
    try:
        typed = infer_types(model)
    except Exception:  # ONNX's inference can raise on models that TVM imports
        typed = graph
    values = (*typed.input, *typed.value_info, *typed.output)
    types = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in values}
    shapes = {
        value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in values
    }
    read = {name for node in graph.node for name in node.input} | {
        value.name for value in graph.output
    }
    return GraphFacts(
        {tensor.name: tensor for tensor in graph.initializer}, types, shapes, frozenset(read)
    )


def unsupported_reason(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Return the unsupported aspect of a node as text; "" if the node is supported."""
    rule = _RULES.get(node.op_type)
    return "" if rule is None or node.domain not in ("", "ai.onnx") else rule(node, known)


def _used(node: onnx.NodeProto, output: int, known: GraphFacts) -> bool:
    """Return whether an output of a node is read."""
    return len(node.output) > output and node.output[output] in known.read


def _batch_normalization(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse the running statistics, which are outputs in training mode."""
    used = any(_used(node, output, known) for output in range(1, len(node.output)))
    return "the running mean and variance; export the model in evaluation mode" if used else ""


def _layer_normalization(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse the outputs Mean and InvStdDev."""
    used = any(_used(node, output, known) for output in range(1, len(node.output)))
    return "the outputs Mean and InvStdDev" if used else ""


def _random(_node: onnx.NodeProto, _known: GraphFacts) -> str:
    """Refuse numbers that each run draws anew: no answer on a board could be called right."""
    return "random numbers; give the model its noise as an input"


def _dropout(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse the output mask and training mode."""
    if _used(node, 1, known):
        return "the output mask"
    if len(node.input) < 3 or not node.input[2]:
        return ""
    mode = known.constants.get(node.input[2])
    off = mode is not None and not numpy_helper.to_array(mode).any()
    return "" if off else "training_mode; export the model in evaluation mode"


def _cast(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse types other than bool, integers of 8 to 64 bits and floats of 16 to 64 bits."""
    wanted = (
        known.types.get(node.input[1]) if node.op_type == "CastLike" else node_attribute(node, "to")
    )
    for kind in (wanted, known.types.get(node.input[0])):
        if kind and kind not in _WHOLE_BYTES:
            return f"the type {TensorProto.DataType.Name(kind).lower()}"
    return ""


def _bit_cast(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse the types that `_cast` refuses, and bool from bytes that may be neither 0 nor 1."""
    to_bool = node_attribute(node, "to") == TensorProto.BOOL
    if to_bool and known.types.get(node.input[0]) != TensorProto.BOOL:
        return "to bool; use Cast"
    return _cast(node, known)


def _mod(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse fmod=0 on floating point."""
    floating = known.types.get(node.input[0]) in _FLOATS
    return (
        "fmod=0 on floating point; use fmod=1"
        if floating and not node_attribute(node, "fmod", 0)
        else ""
    )


def _roi_align(node: onnx.NodeProto, _: GraphFacts) -> str:
    """Refuse mode='max'."""
    return "mode='max'" if node_attribute(node, "mode", b"avg") == b"max" else ""


def _space_to_depth(node: onnx.NodeProto, _: GraphFacts) -> str:
    """Refuse mode='CRD'."""
    return "mode='CRD'" if node_attribute(node, "mode", b"DCR") == b"CRD" else ""


def _resize(node: onnx.NodeProto, known: GraphFacts) -> str:
    """Refuse antialiasing, and scales that give no whole extents.

    TVM samples by the ratio of the extents, which equals the scale only if the extents are whole.
    """
    if node_attribute(node, "antialias", 0):
        return "antialias=1"
    name = node.input[2] if len(node.input) > 2 else ""
    if (
        not name
        or name not in known.constants
        or node_attribute(node, "mode", b"nearest") == b"nearest"
    ):
        return ""
    scales, shape = (
        numpy_helper.to_array(known.constants[name]),
        known.shapes.get(node.input[0], ()),
    )
    if node_attribute(node, "axes") is None and len(scales) == len(shape):
        lengths = [length * float(scale) for length, scale in zip(shape, scales, strict=True)]
        if any(abs(length - round(length)) > 1e-4 for length in lengths):
            return (
                f"scales {[round(float(scale), 4) for scale in scales]} that give no whole "
                "lengths; give sizes"
            )
    return ""


def _by_value(_: onnx.NodeProto, __: GraphFacts) -> str:
    """Refuse operators whose output shape depends on values."""
    return (
        "the size of its result depends on the values of its inputs; end the model before it and "
        "do that step outside"
    )


def _loop(_: onnx.NodeProto, __: GraphFacts) -> str:
    """Refuse loops whose number of runs is not known; the others have been unrolled."""
    return (
        "the number of its runs depends on the values of inputs, or is too large; state inputs "
        "that decide it with --value, export it as LSTM, GRU or RNN, or run the loop in your "
        "program and give farm the model of one step"
    )


_RULES: dict[str, Callable[[onnx.NodeProto, GraphFacts], str]] = {
    **dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"),
        _random,
    ),
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast,
    "BitCast": _bit_cast,
    "Mod": _mod,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
    "Unique": _by_value,
    "Resize": _resize,
    "Loop": _loop,
    "Scan": _loop,
}
