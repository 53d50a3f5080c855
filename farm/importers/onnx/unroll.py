"""Unroll an ONNX `Loop` or `Scan`: copies of its body, with names of their own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

MOST_NODES = 5_000  # in the copies of a body
_AXES_AS_INPUT = 13  # the first opset whose Unsqueeze takes its axes as an input


@dataclass(frozen=True)
class Copy:
    """A copy of a body: its nodes and initializers, and the names of its results."""

    nodes: list[onnx.NodeProto]
    initializers: list[onnx.TensorProto]
    results: list[str]


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, or the default."""
    found = [one for one in node.attribute if one.name == name]
    return helper.get_attribute_value(found[0]) if found else default


def copied(body: onnx.GraphProto, inputs: Sequence[str], prefix: str) -> Copy:
    """Return a copy of a body that reads these inputs; other names in it begin with `prefix`."""
    own = [tensor.name for tensor in body.initializer]
    own += [name for node in body.node for name in node.output if name]
    names = {name: f"{prefix}{name}" for name in own}
    names |= dict(zip((value.name for value in body.input), inputs, strict=True))
    initializers = []
    for tensor in body.initializer:
        initializers.append(onnx.TensorProto())
        initializers[-1].CopyFrom(tensor)
        initializers[-1].name = names[tensor.name]
    nodes = [_renamed(node, names) for node in body.node]
    return Copy(nodes, initializers, [names.get(one.name, one.name) for one in body.output])


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.input[:], result.output[:]
    result.input.extend(names.get(name, name) for name in node.input)
    result.output.extend(names.get(name, name) for name in node.output)
    for one in result.attribute:
        for graph in (one.g, *one.graphs) if one.HasField("g") or one.graphs else ():
            for value in graph.output:
                value.name = names.get(value.name, value.name)
            inner = [_renamed(each, names) for each in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return result


def constant(value: Any, name: str) -> onnx.TensorProto:
    """Return a tensor with a name."""
    return numpy_helper.from_array(np.asarray(value), name)


class Stack:
    """Nodes that stack the results of a body's copies along a new axis, and their constants."""

    def __init__(self, prefix: str, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._prefix, self._opset, self._count = prefix, opset, itertools.count()

    def add(self, parts: Sequence[str], axis: int, result: str) -> None:
        """Add the nodes that stack `parts` into `result`."""
        wide = []
        for part in parts:
            name = f"{self._prefix}part{next(self._count)}"
            if self._opset >= _AXES_AS_INPUT:
                self.initializers.append(constant(np.array([axis], np.int64), f"{name}/axes"))
                node = helper.make_node("Unsqueeze", [part, f"{name}/axes"], [name])
            else:
                node = helper.make_node("Unsqueeze", [part], [name], axes=[axis])
            self.nodes.append(node)
            wide.append(name)
        self.nodes.append(helper.make_node("Concat", wide, [result], axis=axis))
