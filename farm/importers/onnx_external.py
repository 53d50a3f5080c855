"""Where an ONNX model keeps weights outside its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx


def external_files(path: Path) -> list[Path]:
    """The external data files of a model, sorted; none for a file that is no ONNX model, which the import will say."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # protobuf's DecodeError, under a name that depends on the version
        return []
    names = {entry.value for tensor in _tensors(model.graph) for entry in tensor.external_data if entry.key == "location"}
    return sorted(path.parent / name for name in names)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _tensors(subgraph)
