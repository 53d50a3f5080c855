"""Models in: from what a user names to a TVM module, its weights and a reference to compare with.

    from                              by                      reference
    *.onnx                            onnx_file               ONNX Runtime
    *.pt2 (torch.export.save)         exported_program        torch
    *.pt (torch.jit.save)             torchscript             torch
    *.pth (weights), with a module    state_dict              torch
    *.tflite                          tflite_file             LiteRT
    python:package.module:function    python_function         torch

What a file of torch is, its content says, not its suffix: see torch_file.

    key = fingerprint(model, cache)   # fast; None if only importing can tell what the model depends on
    imported = load(model, cache)     # seconds; afterwards the fingerprint is known
    key = fingerprint(model, cache)

The tables hold "module:function", imported on use: neither this module nor a fingerprint imports tvm, torch or onnxruntime.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import ModelError
from farm.types import Model
from farm.types.python_source import FORM, PYTHON, is_python

if TYPE_CHECKING:
    from farm.importers.imported import Imported as Imported

_LOADERS = {
    ".onnx": "farm.importers.onnx_file:load",
    ".pt2": "farm.importers.torch_file:load",
    ".pt": "farm.importers.torch_file:load",
    ".pth": "farm.importers.torch_file:load",
    ".tflite": "farm.importers.tflite_file:load",
    PYTHON: "farm.importers.python_function:load",
}
_FINGERPRINTS = {
    ".onnx": "farm.importers.fingerprints:fingerprint_onnx",
    ".pt2": "farm.importers.fingerprints:fingerprint_torch_file",
    ".pt": "farm.importers.fingerprints:fingerprint_torch_file",
    ".pth": "farm.importers.fingerprints:fingerprint_torch_file",
    ".tflite": "farm.importers.fingerprints:fingerprint_tflite",
    PYTHON: "farm.importers.fingerprints:fingerprint_python",
}
_TORCH_FILES = (".pt2", ".pt", ".pth")
_FIXES = {
    ".keras": "export it to ONNX: model.export('model.onnx', format='onnx')",
    ".h5": "load it with Keras 3, then export it to ONNX: model.export('model.onnx', format='onnx')",
    ".pb": "convert it to ONNX: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
    ".safetensors": "it holds weights alone: load them in a function, and name that as " + FORM,
}


def load(model: Model, cache: Path) -> Imported:
    """Import a model. Takes seconds, the import of TVM and the framework included, and runs the user's code for `python:` sources.

    What a `python:` source read is kept in `cache/python-sources`. Raises ModelError for whatever keeps the model from being imported.
    """
    loader = _chosen(_LOADERS, model)
    imported: Imported = loader(model)
    if model.batch is not None:
        from farm.importers.batches import at_batch

        imported = at_batch(model, imported, loader)
    if function := python_source(model):
        from farm.importers.fingerprints import remember

        remember(function, cache, imported.files)
    return imported


def fingerprint(model: Model, cache: Path) -> str | None:
    """The digest (SHA-256, hex) of everything that what `load` returns depends on: files, shapes, versions, the importers themselves.

    None for a `python:` source whose files are not known or have changed: `load` it, then ask again. Raises ModelError for a file that
    is missing, empty or a Git LFS pointer.
    """
    digest: str | None = _chosen(_FINGERPRINTS, model)(model, cache)
    return digest


def python_source(model: Model) -> str | None:
    """The `python:` function that a model's module comes from, if one does."""
    return model.source if is_python(model.source) else model.module


def _chosen(table: dict[str, str], model: Model) -> Callable[..., Any]:
    kind = PYTHON if is_python(model.source) else Path(model.source).suffix.lower()
    if kind not in table:
        raise ModelError(
            f"{model.source} is not a kind of model that farm reads",
            f"it reads {', '.join(key for key in table if key.startswith('.'))} files and {FORM}",
            _FIXES.get(kind, "export the model to ONNX (torch.onnx.export) or with torch.export.save"),
        )
    if model.module is not None and kind not in _TORCH_FILES:
        raise ModelError(f"{model.name} is no file of weights", f"{model.module} is named to take weights", "leave --module out")
    module, _, function = table[kind].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
