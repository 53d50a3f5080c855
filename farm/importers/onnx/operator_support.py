"""Find all operators of an ONNX model that cannot be imported, before TVM fails at the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import onnx

from farm.errors import ModelError
from farm.importers.onnx.node_reading import all_nodes
from farm.importers.onnx.unsupported import graph_facts, unsupported_reason
from farm.importers.summary import ImportProblem

_DEFAULT_DOMAINS = ("", "ai.onnx")
# TVM looks converters up by name alone. These are written for ONNX Runtime's contributed operators.
# Attention and Gelu exist in ONNX too: Gelu has the same meaning in both, Attention does not.
_MICROSOFT_ONLY = (
    "FastGelu",
    "BiasGelu",
    "QuickGelu",
    "MatMulInteger16",
    "MatMulNBits",
    "FusedMatMul",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "MatMulBnb4",
    "MultiHeadAttention",
    "RotaryEmbedding",
    "EmbedLayerNormalization",
    "AllClassNMS",
    "Attention",
)
MICROSOFT = (*_MICROSOFT_ONLY, "Gelu")
_BUILT_IN = ("If",)  # converted by the importer itself, not by a converter of its table
_NAMES_SHOWN = 3
_FIX = (
    "export the model without them (another opset_version may decompose them into simpler "
    "operators), or end it before them"
)


def import_problems(model: onnx.ModelProto) -> list[ImportProblem]:
    """Return everything that the import would refuse, sorted by operator."""
    known, found = graph_facts(model), defaultdict[tuple[str, str], list[str]](list)
    for node in all_nodes(model.graph):
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        what = unsupported_reason(node, known)
        if what or not has_converter(node):
            found[operator, what].append(node.name or f"-> {node.output[0]}")
    return [
        ImportProblem(operator, what, tuple(names), _FIX)
        for (operator, what), names in sorted(found.items())
    ]


def check_operators(model: onnx.ModelProto, what: str) -> None:
    """Raise ModelError if operators cannot be imported.

    The error names each of them, how often it occurs, and some of its nodes.
    """
    found = import_problems(model)
    if lacking := [problem for problem in found if not problem.what]:
        names = [problem.operator for problem in lacking]
        raise ModelError(
            (
                f"{what} uses {len(names)} operator{'s' if len(names) > 1 else ''} that TVM "
                f"cannot import: {', '.join(names)}"
            ),
            f"TVM's ONNX importer has no converter for {'; '.join(map(_listed, found))}",
            _FIX,
        )
    if found:
        raise ModelError(
            (
                f"{what} uses what farm does not support: "
                f"{', '.join(f'{problem.operator}: {problem.what}' for problem in found)}"
            ),
            "; ".join(map(_listed, found)),
            _FIX,
        )


def has_converter(node: onnx.NodeProto) -> bool:
    """Return whether TVM's importer or farm has a converter for a node's operator."""
    from farm.importers.onnx.converters import converter_table

    if node.domain == "com.microsoft":
        return node.op_type in MICROSOFT
    if node.domain not in _DEFAULT_DOMAINS or node.op_type in _MICROSOFT_ONLY:
        return False
    return node.op_type in _BUILT_IN or node.op_type in converter_table()


def _listed(problem: ImportProblem) -> str:
    """Return a problem as text, with the number of nodes and the names of some."""
    said = f"{problem.operator}: {problem.what}" if problem.what else problem.operator
    return f"{said} x{len(problem.nodes)} ({_some(problem.nodes)})"


def _some(names: Sequence[str]) -> str:
    """Return the first names, comma-separated."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown}, ..." if len(names) > _NAMES_SHOWN else shown
