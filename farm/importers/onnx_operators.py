"""Which operators of an ONNX model TVM's importer has no converter for: all of them, before it trips over the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx

from farm.errors import ModelError

_DEFAULT_DOMAINS = ("", "ai.onnx")
# TVM looks converters up by name alone. These are written for ONNX Runtime's contributed operators, the last two of which share their
# name with an ONNX operator: Gelu means the same in both, Attention does not.
_MICROSOFT_ONLY = (
    "FastGelu",
    "BiasGelu",
    "MatMulInteger16",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "AllClassNMS",
    "Attention",
)
_MICROSOFT = (*_MICROSOFT_ONLY, "Gelu")
_BUILT_IN = ("If",)  # converted by the importer itself, not by its table
_NAMES_SHOWN = 3


def check_operators(model: onnx.ModelProto, what: str) -> None:
    """Raise a ModelError that names every operator without a converter, how often it occurs, and some of the nodes."""
    unknown: dict[str, list[str]] = defaultdict(list)
    for node in _nodes(model.graph):
        if not _has_converter(node):
            unknown[f"{node.domain}::{node.op_type}" if node.domain else node.op_type].append(node.name or f"-> {node.output[0]}")
    if unknown:
        listed = "; ".join(f"{operator} x{len(nodes)} ({_some(nodes)})" for operator, nodes in sorted(unknown.items()))
        raise ModelError(
            f"{what} uses {len(unknown)} operator{'s' if len(unknown) > 1 else ''} that TVM cannot import: {', '.join(sorted(unknown))}",
            f"TVM's ONNX importer has no converter for {listed}",
            "export the model without them (another opset_version may decompose them into simpler operators), or end it before them",
        )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _nodes(subgraph)


def _has_converter(node: onnx.NodeProto) -> bool:
    from farm.importers.onnx_converters import converters

    if node.domain == "com.microsoft":
        return node.op_type in _MICROSOFT
    if node.domain not in _DEFAULT_DOMAINS or node.op_type in _MICROSOFT_ONLY:
        return False
    return node.op_type in _BUILT_IN or node.op_type in converters()


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown}, ..." if len(names) > _NAMES_SHOWN else shown
