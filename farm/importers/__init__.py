"""Import models: turn a source into a TVM module, its weights and a reference to compare with.

    source  module of farm.importers  reference
    *.onnx                            onnx.load                 ONNX Runtime
    *.pt2 (torch.export.save)         torch.exported_program    torch
    *.pt (torch.jit.save)             torch.torchscript         torch
    *.pth (weights), with a module    torch.state_dict          torch
    *.tflite                          tflite.load               LiteRT
    python:package.module:function    torch.python_function     torch

A torch file's format is detected by its content, not by its suffix: see torch.load. Modules and
packages:

    imported_model        the class that every importer returns, and example inputs
    model_file_check      checks of a model's file that need no framework
    fingerprints          digests of everything that an import depends on
    fixed_batch           import a model for a fixed batch
    summary               a model's inputs, outputs, weights and operators for `farm check`
    format_risks          which formats are programs, and how farm restricts them
    archive_check         read zip archives and refuse ambiguous ones
    size_limits           refuse tensors larger than this machine's memory
    relax_postprocessing  steps that all importers apply to TVM's module
    fourier               Fourier transforms as products with matrices
    grid_sampling         images that TVM can sample at the places of a grid
    extents               questions about extents, of which some are open
    layer_names           keep the source operators' names on Relax variables
    farm_kernels          replace operators by kernels of farm.kernels
    onnx                  ONNX files
    torch                 PyTorch files and functions
    tflite                TFLite files

How to use it:

    key = fingerprint(model, cache)   # fast; None if only an import can find the dependencies
    imported = load(model, cache)     # seconds; afterwards the fingerprint is known
    key = fingerprint(model, cache)

The tables hold "module:function", imported on use: neither this module nor a fingerprint imports
tvm, torch or onnxruntime.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import ModelError
from farm.types import Model
from farm.types.python_function_reference import FORM, PYTHON, is_python_function_reference

if TYPE_CHECKING:
    from farm.importers.imported_model import ImportedModel as ImportedModel

_LOADERS = {
    ".onnx": "farm.importers.onnx.load:load",
    ".pt2": "farm.importers.torch.load:load",
    ".pt": "farm.importers.torch.load:load",
    ".pth": "farm.importers.torch.load:load",
    ".tflite": "farm.importers.tflite.load:load",
    PYTHON: "farm.importers.torch.python_function:load",
}
_FINGERPRINTS = {
    ".onnx": "farm.importers.fingerprints:fingerprint_onnx_import",
    ".pt2": "farm.importers.fingerprints:fingerprint_torch_file_import",
    ".pt": "farm.importers.fingerprints:fingerprint_torch_file_import",
    ".pth": "farm.importers.fingerprints:fingerprint_torch_file_import",
    ".tflite": "farm.importers.fingerprints:fingerprint_tflite_import",
    PYTHON: "farm.importers.fingerprints:fingerprint_python_function_import",
}
_TORCH_FILES = (".pt2", ".pt", ".pth")
_FIXES = {
    ".keras": "export it to ONNX: model.export('model.onnx', format='onnx')",
    ".h5": "load it with Keras 3, then export it to ONNX: model.export('model.onnx', format='onnx')",  # noqa: E501
    ".pb": "convert it to ONNX: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
    ".safetensors": "it holds weights alone: load them in a function, and name that as " + FORM,
}


def import_model(model: Model, cache: Path) -> ImportedModel:
    """Import a model; raise ModelError if it cannot be imported.

    Takes seconds, including the import of TVM and the framework. Runs the user's code for `python:`
    sources, and records the files that it read in `cache/python-sources`.
    """
    loader = _chosen(_LOADERS, model)
    if Path(model.source).suffix.lower() != ".onnx":
        from farm.importers.model_file_check import (
            refuse_constant_input_overrides,
            refuse_empty_inputs,
        )

        refuse_empty_inputs(model)
        if not may_contain_code(model):
            refuse_constant_input_overrides(model)
    imported: ImportedModel = loader(model)
    if model.batch is not None:
        from farm.importers.fixed_batch import import_at_batch

        imported = import_at_batch(model, imported, loader)
    if function := python_function_reference_of_model(model):
        from farm.importers.fingerprints import record_dependencies

        record_dependencies(function, cache, imported.files)
    return imported


def import_fingerprint(model: Model, cache: Path) -> str | None:
    """Return the SHA-256 digest (hex) of everything that the result of `import_model` depends on.

    That is: files, shapes, versions and the importers' own sources. Returns None for a `python:`
    source whose files are unknown or have changed: call `import_model`, then call this again.
    Raises ModelError for a file that is missing, empty or a Git LFS pointer.
    """
    digest: str | None = _chosen(_FINGERPRINTS, model)(model, cache)
    return digest


def python_function_reference_of_model(model: Model) -> str | None:
    """Return the `python:` function that returns the model's module; None if there is none."""
    return model.source if is_python_function_reference(model.source) else model.module


def may_contain_code(model: Model) -> bool:
    """Return whether a model's file may contain its author's code, as .pt2 and TorchScript do."""
    return (
        not is_python_function_reference(model.source)
        and Path(model.source).suffix.lower() in _TORCH_FILES
        and model.module is None
    )


def importer_module_name(model: Model) -> str:
    """Return the name of the module that imports this kind of model.

    Raises ModelError for a kind that farm does not read.
    """
    return _entry(_LOADERS, model).partition(":")[0]


def check_source(model: Model) -> None:
    """Raise ModelError for an unknown kind and for a file that is missing, a folder or empty."""
    from farm.importers.model_file_check import check_file

    _entry(_LOADERS, model)
    check_file(Path(model.source))


def model_files(model: Model) -> list[Path]:
    """Return the model's file and the external weight files that lie in or below its folder."""
    from farm.importers.fingerprints import checked_external_files

    path = Path(model.source)
    beside = checked_external_files(path) if path.suffix.lower() == ".onnx" else []
    folder = path.resolve().parent
    return [path, *(other for other in beside if other.resolve().is_relative_to(folder))]


def _chosen(table: dict[str, str], model: Model) -> Callable[..., Any]:
    """Return the function that a table names for this kind of model."""
    module, _, function = _entry(table, model).partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _entry(table: dict[str, str], model: Model) -> str:
    """Return the "module:function" of this kind of model; raise ModelError for an unknown kind."""
    kind = (
        PYTHON if is_python_function_reference(model.source) else Path(model.source).suffix.lower()
    )
    if kind not in table:
        raise ModelError(
            f"{model.source} is not a kind of model that farm reads",
            f"it reads {', '.join(key for key in table if key.startswith('.'))} files and {FORM}",
            _FIXES.get(
                kind, "export the model to ONNX (torch.onnx.export) or with torch.export.save"
            ),
        )
    if (kind == PYTHON or kind in _TORCH_FILES) and importlib.util.find_spec("torch") is None:
        why = (
            "it comes from PyTorch, which is not installed; ONNX and TFLite files are read "
            "without it"
        )
        raise ModelError(
            f"{Path(model.source).name} cannot be read without PyTorch",
            why,
            "pip install 'tvm-farm[torch]'",
        )
    if model.module is not None and kind not in _TORCH_FILES:
        raise ModelError(
            f"{model.name} is no file of weights",
            f"{model.module} is named to take weights",
            "leave --module out",
        )
    return table[kind]
