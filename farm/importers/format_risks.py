"""Describe, for `farm check`, what each format could do to this machine and how farm limits it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from farm.importers.torch.load import FileKind, detect_file_kind
from farm.types import Model
from farm.types.python_function_reference import is_python_function_reference


@dataclass(frozen=True, slots=True)
class FormatRisk:
    """A format: its name, whether it is a program, and how farm limits what it could do."""

    format: str
    program: bool
    note: str

    def __str__(self) -> str:
        return f"{self.format}, {'a program' if self.program else 'data'}: {self.note}"


ONNX = FormatRisk(
    "ONNX", False, "a graph of operators; external weights are read from the model's folder alone"
)
TFLITE = FormatRisk(
    "TFLite", False, "a graph of operators in one file; operators of your own are refused"
)
EXPORTED = FormatRisk(
    "exported program of torch",
    True,
    "farm refuses code, pickles and operators that do more than compute",
)
SCRIPT = FormatRisk(
    "TorchScript", True, "farm refuses operators that read or write files, start programs or print"
)
WEIGHTS = FormatRisk(
    "weights of torch",
    False,
    "a pickle, of which tensors are read and nothing else; --module is code, and yours",
)
PYTHON = FormatRisk("Python", True, "it runs with all your rights: name only code that you trust")

_OF_TORCH = {FileKind.PROGRAM: EXPORTED, FileKind.SCRIPT: SCRIPT, FileKind.PICKLE: WEIGHTS}


def format_risk_of(model: Model) -> FormatRisk | None:
    """Return the capability of a model's format, determined by its file's content.

    Returns None for a file that cannot be read; the import reports the reason.
    """
    if is_python_function_reference(model.source):
        return PYTHON
    path = Path(model.source)
    suffix = path.suffix.lower()
    if suffix in (".onnx", ".tflite"):
        return ONNX if suffix == ".onnx" else TFLITE
    try:
        kind = detect_file_kind(path)
    except (OSError, zipfile.BadZipFile):
        return None
    return None if kind is None else _OF_TORCH[kind]
