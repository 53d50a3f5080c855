"""Sets of samples: folders of images, and arrays in files, read one sample at a time, whatever the size of the set.

    samples = data.opened(path, prepared.inputs, model.preprocess, data.classes_of(...))     quick; errors of the whole set
    for sample in samples.read(samples.spread(128)): ...                                     streams; errors of one sample

A set is labelled where it says of which class each sample is; a calibration needs no labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm.data.arrays import Arrays
from farm.data.classes import Classes, classes_of
from farm.data.contract import DataSet, Sample
from farm.data.folders import Folder
from farm.errors import ModelError
from farm.store import digest_of, file_digest
from farm.types import Model, Preprocess, TensorSpec

__all__ = ["Classes", "DataSet", "Sample", "classes_of", "digest", "labelled", "opened"]


def opened(path: Path, inputs: Sequence[TensorSpec], preprocess: Preprocess, classes: Classes | None = None) -> DataSet:
    """The samples at a path, for a model's inputs.

    A folder holds images (or an .npy or .npz for each sample), in subfolders that are named after classes, or all of one without
    labels. An .npz holds `inputs`, N samples, or an array by the name of each input, and maybe `labels`, N class numbers. An .npy holds
    N samples. Any other file is a single image. Without `classes` a folder's labels are not looked at.

    Raises ModelError for what is none of it, is empty, or does not fit the inputs or the classes.
    """
    if not path.exists():
        raise ModelError(f"no file or folder {path}", "", f"check the path: ls {path.parent}")
    if path.is_dir():
        return Folder.of(path, inputs, preprocess, classes)
    if path.suffix.lower() in (".npz", ".npy"):
        return Arrays(path, inputs, classes)
    return Folder(path, inputs, preprocess, [path], None)


def digest(path: Path) -> str:
    """What tells one state of a set from another: a file's content; of a folder, the names, sizes and times of its files."""
    if not path.is_dir():
        return file_digest(path)
    samples = Folder.of(path, (), Preprocess(), None)
    return digest_of(*map(samples.key, range(len(samples))))


def labelled(path: Path, model: Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> DataSet:
    """Samples whose classes are known, for a classifier's inputs and outputs. Raises ModelError for others, as `opened` does."""
    samples = opened(path, inputs, model.preprocess, classes_of(model.name, outputs, model.labels))
    if samples.labels is None:
        fix = (
            "put the images into folders named after their classes"
            if path.is_dir()
            else "save it with numpy.savez(path, inputs=..., labels=...)"
        )
        raise ModelError(f"{path} has no labels", "it does not say of which class a sample is", fix)
    return samples
