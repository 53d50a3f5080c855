"""Let ONNX Runtime compute products with weights of few bits in the type of their inputs.

The attribute `accuracy_level` of MatMulNBits allows less, such as inputs of 8 bits. A reference
must be more exact than what it judges.
"""

from __future__ import annotations

import onnx

from farm.importers.onnx.node_reading import all_nodes, node_attribute

_LEVEL = "accuracy_level"


def with_exact_products(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy of a model whose products are as exact as their inputs; None if they are."""
    if not any(_is_inexact(node) for node in all_nodes(model.graph)):
        return None
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in all_nodes(result.graph):
        if _is_inexact(node):
            kept = [one for one in node.attribute if one.name != _LEVEL]
            del node.attribute[:]
            node.attribute.extend(kept)
    return result


def _is_inexact(node: onnx.NodeProto) -> bool:
    return node.op_type == "MatMulNBits" and bool(node_attribute(node, _LEVEL, 0))
