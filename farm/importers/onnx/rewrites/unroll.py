"""Unroll an ONNX `Loop` or `Scan`: copies of its body, with names of their own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from farm.importers.onnx.node_reading import subgraphs

MOST_NODES = 5_000  # in the copies of a body
_AXES_AS_INPUT = 13  # the first opset whose Unsqueeze takes its axes as an input


@dataclass(frozen=True)
class BodyCopy:
    """A copy of a body: its nodes and initializers, and the names of its results."""

    nodes: list[onnx.NodeProto]
    initializers: list[onnx.TensorProto]
    results: list[str]


def copy_body(body: onnx.GraphProto, inputs: Sequence[str], prefix: str) -> BodyCopy:
    """Return a copy of a body that reads these inputs; other names in it begin with `prefix`.

    So do the names in its own branches and loops, which may become part of the graph later.
    """
    names = {name: f"{prefix}{name}" for name in _defined(body)}
    names |= dict(zip((value.name for value in body.input), inputs, strict=True))
    copy = onnx.GraphProto()
    copy.CopyFrom(body)
    _rename(copy, names)
    return BodyCopy(list(copy.node), list(copy.initializer), [value.name for value in copy.output])


def _defined(graph: onnx.GraphProto) -> list[str]:
    """Return all names that a graph and the graphs in it define, except for its own inputs."""
    names = [tensor.name for tensor in graph.initializer]
    for node in graph.node:
        names += [name for name in node.output if name]
        for inner in subgraphs(node):
            names += [value.name for value in inner.input] + _defined(inner)
    return names


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
        for place, name in enumerate(node.output):
            node.output[place] = names.get(name, name)
        for inner in subgraphs(node):
            _rename(inner, names)


def make_named_tensor(value: Any, name: str) -> onnx.TensorProto:
    """Return a tensor with a name."""
    return numpy_helper.from_array(np.asarray(value), name)


class ResultStackingNodes:
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
                self.initializers.append(
                    make_named_tensor(np.array([axis], np.int64), f"{name}/axes")
                )
                node = helper.make_node("Unsqueeze", [part, f"{name}/axes"], [name])
            else:
                node = helper.make_node("Unsqueeze", [part], [name], axes=[axis])
            self.nodes.append(node)
            wide.append(name)
        self.nodes.append(helper.make_node("Concat", wide, [result], axis=axis))
