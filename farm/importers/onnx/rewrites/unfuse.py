"""Rewrite operators that ONNX Runtime's optimizer has fused as operators of ONNX.

Files that its sessions save (`optimized_model_filepath`) have such operators, as defined in its
ContribOperators.md:

    FusedConv, FusedGemm   an operator and its activation
    DynamicQuantizeMatMul  DynamicQuantizeLinear, MatMulInteger and the product with the scales
    MatMulIntegerToFloat   MatMulInteger and the product with the scales
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from farm.importers.onnx.node_reading import all_graphs, all_nodes, node_attribute, optional_input

_MICROSOFT = "com.microsoft"
_PLAIN = ("Relu", "Sigmoid", "Tanh")
# The parameters of an activation, in the order of `activation_params`.
_WITH_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


def unfuse_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without such operators; a copy if it has any.

    Operators that cannot be rewritten stay, and the import refuses them by name.
    """
    if not any(_rule(node) for node in all_nodes(model.graph)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for graph in list(all_graphs(result.graph)):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            rule = _rule(node)
            made = None if rule is None else rule(_Parts(node))
            nodes += [node] if made is None else made
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return result


class _Parts:
    """The nodes that replace one, and the names between them."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.node = node
        self.made: list[onnx.NodeProto] = []

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node of one output; return its name."""
        return self.several(operator, inputs, 1, **attributes)[0]

    def several(
        self, operator: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node; return the names of its outputs."""
        name = f"{self.node.output[0]}/{operator}{len(self.made)}"
        names = [f"{name}/{place}" for place in range(outputs)]
        self.made.append(helper.make_node(operator, list(inputs), names, name=name, **attributes))
        return names

    def number(self, value: float) -> str:
        """Add a constant of float32; return its name."""
        tensor = numpy_helper.from_array(np.array(value, np.float32))
        return self.add("Constant", [], value=tensor)

    def copy(self, operator: str, inputs: Sequence[str], attributes: Sequence[str]) -> str:
        """Add an operator with some attributes of the node."""
        name = self.add(operator, inputs)
        self.made[-1].attribute.extend(one for one in self.node.attribute if one.name in attributes)
        return name

    def ended(self) -> list[onnx.NodeProto]:
        """Return the nodes; the last one has the node's output."""
        self.made[-1].output[0] = self.node.output[0]
        return self.made


def _convolution(parts: _Parts) -> list[onnx.NodeProto] | None:
    data, weight, *more = parts.node.input
    bias, summand = [*more, "", ""][:2]
    result = parts.copy(
        "Conv",
        [data, weight, *([bias] if bias else [])],
        ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    )
    if summand:
        result = parts.add("Add", [result, summand])
    return _activated(parts, result, list(node_attribute(parts.node, "activation_params", [])))


def _gemm(parts: _Parts) -> list[onnx.NodeProto] | None:
    result = parts.copy("Gemm", parts.node.input, ("alpha", "beta", "transA", "transB"))
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    given = [node_attribute(parts.node, name) for name in names]
    return _activated(parts, result, [one for one in given if one is not None])


def _activated(
    parts: _Parts, value: str, parameters: Sequence[float]
) -> list[onnx.NodeProto] | None:
    name = node_attribute(parts.node, "activation", b"").decode()
    if name in _PLAIN:
        parts.add(name, [value])
    elif name in _WITH_PARAMETERS and len(parameters) == len(_WITH_PARAMETERS[name]):
        parts.add(name, [value], **dict(zip(_WITH_PARAMETERS[name], parameters, strict=True)))
    elif name == "Clip" and len(parameters) == 2:
        low, high = (parts.number(bound) for bound in parameters)
        parts.add("Min", [parts.add("Max", [value, low]), high])
    elif name:
        return None
    return parts.ended()


def _quantized_product(parts: _Parts) -> list[onnx.NodeProto] | None:
    data, weight, scale = parts.node.input[:3]
    zero, bias = optional_input(parts.node, 3), optional_input(parts.node, 4)
    quantized, data_scale, data_zero = parts.several("DynamicQuantizeLinear", [data], 3)
    sides = [quantized, weight, data_zero, zero]
    return _scaled_sums(parts, sides, [data_scale, scale], bias)


def _integer_product(parts: _Parts) -> list[onnx.NodeProto] | None:
    data, weight, *scales = parts.node.input[:4]
    zeros = [optional_input(parts.node, place) for place in (4, 5)]
    return _scaled_sums(parts, [data, weight, *zeros], scales, optional_input(parts.node, 6))


def _scaled_sums(
    parts: _Parts, sides: list[str], scales: Sequence[str], bias: str
) -> list[onnx.NodeProto]:
    while not sides[-1]:
        sides.pop()
    sums = parts.add("Cast", [parts.add("MatMulInteger", sides)], to=TensorProto.FLOAT)
    result = parts.add("Mul", [sums, parts.add("Mul", scales)])
    if bias:
        parts.add("Add", [result, bias])
    return parts.ended()


_RULES: dict[str, Callable[[_Parts], list[onnx.NodeProto] | None]] = {
    "FusedConv": _convolution,
    "FusedGemm": _gemm,
    "DynamicQuantizeMatMul": _quantized_product,
    "MatMulIntegerToFloat": _integer_product,
}


def _rule(node: onnx.NodeProto) -> Callable[[_Parts], list[onnx.NodeProto] | None] | None:
    return _RULES.get(node.op_type) if node.domain == _MICROSOFT else None
