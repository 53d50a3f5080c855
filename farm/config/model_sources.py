"""Locations of models and their files: paths, `package:` resources of farm, `python:` functions.

Relative paths start from a given folder. The functions raise ValueError with the reason in words,
because only the caller knows whether the mistake is in a file or in an argument.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from farm.errors import ModelError
from farm.types import RECIPES, Model
from farm.types.python_function_reference import (
    FORM,
    PYTHON,
    is_python_function_reference,
    normalize_python_function_reference,
)

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIXES = (
    ".onnx",
    ".pt2",
    ".pt",
    ".pth",
    ".tflite",
    ".h5",
    ".keras",
    ".pb",
    ".safetensors",
    *RECIPES,
)


def resolve_file(text: str, folder: Path, or_folder: bool = False) -> Path:
    """Return the absolute path of an existing file, or with `or_folder` also of a folder.

    `text` is a path relative to `folder`, or `package:path`.
    """
    if text.startswith("package:"):
        path = PACKAGE / text.removeprefix("package:").lstrip("/")
    else:
        path = Path(_expanded(text))
        path = path if path.is_absolute() else folder / path
    try:
        if path.is_dir() and not or_folder:
            raise ValueError(f"{path} is a folder, not a file")
        if not path.exists():
            raise ValueError(f"no file {path}{_near(path)}")
        return path.resolve()
    except OSError as exc:
        raise ValueError(f"cannot look at {path}: {exc.strerror}") from exc


def resolve_source(text: str, folder: Path) -> str:
    """Return a model's source in the form of `Model.source`.

    That is an absolute path, or `python:package.module:function`.
    """
    return (
        normalize_python_function_reference(text)
        if is_python_function_reference(text)
        else str(resolve_file(text, folder))
    )


def is_model_source(text: str) -> bool:
    """Return whether a word of the command line names a source, rather than a configured model."""
    return (
        text.startswith((PYTHON, "package:", "~"))
        or "/" in text
        or text.lower().endswith(SUFFIXES)
        or is_accessible_file(Path(text))
    )


def is_accessible_file(path: Path) -> bool:
    """Return whether a file exists and may be accessed."""
    try:
        return path.is_file()
    except OSError:
        return False


def model_from_source(text: str, taken: dict[str, Model]) -> Model:
    """Return a model that is not configured, named after its file or function.

    Its name is the full one if another model has the short one, and if the file is a quantized
    model: net.int8 is not net. If a model of `taken` has the same source, that one is returned.
    Raises ModelError if there is no such file.
    """
    try:
        source = resolve_source(text, Path())
    except ValueError as exc:
        fix = (
            f"name an existing file, or {FORM}"
            if is_python_function_reference(text)
            else "check the path"
        )
        raise ModelError(f"no model {text!r}", str(exc), fix) from exc
    if known := next((model for model in taken.values() if model.source == source), None):
        return known
    short = text.rpartition(":")[2] if is_python_function_reference(text) else Path(text).stem
    return Model(
        absolute_source(text) if short in taken or text.lower().endswith(RECIPES) else short, source
    )


def absolute_source(source: str) -> str:
    """Return the full name of a model's file or function."""
    return source if is_python_function_reference(source) else Path(source).name


def _expanded(text: str) -> str:
    try:
        return str(Path(text).expanduser())
    except RuntimeError as exc:  # ~name of an unknown user
        raise ValueError(f"{text!r} names the home of an unknown user") from exc


def _near(path: Path) -> str:
    """Return a hint to similar files in the folder."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    files = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    alike = (
        difflib.get_close_matches(path.name, files, n=3)
        or [name for name in files if Path(name).suffix == path.suffix][:5]
    )
    return f"; that folder has {', '.join(alike)}" if alike else ""
