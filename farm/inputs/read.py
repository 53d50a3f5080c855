"""Read arrays, images and labels from files, and check them against the model's inputs."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.errors import ModelError, did_you_mean
from farm.inputs.images import Tell, read_image
from farm.inputs.quantize import quantize_input
from farm.regular_files import check_not_special_file
from farm.types import PreprocessSettings, TensorSpec, describe_shape

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

ARRAY_ERRORS = (
    OSError,
    MemoryError,
    ValueError,
    EOFError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_inputs(
    path: Path,
    inputs: Sequence[TensorSpec],
    preprocess: PreprocessSettings,
    tell: Tell | None = None,
) -> dict[str, Array]:
    """Return the inputs of one inference by name, with exactly the model's shapes and dtypes.

    If the model's batch is open, the arrays may have any batch, the same for all inputs. An `.npz`
    file holds one array per input, by name, or a single array of any name for a model with one
    input. An `.npy` file holds one array. Any other file is an image; `tell` is called with a
    description of its conversion.

    Only lossless casts are made, except that floating-point numbers are quantized for quantized
    inputs. Raises ModelError for wrong names, shapes or dtypes, for NaN, and for files that cannot
    be read.
    """
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".npy"):
        spec = require_single_input(inputs, path, "an image")
        return {spec.name: read_image(path, spec, preprocess, tell)}
    arrays = (
        _named(_load_all(path), inputs, path)
        if suffix == ".npz"
        else {require_single_input(inputs, path, "a .npy file").name: _load(path)}
    )
    fitted = {spec.name: _fit(arrays[spec.name], spec, path) for spec in inputs}
    if (
        len(batches := {spec.name: len(fitted[spec.name]) for spec in inputs if spec.open}) > 1
        and len(set(batches.values())) > 1
    ):
        said = ", ".join(f"{name} {batch}" for name, batch in batches.items())
        raise ModelError(
            f"{path}: the inputs are not of one batch",
            f"they are: {said}",
            "give all of them the same first axis",
        )
    return fitted


def read_class_names(path: Path) -> list[str]:
    """Return the names of the classes from a text file with one name per line.

    Raises ModelError if the file cannot be read or is empty.
    """
    try:
        check_not_special_file(path)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(
            f"{path} cannot be read as labels", str(exc), "name a text file with a label a line"
        ) from exc
    labels = [line.strip() for line in lines]
    while labels and not labels[-1]:
        labels.pop()
    if not labels:
        raise ModelError(
            f"{path} holds no labels",
            "it is empty",
            "write a label a line, in the order of the model's scores",
        )
    return labels


def require_single_input(inputs: Sequence[TensorSpec], path: Path, kind: str) -> TensorSpec:
    """Return the only input of the model; raise ModelError if the model has several."""
    if len(inputs) != 1:
        raise ModelError(
            f"{path}: {kind} feeds one input, and the model has {len(inputs)}",
            f"they are {', '.join(map(_describe, inputs))}",
            "save an array for each in an .npz file: numpy.savez(path, "
            + ", ".join(f"{spec.name}=..." for spec in inputs)
            + ")",
        )
    return inputs[0]


def _named(arrays: dict[str, Array], inputs: Sequence[TensorSpec], path: Path) -> dict[str, Array]:
    """Return the arrays by the names of the inputs; raise ModelError if the names do not match.

    With one input and one array any name is accepted: numpy.savez(path, array) uses the name arr_0.
    """
    if len(arrays) == len(inputs) == 1:
        return {inputs[0].name: next(iter(arrays.values()))}
    wanted = {spec.name for spec in inputs}
    if arrays.keys() == wanted:
        return arrays
    missing, extra = sorted(wanted - arrays.keys()), sorted(arrays.keys() - wanted)
    said = [f"no array for {', '.join(missing)}"] if missing else []
    said += (
        [f"nothing takes {', '.join(extra)} ({did_you_mean(extra[0], wanted)})"] if extra else []
    )
    why = f"the model takes {', '.join(map(_describe, inputs))}; the file has {_listed(arrays)}"
    raise ModelError(
        f"{path}: {' and '.join(said)}",
        why,
        "save each array under the name of its input: numpy.savez(path, name=array, ...)",
    )


def _fit(array: Array, spec: TensorSpec, path: Path) -> Array:
    """Return the array in the input's dtype; raise ModelError if shape or dtype do not fit."""
    fits = (
        array.shape[1:] == spec.shape[1:] and array.ndim and len(array)
        if spec.open
        else array.shape == spec.shape
    )
    if not fits:
        raise ModelError(
            f"{path}: the array for {spec.name!r} has the wrong shape",
            f"the model takes {describe_shape(spec)}, the array is {list(array.shape)}",
            f"reshape it: array.reshape({list(spec.shape)})"
            if array.size == np.prod(spec.shape)
            else "feed what the model takes, or override the shape with --shape",
        )
    return cast_losslessly(array, spec, path)


