"""Rewrite products with dequantized constant weights as MatMulNBits, whose kernels read the codes.

The weights are those of DequantizeLinear with codes of 4 or 8 bits, with a scale for each block of
the depth or for each column; the data of the product is not quantized. Sources:
https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html and MatMulNBits in
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from farm.importers.onnx.node_reading import names_read, node_attribute, optional_input

Array = np.ndarray[Any, Any]
_MICROSOFT = "com.microsoft"
_BITS = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
}
_SIGNED = (TensorProto.INT4, TensorProto.INT8)
_VIEWS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity")
_COLUMNS, _BLOCK_BITS = 8, 32  # of which the kernels take multiples


@dataclass(frozen=True, slots=True)
class _Weight:
    """Codes [N, K] without a sign, scales and zero points [N, blocks]; None: the middle code."""

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int

    @property
    def block(self) -> int:
        """Return the number of codes of a block."""
        return int(self.codes.shape[1]) // int(self.scales.shape[1])

    def tensors(self, name: str) -> Iterator[TensorProto]:
        """Yield the inputs of MatMulNBits after its data."""
        columns, blocks = self.scales.shape
        packed = _packed(self.codes, self.bits).reshape(columns, blocks, -1)
        yield numpy_helper.from_array(packed, f"{name}/codes")
        yield numpy_helper.from_array(np.ascontiguousarray(self.scales), f"{name}/scales")
        if self.zeros is not None:
            yield numpy_helper.from_array(_packed(self.zeros, self.bits), f"{name}/zeros")


def rewrite_few_bit_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with MatMulNBits for such products; a copy if it has any."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    producers = {node.output[0]: node for node in model.graph.node}
    dequantized = {
        name: node for name, node in producers.items() if node.op_type == "DequantizeLinear"
    }
    found: dict[int, _Weight] = {}
    weights: dict[tuple[str, bool], _Weight | None] = {}
    for at, node in enumerate(model.graph.node):
        turned = _has_transposed_weight(node)
        if turned is None or node.input[1] not in dequantized:
            continue
        if _is_dequantized(node.input[0], producers):
            continue
        key = (node.input[1], turned)
        if key not in weights:
            weights[key] = _read(dequantized[node.input[1]], turned, constants)
        if (weight := weights[key]) is not None:
            found[at] = weight
    if not found:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    made: dict[str, list[TensorProto]] = {}
    for at, node in enumerate(model.graph.node):
        nodes += _products(node, found[at], made) if at in found else [node]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    given = {value.name for value in model.graph.output}
    read = given.union(*map(names_read, kept))
    del result.graph.node[:]
    result.graph.node.extend(
        node for node in kept if node.output[0] not in dequantized or node.output[0] in read
    )
    read = given.union(*map(names_read, result.graph.node))
    del result.graph.initializer[:]
    result.graph.initializer.extend(
        tensor for tensor in model.graph.initializer if tensor.name in read
    )
    result.graph.initializer.extend(tensor for group in made.values() for tensor in group)
    if not any(opset.domain == _MICROSOFT for opset in result.opset_import):
        result.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
    return result


def _is_dequantized(name: str, producers: Mapping[str, onnx.NodeProto]) -> bool:
    """Return whether a tensor is dequantized data, or a view of it: those are products of bytes."""
    while (node := producers.get(name)) is not None and node.op_type in _VIEWS:
        name = node.input[0]
    return node is not None and node.op_type == "DequantizeLinear"


def _has_transposed_weight(node: onnx.NodeProto) -> bool | None:
    """Return whether a product's weight is [N, K]; None if the node is no such product."""
    if node.op_type == "MatMul":
        return False
    plain = node.op_type == "Gemm" and not node_attribute(node, "transA", 0)
    if not plain or {node_attribute(node, name, 1.0) for name in ("alpha", "beta")} != {1.0}:
        return None
    return bool(node_attribute(node, "transB", 0))


def _read(
    node: onnx.NodeProto, is_transposed: bool, constants: Mapping[str, TensorProto]
) -> _Weight | None:
    """Return the weight that a DequantizeLinear makes; None if MatMulNBits cannot hold it."""
    if any(name not in constants for name in node.input if name):
        return None
    codes, scales = (constants[name] for name in node.input[:2])
    zero = optional_input(node, 2)
    bits = _BITS.get(codes.data_type)
    if bits is None or len(codes.dims) != 2:
        return None
    values = _array(codes).T if not is_transposed else _array(codes)
    of_blocks = _by_blocks(node, _array(scales), is_transposed, values.shape)
    if of_blocks is None:
        return None
    columns, depth = values.shape
    size = depth // of_blocks.shape[1]
    if columns % _COLUMNS or depth % of_blocks.shape[1] or size * bits % _BLOCK_BITS:
        return None
    block_size = int(node_attribute(node, "block_size", 0))
    if block_size and size != block_size:  # the last block is not full
        return None
    middle = 1 << (bits - 1)
    begin = middle if codes.data_type in _SIGNED else 0
    zeros: Array = np.full(of_blocks.shape, begin, np.uint8)
    if zero:
        given = _by_blocks(node, _array(constants[zero]), is_transposed, values.shape)
        if given is None:
            return None
        zeros = (given.astype(np.int16) + begin).astype(np.uint8)
    unsigned = (values.astype(np.int16) + begin).astype(np.uint8)
    return _Weight(unsigned, of_blocks, None if (zeros == middle).all() else zeros, bits)


def _array(tensor: TensorProto) -> Array:
    values: Array = numpy_helper.to_array(tensor)
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        return values.astype(np.int8)  # ml_dtypes' arrays of 4 bits have few functions
    return values


def _by_blocks(
    node: onnx.NodeProto, given: Array, is_transposed: bool, shape: tuple[int, ...]
) -> Array | None:
    """Return scales or zero points [N, blocks]; None if they are those of rows of the depth."""
    columns, _ = shape
    if given.size == 1:
        return np.full((columns, 1), given.reshape(()), given.dtype)
    axis = int(node_attribute(node, "axis", 1)) % 2
    of_depth = axis == (1 if is_transposed else 0)
    if int(node_attribute(node, "block_size", 0)):
        return (given if is_transposed else given.T) if of_depth else None
    return None if of_depth else given.reshape(columns, 1)


def _packed(codes: Array, bits: int) -> Array:
    """Return rows of codes as rows of bytes, the first code in the lowest bits."""
    each = 8 // bits
    rows, count = codes.shape
    whole = np.zeros((rows, -(-count // each) * each), np.uint8)
    whole[:, :count] = codes
    result = np.zeros((rows, whole.shape[1] // each), np.uint8)
    for slot in range(each):
        result |= whole[:, slot::each] << (bits * slot)
    return result


def _products(
    node: onnx.NodeProto, weight: _Weight, made: dict[str, list[TensorProto]]
) -> list[onnx.NodeProto]:
    """Return the nodes for a product; add the tensors of its weight to `made`, once."""
    name = f"{node.input[1]}/{bool(_has_transposed_weight(node))}"
    if name not in made:
        made[name] = list(weight.tensors(name))
    bias = optional_input(node, 2)
    output = f"{node.output[0]}/product" if bias else node.output[0]
    columns, depth = weight.codes.shape
    product = helper.make_node(
        "MatMulNBits",
        [node.input[0], *(tensor.name for tensor in made[name])],
        [output],
        name=node.name,
        domain=_MICROSOFT,
        K=depth,
        N=columns,
        bits=weight.bits,
        block_size=weight.block,
    )
    if not bias:
        return [product]
    return [product, helper.make_node("Add", [output, bias], [node.output[0]])]
