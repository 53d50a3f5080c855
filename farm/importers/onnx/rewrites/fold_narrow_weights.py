"""Replace constant weights of few bits or with scales of blocks by the numbers that they stand for.

TVM has no tensors of 4 bits, and dequantizes by one scale or by those of one axis only. Source:
DequantizeLinear of opset 21, https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from farm.importers.onnx.node_reading import node_attribute, optional_input

Array = np.ndarray[Any, Any]
_NARROW = (TensorProto.INT4, TensorProto.UINT4)


def fold_narrow_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with such weights as floats; a copy if it has any."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    folded = [node for node in model.graph.node if _is_narrow(node, weights)]
    if not folded:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    made = {node.output[0]: _dequantized(node, weights) for node in folded}
    kept = [node for node in result.graph.node if node.output[0] not in made]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    used = [
        one for one in model.graph.initializer if one.data_type not in _NARROW or one.name in read
    ]
    del result.graph.initializer[:]
    result.graph.initializer.extend(used)
    result.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in made.items()
    )
    return result


def _is_narrow(node: onnx.NodeProto, weights: Mapping[str, TensorProto]) -> bool:
    return (
        node.op_type == "DequantizeLinear"
        and all(name in weights for name in node.input if name)
        and (
            weights[node.input[0]].data_type in _NARROW
            or bool(node_attribute(node, "block_size", 0))
        )
    )


def _dequantized(node: onnx.NodeProto, weights: Mapping[str, TensorProto]) -> Array:
    """Return (x - zero) * scale, in the type of the scale."""
    steps, scale = (numpy_helper.to_array(weights[name]) for name in node.input[:2])
    dtype = scale.dtype
    values, scale = steps.astype(np.float32), scale.astype(np.float32)
    axis, size = int(node_attribute(node, "axis", 1)), int(node_attribute(node, "block_size", 0))
    zero = optional_input(node, 2)
    middle = numpy_helper.to_array(weights[zero]).astype(np.float32) if zero else None

    def of_each(given: Array) -> Array:
        """Return a scale or a zero point in a shape that broadcasts to the tensor's."""
        if size:
            extent = values.shape[axis]
            return np.take(np.repeat(given, size, axis), np.arange(extent), axis)
        if given.size == 1:
            return given.reshape(())
        return given.reshape([-1 if at == axis % values.ndim else 1 for at in range(values.ndim)])

    if middle is not None:
        values = values - of_each(middle)
    found: Array = (values * of_each(scale)).astype(dtype)
    return found
