"""A folder of samples in subfolders by class, or without labels: images, .npy and .npz files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from farm.data.classes import ModelClasses, assign_folders_to_classes
from farm.data.data_set import DataSet
from farm.errors import ModelError
from farm.inputs import images, read
from farm.types import PreprocessSettings, TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SUFFIXES = images.SUFFIXES | {".npy", ".npz"}


class FolderSamples(DataSet):
    """One sample per file, in order of class and name."""

    def __init__(
        self,
        path: Path,
        inputs: Sequence[TensorSpec],
        preprocess: PreprocessSettings,
        files: Sequence[Path],
        labels: NDArray[np.int64] | None,
        note: str = "",
    ) -> None:
        super().__init__(path, labels, note)
        self._files, self._preprocess = files, preprocess
        # A file is one sample, even if the model takes any batch.
        self._specs = [replace(spec, open=False) for spec in inputs]

    @classmethod
    def of(
        cls,
        path: Path,
        inputs: Sequence[TensorSpec],
        preprocess: PreprocessSettings,
        classes: ModelClasses | None,
    ) -> FolderSamples:
        """Return the samples below a folder.

        Raises ModelError if there are none, if only some are in subfolders, or if a subfolder is
        not a class of the model.
        """
        import numpy as np

        found = _files_below(path)
        groups: dict[str, list[Path]] = {}
        for file in found:
            parts = file.relative_to(path).parts
            groups.setdefault(parts[0] if len(parts) > 1 else "", []).append(file)
        if not found:
            raise ModelError(
                f"{path} holds no samples",
                f"samples are {', '.join(sorted(_SUFFIXES))} files",
                f"look at it: ls -R {path}",
            )
        if classes is None or list(groups) == [""]:
            return cls(path, inputs, preprocess, found, None)
        if loose := groups.get(""):
            why = (
                f"{len(loose)} of its files lie beside the folders of classes, such as "
                f"{loose[0].name}"
            )
            raise ModelError(
                f"{path}: not every sample is in the folder of a class",
                why,
                "move them into the folders, or away",
            )
        numbers, note = assign_folders_to_classes(path, list(groups), classes)
        files = [
            file
            for folder in sorted(groups, key=lambda folder: (numbers[folder], folder))
            for file in groups[folder]
        ]
        labels = [numbers[file.relative_to(path).parts[0]] for file in files]
        return cls(path, inputs, preprocess, files, np.asarray(labels, np.int64), note)

    def __len__(self) -> int:
        return len(self._files)

    def key(self, index: int) -> str:
        """Return the name, size and modification time of a sample's file."""
        try:
            there = self._files[index].stat()
        except OSError as exc:
            raise ModelError(
                f"sample {index} of {self.path}: {self._files[index]} cannot be read",
                exc.strerror or "",
                "",
            ) from exc
        # Not every file name is valid UTF-8.
        name = self._name(index).encode("utf-8", "backslashreplace").decode()
        return f"{name}:{there.st_size}:{there.st_mtime_ns}"

    def _name(self, index: int) -> str:
        file = self._files[index]
        return file.name if file == self.path else str(file.relative_to(self.path))

    def _inputs(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        return read.read_inputs(self._files[index], self._specs, self._preprocess, self._tell)

    def _tell(self, words: str) -> None:
        self.converted[words] += 1


def _files_below(path: Path) -> list[Path]:
    """Return the sample files below a folder, sorted, without hidden files and folders."""

    def fail(error: OSError) -> NoReturn:
        fix = f"make it readable: ls -ld {shlex.quote(str(error.filename))}"
        raise ModelError(
            f"{error.filename} cannot be read", error.strerror or str(error), fix
        ) from error

    found = []
    for folder, folders, names in os.walk(path, onerror=fail, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(folder, name)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in _SUFFIXES
        ]
    return sorted(found)
