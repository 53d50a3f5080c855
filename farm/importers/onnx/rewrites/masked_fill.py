"""Rewrite masked fills, `x[mask] = number`, as Where.

torch exports them as NonZero, whose result can have as many rows as the data has elements, and
ScatterND.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from farm.importers.onnx.inferred_types import known_extents, known_types
from farm.importers.onnx.node_reading import names_read, node_attribute

_REPEATS = ("Expand", "Reshape", "Identity", "Squeeze", "Unsqueeze")  # of one element

Types = Mapping[str, onnx.TypeProto]


def masked_fills_to_where(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each such ScatterND of its main graph as a Where.

    What was computed for the ScatterND alone is dropped.
    """
    if not any(node.op_type == "NonZero" for node in model.graph.node):
        return model
    types = known_types(model)
    producers = {name: node for node in model.graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in model.graph.node:
        selection = _selection(node, producers, types) if node.op_type == "ScatterND" else None
        nodes += selection or [node]
        changed |= selection is not None
    if not changed:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(_needed_nodes(nodes, {value.name for value in model.graph.output}))
    return result


def _selection(
    node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto], types: Types
) -> list[onnx.NodeProto] | None:
    """Return nodes that compute a ScatterND of one number over a mask; None for any other."""
    data, points, updates = node.input
    mask = _mask(points, producers)
    value = _repeated(updates, producers, types)
    shape, mask_shape = (known_extents(types.get(name)) for name in (data, mask))
    if not (mask and value and shape and mask_shape) or mask_shape != shape[: len(mask_shape)]:
        return None
    if None in mask_shape or node_attribute(node, "reduction", b"none") != b"none":
        return None
    if len(known_extents(types[value]) or ()) > len(shape):
        return None
    made, name = [], node.output[0]
    if types[mask].tensor_type.elem_type != TensorProto.BOOL:
        made.append(helper.make_node("Cast", [mask], [f"{name}/mask"], to=TensorProto.BOOL))
        mask = f"{name}/mask"
    if len(mask_shape) < len(shape):
        extents = [extent for extent in mask_shape if extent is not None]
        extents += [1] * (len(shape) - len(mask_shape))
        constant = helper.make_tensor(f"{name}/shape", TensorProto.INT64, [len(extents)], extents)
        made.append(helper.make_node("Constant", [], [constant.name], value=constant))
        made.append(helper.make_node("Reshape", [mask, constant.name], [f"{name}/aligned"]))
        mask = f"{name}/aligned"
    return [*made, helper.make_node("Where", [mask, value, data], [name], node.name)]


def _mask(points: str, producers: Mapping[str, onnx.NodeProto]) -> str:
    """Return the mask whose true places these are, one in each row; "" for other points."""
    turned = producers.get(points)
    if turned is None or turned.op_type != "Transpose":
        return ""
    if list(node_attribute(turned, "perm", [1, 0])) != [1, 0]:
        return ""
    found = producers.get(turned.input[0])
    return found.input[0] if found is not None and found.op_type == "NonZero" else ""


def _repeated(name: str, producers: Mapping[str, onnx.NodeProto], types: Types) -> str:
    """Return the tensor of one element that a tensor repeats; "" if it does not."""
    while (extents := known_extents(types.get(name))) is None or set(extents) - {1}:
        node = producers.get(name)
        if node is None or node.op_type not in _REPEATS:
            return ""
        name = node.input[0]
    return name


def _needed_nodes(nodes: list[onnx.NodeProto], read: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes whose results these names need, directly or not, in their order."""
    needed = []
    for node in reversed(nodes):
        if read.intersection(node.output):
            needed.append(node)
            read |= names_read(node)
    return needed[::-1]
