"""Summarise a model's content for `farm check`.

ONNX and TFLite files are summarised before the import, other formats from the imported module.
"""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.types import Model, describe_shape
from farm.types.python_function_reference import is_python_function_reference

if TYPE_CHECKING:
    from farm.importers.imported_model import ImportedModel

_OUTLINES = {".onnx": "farm.importers.onnx.summary", ".tflite": "farm.importers.tflite.summary"}


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """An operator, or an aspect of it, that cannot be imported, and the affected nodes."""

    operator: str
    what: str  # the unsupported aspect; "" if the whole operator is
    nodes: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model's summary.

    Inputs and outputs are text. `parameters` counts the weights' elements and `parameter_bytes`
    their bytes. `operators` counts how often each occurs; `problems` lists what cannot be imported.
    """

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    operators: dict[str, int]
    problems: tuple[ImportProblem, ...] = ()


def summarize_onnx_or_tflite_file(model: Model) -> ModelSummary | None:
    """Return the outline of an ONNX or TFLite file; None for formats that need an import."""
    kind = "" if is_python_function_reference(model.source) else Path(model.source).suffix.lower()
    if kind not in _OUTLINES:
        return None
    outline: ModelSummary = importlib.import_module(_OUTLINES[kind]).summarize(model)
    return outline


def summarize_imported(model: Model, imported: ImportedModel) -> ModelSummary:
    """Return the outline of an imported model, with the Relax operators of its module."""
    from tvm import relax

    operators: Counter[str] = Counter()

    def count(node: object) -> None:
        if isinstance(node, relax.Call) and hasattr(node.op, "name"):
            operators[node.op.name.removeprefix("relax.").removeprefix("nn.")] += 1

    relax.analysis.post_order_visit(imported.module["main"], count)
    return ModelSummary(
        source=model.source,
        inputs=tuple(
            f"{spec.name} {spec.dtype} {describe_shape(spec)}" for spec in imported.inputs
        ),
        outputs=tuple(
            f"{spec.name} {spec.dtype} {describe_shape(spec)}" for spec in imported.outputs
        ),
        parameters=sum(weight.size for weight in imported.weights),
        parameter_bytes=sum(weight.nbytes for weight in imported.weights),
        operators=dict(operators.most_common()),
    )
