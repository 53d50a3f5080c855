"""Check a model's file without a framework; all formats share these errors."""

from __future__ import annotations

import shlex
from pathlib import Path

from farm.errors import ModelError, did_you_mean
from farm.regular_files import check_not_special_file
from farm.types import Model

_LFS = b"version https://git-lfs.github.com/spec/"


def check_file(path: Path) -> None:
    """Raise ModelError unless `path` is a readable model file.

    Missing files, folders, pipes, devices, empty files and Git LFS pointers are refused.
    """
    if not path.exists():
        raise _missing(path)
    if path.is_dir():
        raise ModelError(
            f"{path} is a folder, not a model", "a model is one file", f"name the file: {path}/..."
        )
    try:
        check_not_special_file(path)
        with path.open("rb") as file:
            head = file.read(len(_LFS))
    except OSError as exc:
        raise ModelError(
            f"{path} cannot be read",
            exc.strerror or str(exc),
            f"look at its permissions: ls -l {shlex.quote(str(path))}",
        ) from exc
    if not head:
        raise ModelError(f"{path} is empty", "it has 0 bytes", "copy or export the model again")
    if head == _LFS:
        raise ModelError(
            f"{path} is a Git LFS pointer, not the model",
            "the repository was cloned without its large files",
            "git lfs pull",
        )


def refuse_dtype_overrides(model: Model) -> None:
    """Raise ModelError if dtypes are requested for a format whose file fixes them."""
    if model.dtypes:
        name = Path(model.source).name
        raise ModelError(
            f"{name} fixes its element types",
            "--dtype changes modules and TorchScript",
            "export the model in the type you want",
        )


def refuse_empty_inputs(model: Model) -> None:
    """Raise ModelError if an input of a format other than ONNX is stated to have no elements."""
    if empty := [name for name, shape in model.shapes.items() if 0 in shape]:
        raise ModelError(
            f"{Path(model.source).name}: the input {empty[0]} would have no elements",
            f"its shape is stated as {list(model.shapes[empty[0]])}",
            "state extents of at least 1, or export the model to ONNX, which takes an empty input",
        )


def refuse_constant_input_overrides(model: Model) -> None:
    """Raise ModelError if inputs of a format other than ONNX are stated to be constants."""
    if model.values:
        name = Path(model.source).name
        fix = "leave it out, or export the model to ONNX, or without this input"
        raise ModelError(
            f"{name}: {', '.join(model.values)} cannot be made a constant",
            "--value is for ONNX models, and for plain numbers of TorchScript",
            fix,
        )


def _missing(path: Path) -> ModelError:
    """Return the ModelError for a missing file, with a similar name as a hint."""
    if not path.parent.is_dir():
        return ModelError(
            f"no file {path}", f"there is no folder {path.parent} either", "check the path"
        )
    near = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    hint = did_you_mean(path.name, near) if near else ""
    return ModelError(f"no file {path}", hint, f"check the path: ls {path.parent}")
