"""Sets of samples: folders of images and arrays in files, read one sample at a time.

    array_samples   samples in .npz and .npy files
    folder_samples  a folder of images, in subfolders by class or without labels
    classes         the classes of a model, and the meaning of folder names and labels
    data_set        the base class of all sets

    # Opening is quick and raises the errors of the whole set; reading raises those of one sample.
    samples = data.open_data_set(path, inputs, preprocess, data.classes_of_model(...))
    for sample in samples.read(samples.spread(128)): ...

A set of any size is streamed. A set is labelled if it gives the class of each sample; calibration
needs no labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farm.data.array_samples import ArraySamples
from farm.data.classes import ModelClasses, classifier_classes
from farm.data.data_set import DataSet, Sample
from farm.data.folder_samples import FolderSamples
from farm.errors import ModelError
from farm.store import digest_of_parts, file_digest
from farm.types import Model, PreprocessSettings, TensorSpec

__all__ = [
    "DataSet",
    "ModelClasses",
    "Sample",
    "classifier_classes",
    "data_set_digest",
    "open_data_set",
    "open_labelled_data_set",
]


def open_data_set(
    path: Path,
    inputs: Sequence[TensorSpec],
    preprocess: PreprocessSettings,
    classes: ModelClasses | None = None,
) -> DataSet:
    """Open the samples at a path for a model's inputs.

    A folder holds images (or one .npy or .npz per sample), either in subfolders named after classes
    or all directly and without labels. An .npz holds `inputs`, N samples, or an array under the
    name of each input, and optionally `labels`, N class numbers. An .npy holds N samples. Any other
    file is a single image. Without `classes`, the labels of a folder are ignored.

    Raises ModelError if the path is none of these, is empty, or does not fit the inputs or the
    classes.
    """
    if not path.exists():
        raise ModelError(f"no file or folder {path}", "", f"check the path: ls {path.parent}")
    if path.is_dir():
        return FolderSamples.of(path, inputs, preprocess, classes)
    if path.suffix.lower() in (".npz", ".npy"):
        return ArraySamples(path, inputs, classes)
    return FolderSamples(path, inputs, preprocess, [path], None)


def data_set_digest(path: Path) -> str:
    """Return a digest that changes with the set.

    It covers a file's content; for a folder, the names, sizes and modification times of its files.
    """
    if not path.is_dir():
        return file_digest(path)
    samples = FolderSamples.of(path, (), PreprocessSettings(), None)
    return digest_of_parts(*map(samples.key, range(len(samples))))


def open_labelled_data_set(
    path: Path, model: Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> DataSet:
    """Open samples with known classes for a classifier's inputs and outputs.

    Raises ModelError if the set has no labels, and as `open_data_set` does.
    """
    samples = open_data_set(
        path, inputs, model.preprocess, classifier_classes(model.name, outputs, model.labels)
    )
    if samples.labels is None:
        fix = (
            "put the images into folders named after their classes"
            if path.is_dir()
            else "save it with numpy.savez(path, inputs=..., labels=...)"
        )
        raise ModelError(f"{path} has no labels", "it does not say of which class a sample is", fix)
    return samples
