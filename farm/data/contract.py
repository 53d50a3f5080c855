"""What every set of samples can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import ModelError
from farm.parallel import ahead

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_AHEAD = 4  # samples that are read while one is computed


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its number in the set, what it is called there, its inputs by name in the model's shapes, and its class if known."""

    index: int
    name: str
    inputs: dict[str, np.ndarray[Any, Any]]
    label: int | None


class DataSet(ABC):
    """N samples. `labels` are their classes, N numbers, or None; `converted` counts what was done to images on the way, in words.

    `note` is what should be said of the set as a whole, or empty.
    """

    def __init__(self, path: Path, labels: NDArray[np.int64] | None, note: str = "") -> None:
        self.path, self.labels, self.note = path, labels, note
        self.converted: Counter[str] = Counter()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def key(self, index: int) -> str:
        """A text that changes when the sample does: the name, size and time of its file."""

    @abstractmethod
    def _name(self, index: int) -> str: ...

    @abstractmethod
    def _inputs(self, index: int) -> dict[str, np.ndarray[Any, Any]]: ...

    def spread(self, count: int | None) -> list[int]:
        """So many of the samples' numbers, evenly over the whole set; all with None, or where there are no more."""
        total = len(self)
        wanted = total if count is None else min(count, total)
        return [place * total // wanted for place in range(wanted)]

    def read(self, indices: Iterable[int] | None = None) -> Iterator[Sample]:
        """These samples, or all, in rising order, a few of them read ahead. Raises ModelError that names the sample."""
        return ahead(map(self._sample, range(len(self)) if indices is None else indices), _AHEAD)

    def _sample(self, index: int) -> Sample:
        label = None if self.labels is None else int(self.labels[index])
        try:
            return Sample(index, self._name(index), self._inputs(index), label)
        except ModelError as error:
            what = error.what.removeprefix(f"{self.path}: ")
            raise ModelError(f"sample {index} of {self.path}: {what}", error.why, error.fix) from error