def cast_losslessly(array: Array, spec: TensorSpec, path: Path) -> Array:
    """Return the array in the input's dtype, if the cast is lossless.

    Floating-point numbers for a quantized input are quantized by its scale. Raises ModelError if
    the cast could change values, or if the array holds NaN.
    """
    quantizes = bool(spec.scale) and array.dtype.kind == "f"
    if not quantizes and not np.can_cast(array.dtype, spec.dtype, casting="safe"):
        why = (
            f"the model takes {spec.dtype}, the array is {array.dtype}, and the cast could change "
            "values"
        )
        raise ModelError(
            f"{path}: the array for {spec.name!r} has the wrong dtype",
            why,
            f'cast it: array.astype("{spec.dtype}")',
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        why = f"{int(np.isnan(array).sum())} of its {array.size} values"
        raise ModelError(
            f"{path}: the array for {spec.name!r} holds NaN",
            why,
            "look for it with numpy.isnan(array).nonzero()",
        )
    return quantize_input(array, spec) if quantizes else np.asarray(array, spec.dtype, order="C")


def _load(path: Path) -> Array:
    """Load the array of an `.npy` file."""
    try:
        check_not_special_file(path, or_pipe=True)
        array = np.load(path, allow_pickle=False)
    except ARRAY_ERRORS as exc:
        raise unreadable_error(path, exc) from exc
    if not isinstance(array, np.ndarray):
        array.close()
        raise ModelError(
            f"{path} is not a single array",
            "it is an .npz archive under another name",
            "rename it to .npz",
        )
    return array


def _load_all(path: Path) -> dict[str, Array]:
    """Load all arrays of an `.npz` file by name."""
    try:
        check_not_special_file(path, or_pipe=True)
        with np.load(path, allow_pickle=False) as archive:
            _check_size(archive)
            return {name: archive[name] for name in archive.files}
    # AttributeError and TypeError: a single array is not an archive.
    except (*ARRAY_ERRORS, AttributeError, TypeError) as exc:
        raise unreadable_error(path, exc) from exc


def _check_size(archive: Any) -> None:
    """Raise ValueError if the arrays of an `.npz` file would take more than half of the memory."""
    total = sum(member.file_size for member in archive.zip.infolist())
    if total > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2:
        raise ValueError(
            f"its arrays take {total / 2**30:.1f} GiB, more than half of this machine's memory"
        )


def unreadable_error(path: Path, error: Exception) -> ModelError:
    """Return the ModelError for a file that is missing or that numpy cannot read."""
    if isinstance(error, FileNotFoundError):
        return ModelError(f"no file {path}", "", f"check the path: ls {path.parent}")
    what = f"{path} cannot be read as numpy data"
    return ModelError(
        what,
        f"{type(error).__name__}: {error}",
        "save it again with numpy.savez (numbers only, no objects)",
    )


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name} {describe_shape(spec)} {spec.dtype}"


def _listed(arrays: dict[str, Array]) -> str:
    return (
        ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in arrays.items())
        or "no arrays"
    )
