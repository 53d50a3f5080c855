"""Rewrite ONNX's quantized operators to DequantizeLinear, operator, QuantizeLinear (QDQ form).

The QLinear operators of ONNX and of ONNX Runtime (QOperator models) are then compiled like QDQ
models and like those that farm quantized. Sources:
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html, and
ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

_MICROSOFT = "com.microsoft"
_ELEMENTWISE = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_OF_ONE = {
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSigmoid": "Sigmoid",
}
# Same as ONNX's own operators, except that a tensor without axes may have an `axis`.
_SAME = ("QuantizeLinear", "DequantizeLinear")


def qlinear_to_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without QLinear operators; a copy if it has any.

    Operators that cannot be rewritten stay, and the import refuses them by name.
    """
    if not any(_rule(node) for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    writer = _Writer(result.graph)
    for node in model.graph.node:
        rule = _rule(node)
        if rule is None or not rule(writer, node):
            writer.nodes.append(node)
    del result.graph.node[:]
    result.graph.node.extend(writer.nodes)
    return result


class _Writer:
    """Collector of the rewritten nodes, with access to the initializers."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._graph = graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._made = 0

    def constant(self, name: str) -> np.ndarray | None:
        """Return the values of an initializer; None if the name is not one."""
        return numpy_helper.to_array(self._weights[name]) if name in self._weights else None

    def real(self, node: onnx.NodeProto, first: int, axis: int = 0) -> str:
        """Dequantize a tensor of a node; return the name of the result.

        The inputs `first`, `first + 1` and `first + 2` are the tensor, its scale and its zero
        point, which may be left out.
        """
        value, scale = node.input[first : first + 2]
        zero = node.input[first + 2] if len(node.input) > first + 2 else ""
        return self._linear("DequantizeLinear", [value, scale, zero], axis)

    def real_of(self, value: str, scale: np.ndarray, axis: int) -> str:
        """Dequantize a tensor by a computed scale without zero point; return the result's name."""
        return self._linear("DequantizeLinear", [value, self._added(scale), ""], axis)

    def quantize(self, value: str, node: onnx.NodeProto, first: int) -> None:
        """Quantize `value` to the node's output, by the scale and zero point at `first`."""
        zero = node.input[first + 1] if len(node.input) > first + 1 else ""
        inputs = _given([value, self._single(node.input[first]), zero])
        self.nodes.append(helper.make_node("QuantizeLinear", inputs, node.output, node.name))

    def compute(
        self,
        operator: str,
        inputs: Sequence[str],
        node: onnx.NodeProto,
        without: Sequence[str] = (),
    ) -> str:
        """Add an operator with the attributes of a node, except `without`; return its output."""
        output = self._name(operator)
        made = helper.make_node(operator, inputs, [output], f"{node.name}_{operator}")
        made.attribute.extend(
            attribute for attribute in node.attribute if attribute.name not in without
        )
        self.nodes.append(made)
        return output

    def _linear(self, operator: str, inputs: Sequence[str], axis: int) -> str:
        """Add a DequantizeLinear, with an axis only if the scale has several elements."""
        output = self._name(operator)
        scale, (value, factor, zero) = self.constant(inputs[1]), inputs
        along = {} if scale is None or scale.size == 1 else {"axis": axis}
        self.nodes.append(
            helper.make_node(
                operator, _given([value, self._single(factor), zero]), [output], **along
            )
        )
        return output

    def _single(self, name: str) -> str:
        """Return the name of a scale in float32.

        In float16 the dequantized numbers would be less precise than the integer sums.
        """
        scale = self.constant(name)
        return name if scale is None or scale.dtype != np.float16 else self._added(scale)

    def _added(self, scale: np.ndarray) -> str:
        """Add a scale as a float32 initializer; return its name."""
        name = self._name("scale")
        self._weights[name] = numpy_helper.from_array(scale.astype(np.float32), name)
        self._graph.initializer.append(self._weights[name])
        return name

    def _name(self, what: str) -> str:
        """Return a name that the graph does not use."""
        self._made += 1
        return f"farm/{what}/{self._made}"


def _given(inputs: Sequence[str]) -> list[str]:
    """Return the inputs that are not left out."""
    return [name for name in inputs if name]


def _convolution(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite QLinearConv; return False if it has a bias and a scale is not constant."""
    inputs = [writer.real(node, 0), writer.real(node, 3, axis=0)]
    if len(node.input) > 8 and node.input[8]:
        data, weight = writer.constant(node.input[1]), writer.constant(node.input[4])
        if data is None or weight is None:
            return False
        inputs.append(writer.real_of(node.input[8], data.reshape(()) * _plain(weight), axis=0))
    writer.quantize(writer.compute("Conv", inputs, node), node, 6)
    return True


def _plain(scale: np.ndarray) -> np.ndarray:
    """Return a scale of one element without axes."""
    return scale.reshape(()) if scale.size == 1 else scale


def _product(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite QLinearMatMul; return False unless its scales are constant and supported.

    Only the second factor's scale may have several elements, along one axis.
    """
    for first in (1, 4):
        scale = writer.constant(node.input[first])
        if scale is None or (scale.size > 1 and (first == 1 or scale.ndim != 1)):
            return False
    writer.quantize(
        writer.compute("MatMul", [writer.real(node, 0), writer.real(node, 3, axis=1)], node),
        node,
        6,
    )
    return True


def _gemm(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite QGemm; return False if a scale is not constant."""
    attributes = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    data, weight = writer.constant(node.input[1]), writer.constant(node.input[4])
    if data is None or weight is None:
        return False
    inputs = [writer.real(node, 0), writer.real(node, 3, axis=0 if attributes.get("transB") else 1)]
    if len(node.input) > 6 and node.input[6]:
        inputs.append(
            writer.real_of(
                node.input[6],
                attributes.get("alpha", 1.0) * data.reshape(()) * _plain(weight),
                axis=0,
            )
        )
    result = writer.compute("Gemm", inputs, node)
    if len(node.input) > 7 and node.input[7]:
        writer.quantize(result, node, 7)
    else:
        writer.nodes.append(helper.make_node("Identity", [result], node.output, node.name))
    return True


def _elementwise(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite QLinearAdd or QLinearMul."""
    writer.quantize(
        writer.compute(
            _ELEMENTWISE[node.op_type], [writer.real(node, 0), writer.real(node, 3)], node
        ),
        node,
        6,
    )
    return True


def _of_one(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite an operator of one tensor; return False if its channels are last."""
    if any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute):
        return False
    writer.quantize(
        writer.compute(_OF_ONE[node.op_type], [writer.real(node, 0)], node, ["channels_last"]),
        node,
        3,
    )
    return True


def _concat(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite QLinearConcat."""
    parts = [writer.real(node, first) for first in range(2, len(node.input), 3)]
    writer.quantize(writer.compute("Concat", parts, node), node, 0)
    return True


def _same(writer: _Writer, node: onnx.NodeProto) -> bool:
    """Rewrite a contributed operator to ONNX's operator of the same name."""
    made = helper.make_node(node.op_type, node.input, node.output, node.name)
    made.attribute.extend(node.attribute)
    writer.nodes.append(made)
    return True


_RULES: Mapping[str, Callable[[_Writer, onnx.NodeProto], bool]] = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
}
_MICROSOFT_RULES: Mapping[str, Callable[[_Writer, onnx.NodeProto], bool]] = {
    "QGemm": _gemm,
    "QLinearConcat": _concat,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_OF_ONE, _of_one),
    **dict.fromkeys(_SAME, _same),
}


def _rule(node: onnx.NodeProto) -> Callable[[_Writer, onnx.NodeProto], bool] | None:
    """Return the function that rewrites a node; None if it is not a QLinear operator."""
    if node.domain == _MICROSOFT:
        return _MICROSOFT_RULES.get(node.op_type)
    return _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
