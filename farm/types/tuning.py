"""What a search for better choices hands from room to room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice for a workload, as records have it, in words, and the cycles that it is predicted to take."""

    choice: Mapping[str, object]
    words: str
    predicted: float


@dataclass(frozen=True, slots=True)
class Task:
    """A workload of a model: how often it is called, and its candidates, the most promising first. `chosen` is what the model has now.

    Where it is `open`, no rule of farm's has candidates for it, and more than those there are proposed as the search goes.
    """

    workload: str
    calls: int
    candidates: tuple[Candidate, ...]
    default: Candidate
    chosen: Candidate
    open: bool = False


@dataclass(frozen=True, slots=True)
class Proposals:
    """Asks for so many candidates that an open task has not tried: made of the best so far, or drawn.

    `tried` has the candidates that were measured with their times over that of the default.
    """

    count: int
    tried: tuple[tuple[Candidate, float], ...]
    skipped: frozenset[str]  # the words of candidates that are not to be tried again
    seed: int


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate that was built: a function of a library. `arguments` are the names of its arrays."""

    workload: str
    candidate: Candidate
    function: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Variants in one library, with their arrays by name in an .npz. Those of one workload give the same answer, and are compared.

    `failed` are candidates that do not compile: workload, words of the choice, reason.
    """

    library: Path
    arrays: Path
    variants: tuple[Variant, ...]
    failed: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Trying:
    """A device is about to run a variant for the first time: if it dies now, it is this one's doing."""

    index: int


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of a call of each variant that is still in the race, by index, measured in turns."""

    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A variant whose answer is not that of the first of its workload."""

    index: int
    why: str
