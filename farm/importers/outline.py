"""What a model holds, as `farm check` says it; of ONNX and TFLite files before they are imported, of others from what the import made."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.types import Model, shape_in_words
from farm.types.python_source import is_python

if TYPE_CHECKING:
    from farm.importers.imported import Imported

_OUTLINES = {".onnx": "farm.importers.onnx_outline", ".tflite": "farm.importers.tflite_outline"}


@dataclass(frozen=True, slots=True)
class Problem:
    """An operator, or something of it, that cannot be imported, and the nodes where."""

    operator: str
    what: str  # of the operator; "" for all of it
    nodes: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class Outline:
    """Inputs and outputs as text, the weights' numbers and bytes, how often each operator occurs, and what cannot be imported."""

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    operators: dict[str, int]
    problems: tuple[Problem, ...] = ()


def before_import(model: Model) -> Outline | None:
    """The outline of an ONNX or a TFLite file; None for what only the import can tell."""
    kind = "" if is_python(model.source) else Path(model.source).suffix.lower()
    if kind not in _OUTLINES:
        return None
    outline: Outline = importlib.import_module(_OUTLINES[kind]).outline(model)
    return outline


def of_imported(model: Model, imported: Imported) -> Outline:
    """The outline by the operators that the import made."""
    from tvm import relax

    operators: Counter[str] = Counter()

    def count(node: object) -> None:
        if isinstance(node, relax.Call) and hasattr(node.op, "name"):
            operators[node.op.name.removeprefix("relax.").removeprefix("nn.")] += 1

    relax.analysis.post_order_visit(imported.module["main"], count)
    return Outline(
        source=model.source,
        inputs=tuple(f"{spec.name} {spec.dtype} {shape_in_words(spec)}" for spec in imported.inputs),
        outputs=tuple(f"{spec.name} {spec.dtype} {shape_in_words(spec)}" for spec in imported.outputs),
        parameters=sum(weight.size for weight in imported.weights),
        parameter_bytes=sum(weight.nbytes for weight in imported.weights),
        operators=dict(operators.most_common()),
    )
