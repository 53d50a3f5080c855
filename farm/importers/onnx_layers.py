"""What every node of an ONNX model gives, by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx.inliner

from farm.importers.onnx_session import session

_AT_ONCE = 32  # tensors, of those that lie in memory at one time


def onnx_layers(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
    """The name, the operator and the first output of each node, in order; nothing of what is in subgraphs. The model is changed."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    nodes = {node.output[0]: node for node in model.graph.node if node.output and node.output[0]}
    there = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes if name not in there)
    running = session(model.SerializeToString())
    names = list(nodes)
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        for name, value in zip(some, running.run(some, dict(inputs)), strict=True):
            if isinstance(value, np.ndarray):
                yield nodes[name].name or name, nodes[name].op_type, value
