"""Infer the types that operators of ONNX Runtime give, which ONNX's own inference does not know.

The definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from farm.importers.onnx.node_reading import node_attribute, optional_input

MICROSOFT = "com.microsoft"
# Their first output is like their first input.
_LIKE_FIRST_INPUT = (
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "QuickGelu",
    "RotaryEmbedding",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
_IN_THE_DEFAULT_DOMAIN = ("SimplifiedLayerNormalization",)  # though ONNX has no such operator
_PRODUCTS = ("MatMulBnb4", "MatMulNBits")  # with a weight of N columns
_SUM_OF_SKIP = 3  # the output of a SkipLayerNormalization that is the sum it normalizes
_RANK_OF_ROWS = 3  # batch, tokens, channels
_RANK_OF_TABLE = 2


def infer_contributed_types(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """Return the types of a node's outputs by name, as far as they are known.

    `types` has those of its inputs. Returns nothing for the operators of other domains.
    """
    first = types.get(optional_input(node, 0))
    operator = node.op_type
    if (
        (node.domain != MICROSOFT and operator not in _IN_THE_DEFAULT_DOMAIN)
        or first is None
        or not first.tensor_type.HasField("shape")
    ):
        return {}
    if operator in (*_LIKE_FIRST_INPUT, *_IN_THE_DEFAULT_DOMAIN):
        sums = node.output[_SUM_OF_SKIP : _SUM_OF_SKIP + 1] if "Skip" in operator else ()
        return {name: first for name in (node.output[0], *sums) if name}
    if operator in _PRODUCTS:
        return _with_last(node, first, _extent(int(node_attribute(node, "N"))))
    if operator == "GatherBlockQuantized":
        return _gathered_rows(node, first, types)
    if operator in ("Attention", "GroupQueryAttention", "MultiHeadAttention"):
        return _attention(node, first, types)
    return {}


def _gathered_rows(
    node: onnx.NodeProto, codes: onnx.TypeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """Return the type of rows of a table [rows, bytes], which holds several codes in a byte."""
    indices, scales = (types.get(optional_input(node, index)) for index in (1, 2))
    table = codes.tensor_type
    if (
        indices is None
        or scales is None
        or table.elem_type != onnx.TensorProto.UINT8
        or len(table.shape.dim) != _RANK_OF_TABLE
        or not table.shape.dim[-1].dim_value
        or node_attribute(node, "gather_axis", 0)
        or not indices.tensor_type.HasField("shape")
    ):
        return {}
    depth = table.shape.dim[-1].dim_value * 8 // int(node_attribute(node, "bits", 4))
    result = onnx.TypeProto()
    result.CopyFrom(indices)
    result.tensor_type.elem_type = scales.tensor_type.elem_type
    result.tensor_type.shape.dim.append(_extent(depth))
    return {node.output[0]: result}


def _attention(
    node: onnx.NodeProto, query: onnx.TypeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """Return the type of the rows [batch, tokens, channels] that an attention gives.

    A GroupQueryAttention has as many channels as its query. Without keys the query holds keys and
    values too, each of fewer heads.
    """
    if len(query.tensor_type.shape.dim) != _RANK_OF_ROWS:
        return {}
    keys, values = optional_input(node, 1), types.get(optional_input(node, 2))
    if node.op_type == "GroupQueryAttention":
        if keys:
            return _with_last(node, query, query.tensor_type.shape.dim[-1])
        heads, shared = (int(node_attribute(node, one)) for one in ("num_heads", "kv_num_heads"))
        packed = query.tensor_type.shape.dim[-1].dim_value
        if not packed:
            return {}
        return _with_last(node, query, _extent(packed // (heads + 2 * shared) * heads))
    if node.op_type == "Attention":  # which projects its input
        weight, sizes = types.get(keys), node_attribute(node, "qkv_hidden_sizes")
        if sizes:
            return _with_last(node, query, _extent(int(sizes[-1])))
        width = weight.tensor_type.shape.dim[-1].dim_value if weight is not None else 0
        return _with_last(node, query, _extent(width // 3)) if width else {}
    if values is None or len(values.tensor_type.shape.dim) != _RANK_OF_ROWS:
        return {}
    return _with_last(node, query, values.tensor_type.shape.dim[-1])


def _with_last(
    node: onnx.NodeProto, type_: onnx.TypeProto, last: onnx.TensorShapeProto.Dimension
) -> dict[str, onnx.TypeProto]:
    """Return the type of a node's first output: `type_` with another last extent."""
    result = onnx.TypeProto()
    result.CopyFrom(type_)
    if not result.tensor_type.shape.dim:
        return {}
    result.tensor_type.shape.dim[-1].CopyFrom(last)
    return {node.output[0]: result}


def _extent(count: int) -> onnx.TensorShapeProto.Dimension:
    return onnx.TensorShapeProto.Dimension(dim_value=count)
