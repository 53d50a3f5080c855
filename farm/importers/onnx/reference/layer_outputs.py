"""Compute the output of every node of an ONNX model with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.inliner

from farm.importers.onnx.reference.runtime import create_session

_AT_ONCE = 32  # tensors that are computed in one run, which bounds the memory


def onnx_layer_outputs(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield the name, operator and first output of each node, in order, without subgraphs.

    The model is modified.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    nodes = {node.output[0]: node for node in model.graph.node if node.output and node.output[0]}
    there = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes if name not in there)
    running = create_session(model.SerializeToString())
    names = list(nodes)
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        for name, value in zip(some, running.run(some, dict(inputs)), strict=True):
            if isinstance(value, np.ndarray):
                yield nodes[name].name or name, nodes[name].op_type, value
