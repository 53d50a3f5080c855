"""The classes of a model, and the classes that the folders and labels of a set stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import ModelError, did_you_mean
from farm.inputs.read import read_class_names
from farm.types import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ModelClasses:
    """The number of classes of a model, and their names if they are known."""

    count: int
    names: tuple[str, ...] = ()


def classifier_classes(
    model: str, outputs: Sequence[TensorSpec], labels: Path | None
) -> ModelClasses:
    """Return the classes of a classifier, whose first output is a vector of scores.

    Raises ModelError if the model is not a classifier or `labels` does not match it.
    """
    scores = outputs[0]
    if (
        len(scores.shape) < 1
        or scores.shape[-1] < 2
        or any(extent != 1 for extent in scores.shape[:-1])
    ):
        why = (
            f"its first output, {scores.name}, is {scores.dtype} {list(scores.shape)}, and scores "
            "are [1, N]"
        )
        raise ModelError(
            f"{model} is no classifier",
            why,
            "name a model whose first output is a score for each class",
        )
    count = scores.shape[-1]
    names = tuple(read_class_names(labels)) if labels else ()
    if names and len(names) != count:
        why = f"{labels} names {len(names)} classes, the model's output {scores.name} has {count}"
        raise ModelError(
            f"the labels of {model} do not match it",
            why,
            "correct `labels` in devices.toml: a line for each class, in order",
        )
    return ModelClasses(count, names)


def assign_folders_to_classes(
    path: Path, folders: Sequence[str], classes: ModelClasses
) -> tuple[dict[str, int], str]:
    """Return the class of each folder, and a remark on the assignment, or an empty text.

    A folder is named after a class or its number. If no folder is, and there are as many folders as
    classes, the classes are the folders in order of name.
    """
    names = [name.strip().casefold() for name in classes.names]
    twice = {name for name, count in Counter(names).items() if count > 1}
    found = {
        folder: names.index(folder.casefold())
        for folder in folders
        if folder.casefold() in names and folder.casefold() not in twice
    }
    found |= {
        folder: int(folder) for folder in folders if folder not in found and folder.isdecimal()
    }
    if not found and len(folders) == classes.count and not twice:
        ordered = sorted(folders)
        return {
            folder: number for number, folder in enumerate(ordered)
        }, f"classes 0 to {classes.count - 1} are its folders in order of name"
    if beyond := [folder for folder, number in found.items() if number >= classes.count]:
        raise _mismatch(path, beyond, folders, f"the model's classes are 0 to {classes.count - 1}")
    if unknown := [folder for folder in folders if folder not in found]:
        near = did_you_mean(unknown[0], classes.names) if classes.names else "and no names for them"
        why = (
            "several classes are called so"
            if unknown[0].casefold() in twice
            else f"the model has {classes.count} classes, {near}"
        )
        raise _mismatch(path, unknown, folders, why)
    return found, ""


def _mismatch(path: Path, wrong: Sequence[str], folders: Sequence[str], why: str) -> ModelError:
    shown = ", ".join(map(repr, wrong[:_SHOWN])) + (", ..." if len(wrong) > _SHOWN else "")
    what = (
        f"{path}: {len(wrong)} of its {len(folders)} folders {'is' if len(wrong) == 1 else 'are'} "
        f"no class of the model: {shown}"
    )
    if len(why) > 300:  # it may list a thousand names
        why = why[:300] + " ..."
    return ModelError(
        what,
        why,
        (
            "name each folder after a class's label, or its number from 0 on, or set `labels` in "
            "devices.toml"
        ),
    )


def check_class_indices(
    path: Path, labels: NDArray[Any], classes: ModelClasses | None
) -> NDArray[np.int64]:
    """Return the labels of samples as class numbers; raise ModelError if they are not.

    The error names the first label that is not a class of the model.
    """
    import numpy as np

    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        why = f"they are {labels.dtype} of shape {list(labels.shape)}" + (
            ", some below 0" if labels.dtype.kind in "iu" else ""
        )
        raise ModelError(
            f"{path}: the labels are not a list of class numbers", why, "save N integers from 0 on"
        )
    if classes and (wrong := np.flatnonzero(labels >= classes.count)).size:
        what = f"{path}: the labels do not match the model's classes"
        why = (
            f"sample {wrong[0]} is of class {labels[wrong[0]]}, and {len(wrong)} in all are above "
            f"{classes.count - 1}, the model's last"
        )
        raise ModelError(what, why, "number the classes as the model does, from 0 on")
    return labels.astype(np.int64)
