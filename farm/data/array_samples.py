"""Samples in an .npz or .npy file, streamed: only a few samples are in memory at a time.

The format is numpy's: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from farm.data.classes import ModelClasses, check_class_indices
from farm.data.data_set import DataSet
from farm.errors import ModelError
from farm.inputs.read import ARRAY_ERRORS, cast_losslessly, require_single_input, unreadable_error
from farm.npy_header import read_npy_header
from farm.regular_files import check_not_special_file
from farm.types import TensorSpec

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

INPUTS, LABELS = "inputs", "labels"
_MOST_LABELS = 16 << 20


class ArraySamples(DataSet):
    """N samples along the first axis of one array per input.

    A model with one input may have them under the name `inputs`.
    """

    def __init__(
        self, path: Path, inputs: Sequence[TensorSpec], classes: ModelClasses | None
    ) -> None:
        self._specs = {spec.name: spec for spec in inputs}
        try:
            check_not_special_file(path)
            labels = self._open(path, inputs)
            super().__init__(
                path, None if labels is None else check_class_indices(path, labels, classes)
            )
            there = path.stat()
            self._stamp = f"{there.st_size}:{there.st_mtime_ns}"
        except ARRAY_ERRORS as exc:
            raise unreadable_error(path, exc) from exc
        counts = {
            f"samples of {name}" if len(inputs) > 1 else "samples": rows.shape[0]
            for name, rows in self._rows.items()
        }
        counts |= {LABELS: len(self.labels)} if self.labels is not None else {}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            raise _differ(path, counts)

    def _open(self, path: Path, inputs: Sequence[TensorSpec]) -> Array | None:
        """Open the array of each input; return the labels, or None."""
        if path.suffix.lower() == ".npy":
            spec = require_single_input(inputs, path, "an .npy file")
            self._rows = {spec.name: _Rows(path.open("rb"), spec, path, f"{path.name} holds")}
            return None
        self._archive = zipfile.ZipFile(path)
        members = {name.removesuffix(".npy"): name for name in self._archive.namelist()}
        alone = INPUTS in members and not set(self._specs) <= set(members)
        wanted = (
            {INPUTS: require_single_input(inputs, path, "an array `inputs`")}
            if alone
            else self._specs
        )
        if missing := [name for name in wanted if name not in members]:
            name = INPUTS if len(inputs) == 1 else missing[0]
            names = [INPUTS] if len(inputs) == 1 else list(wanted)
            fix = (
                f"save it with numpy.savez(path, {', '.join(f'{one}=...' for one in names)}, "
                f"{LABELS}=...)"
            )
            raise ModelError(
                f"{path} has no array {name!r}", f"it has {', '.join(members) or 'none'}", fix
            )
        self._rows = {
            spec.name: _Rows(self._archive.open(members[name]), spec, path, name)
            for name, spec in wanted.items()
        }
        if LABELS not in members:
            return None
        with self._archive.open(members[LABELS]) as file:
            return _labels(file, len(self), path)

    def __len__(self) -> int:
        return min(rows.shape[0] for rows in self._rows.values())

    def key(self, index: int) -> str:
        """Return the index of a sample with the size and modification time of the file."""
        return f"{index}@{self._stamp}"

    def _name(self, index: int) -> str:
        return f"{self.path.name}[{index}]"

    def _inputs(self, index: int) -> dict[str, Array]:
        try:
            return {
                name: cast_losslessly(rows.read(index), self._specs[name], self.path)
                for name, rows in self._rows.items()
            }
        except ARRAY_ERRORS as exc:
            raise unreadable_error(self.path, exc) from exc


class _Rows:
    """The rows of an array in an open file.

    In a compressed file they are quick to read in ascending order only.
    """

    def __init__(self, file: IO[bytes], spec: TensorSpec, path: Path, name: str) -> None:
        self.file, self._spec = file, spec
        try:
            header = read_npy_header(file)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
        self.shape, self._dtype = header.shape, header.dtype
        self._begin = file.tell()
        _check(path, spec, self.shape, self._dtype)
        if header.fortran and len(self.shape) > 1:
            why = (
                "its samples lie across each other (Fortran's order), and cannot be read one by one"
            )
            raise ModelError(
                f"{path}: the array {name!r} cannot be streamed",
                why,
                "save numpy.ascontiguousarray(array)",
            )
        self._nbytes = math.prod(self.shape[1:]) * self._dtype.itemsize

    def read(self, index: int) -> Array:
        """Return one row in the input's shape."""
        self.file.seek(self._begin + index * self._nbytes)
        content = self.file.read(self._nbytes)
        if len(content) < self._nbytes:
            raise EOFError("the file ends before the sample does")
        return np.frombuffer(content, self._dtype).reshape(self._spec.shape)


def _labels(file: IO[bytes], samples: int, path: Path) -> Array:
    """Return an array of labels, without the values if it is no list.

    A compressed file may claim any number of samples and labels, so the values are read only if
    there is one for each sample. Raises ModelError for other numbers, ValueError for too many.
    """
    header = read_npy_header(file)
    if len(header.shape) != 1:
        return np.empty((0,) * len(header.shape), header.dtype)
    (count,) = header.shape
    if count != samples:
        raise _differ(path, {"samples": samples, LABELS: count})
    if count > _MOST_LABELS:
        raise ValueError(f"it has {count:,} labels, more than {_MOST_LABELS:,}")
    return np.frombuffer(file.read(count * header.dtype.itemsize), header.dtype, count)


def _differ(path: Path, counts: Mapping[str, int]) -> ModelError:
    """Return the ModelError for samples that differ in number from each other or from labels."""
    what = f"{path} has {' and '.join(f'{count} {name}' for name, count in counts.items())}"
    return ModelError(
        what, "each sample needs a label and all inputs", "save as many of each, one at least"
    )


def _check(path: Path, spec: TensorSpec, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ModelError if the samples do not fit the input."""
    if spec.shape[:1] != (1,):
        fix = "import the model with a batch of 1, for example with --shape"
        raise ModelError(
            f"{path}: input {spec.name!r} does not take one sample at a time",
            f"its shape is {list(spec.shape)}",
            fix,
        )
    if shape[1:] not in (spec.shape, spec.shape[1:]) or not shape:
        why = f"the model takes {list(spec.shape[1:])}, the samples are {list(shape[1:])}"
        raise ModelError(
            f"{path}: the samples do not fit input {spec.name!r}",
            why,
            f"reshape them to {['N', *spec.shape[1:]]}",
        )
    cast_losslessly(np.zeros(0, dtype), spec, path)
