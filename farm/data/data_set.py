"""The interface of every set of samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import ModelError
from farm.processes.workers import prefetch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_AHEAD = 4  # samples that are read ahead while one is computed


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: index and name in the set, inputs by name, class if known.

    The inputs have the shapes of the model's inputs.
    """

    index: int
    name: str
    inputs: dict[str, np.ndarray[Any, Any]]
    label: int | None


class DataSet(ABC):
    """N samples.

    `labels` holds their N class numbers, or is None. `converted` counts, by description, how images
    were converted on reading. `note` is a remark on the whole set, or empty.
    """

    def __init__(self, path: Path, labels: NDArray[np.int64] | None, note: str = "") -> None:
        self.path, self.labels, self.note = path, labels, note
        self.converted: Counter[str] = Counter()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def key(self, index: int) -> str:
        """Return a text that changes with the sample: the name, size and time of its file."""

    @abstractmethod
    def _name(self, index: int) -> str: ...

    @abstractmethod
    def _inputs(self, index: int) -> dict[str, np.ndarray[Any, Any]]: ...

    def spread(self, count: int | None) -> list[int]:
        """Return the indices of `count` samples, evenly spread over the set.

        All samples are returned if `count` is None or larger than the set.
        """
        total = len(self)
        wanted = total if count is None else min(count, total)
        return [place * total // wanted for place in range(wanted)]

    def read(self, indices: Iterable[int] | None = None) -> Iterator[Sample]:
        """Yield the samples of these indices, or all, in this order; a few are read ahead.

        Raises ModelError that names the sample. Ascending indices are quick for every kind of set.
        """
        return prefetch(map(self._sample, range(len(self)) if indices is None else indices), _AHEAD)

    def _sample(self, index: int) -> Sample:
        label = None if self.labels is None else int(self.labels[index])
        try:
            return Sample(index, self._name(index), self._inputs(index), label)
        except ModelError as error:
            what = error.what.removeprefix(f"{self.path}: ")
            raise ModelError(
                f"sample {index} of {self.path}: {what}", error.why, error.fix
            ) from error
