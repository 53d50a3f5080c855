"""ONNX models of integers, in the QDQ form, written by hand from seeded numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx_models import graph, node

Array = np.ndarray[Any, Any]


class Network:
    """Collects nodes and weights; each method gives the name of what it computes, dequantized."""

    def __init__(self, seed: int = 5) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._numbers = np.random.default_rng(seed)

    def _name(self, what: str) -> str:
        return f"{what}{len(self.nodes)}"

    def weight(self, what: str, value: Any) -> str:
        name = f"{what}{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = self._name(operator)
        self.nodes.append(node(operator, list(inputs), [name], **attributes))
        return name

    def quantized(self, value: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        numbers = [
            self.weight("scale", np.float32(scale)),
            self.weight("zero", np.array(zero, dtype)),
        ]
        return self.op("DequantizeLinear", self.op("QuantizeLinear", value, *numbers), *numbers)

    def quantized_weight(
        self, shape: tuple[int, ...], axis: int, per_channel: bool
    ) -> tuple[str, Array]:
        scale = self._numbers.uniform(0.005, 0.02, shape[axis] if per_channel else ()).astype(
            np.float32
        )
        values = self._numbers.integers(-127, 128, shape, dtype=np.int8)
        inputs = [
            self.weight("w", values),
            self.weight("ws", scale),
            self.weight("wz", np.zeros(scale.shape, np.int8)),
        ]
        return self.op(
            "DequantizeLinear", *inputs, **({"axis": axis} if per_channel else {})
        ), scale

    def convolution(
        self,
        value: str,
        scale: float,
        shape: tuple[int, ...],
        per_channel: bool = True,
        **attributes: Any,
    ) -> str:
        """Of a dequantized tensor of that scale, with a bias of int32."""
        weight, scales = self.quantized_weight(shape, 0, per_channel)
        steps = self.weight("b", self._numbers.integers(-3000, 3000, shape[0], dtype=np.int32))
        scaled = self.weight(
            "bs", (np.float32(scale) * scales).astype(np.float32) * np.ones(shape[0], np.float32)
        )
        bias = self.op(
            "DequantizeLinear",
            steps,
            scaled,
            self.weight("bz", np.zeros(shape[0], np.int32)),
            axis=0,
        )
        return self.op("Conv", value, weight, bias, **attributes)

    def product(self, value: str, shape: tuple[int, int]) -> str:
        """With a bias of float32."""
        weight, _ = self.quantized_weight(shape, 1, True)
        return self.op(
            "Add",
            self.op("MatMul", value, weight),
            self.weight("b", self._numbers.standard_normal(shape[1]).astype(np.float32)),
        )

    def graph(
        self, output: str, inputs: dict[str, Any], outputs: dict[str, Any]
    ) -> onnx.GraphProto:
        [name] = outputs
        return graph(
            [*self.nodes, node("Identity", [output], [name])], inputs, outputs, self.weights
        )


def residual_network() -> onnx.GraphProto:
    """What a quantized image network is made of: padding by a zero point, clamps, groups,
    depthwise, a sum, a concatenation, averages.
    """
    net = Network()
    x = net.quantized("x", 0.03, 119)
    a = net.convolution(x, 0.03, (16, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    a = net.quantized(
        net.op("Clip", a, net.weight("low", np.float32(0)), net.weight("high", np.float32(6))),
        0.0235,
        0,
    )
    b = net.convolution(a, 0.0235, (16, 1, 3, 3), per_channel=False, pads=[1, 1, 1, 1], group=16)
    b = net.quantized(b, 0.08, 131)
    c = net.quantized(net.op("Relu", net.op("Add", a, b)), 0.05, 3)
    d = net.quantized(net.convolution(c, 0.05, (8, 8, 1, 1), group=2), 0.4, 128)
    e = net.op("Concat", net.op("MaxPool", c, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), d, axis=1)
    e = net.quantized(e, 0.41, 127)
    f = net.quantized(net.op("AveragePool", e, kernel_shape=[2, 2], strides=[2, 2]), 0.2, 100)
    g = net.quantized(net.op("GlobalAveragePool", f), 0.1, 100)
    y = net.product(net.op("Flatten", g), (24, 10))
    return net.graph(y, {"x": [1, 3, 12, 12]}, {"y": [1, 10]})
