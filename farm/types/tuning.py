"""Types of the search for faster kernel configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration for a workload.

    `choice` is the form that records store, `words` a description, and `predicted` the cycles that
    the cost model predicts.
    """

    choice: Mapping[str, object]
    words: str
    predicted: float


@dataclass(frozen=True, slots=True)
class Task:
    """A workload of a model.

    `calls` is how often the model calls it. `candidates` are ordered by the prediction, the best
    first. `chosen` is the configuration that the model uses now. If it is `open`, none of farm's
    rules has candidates for it, and more candidates than those listed are proposed during the
    search.
    """

    workload: str
    calls: int
    candidates: tuple[Candidate, ...]
    default: Candidate
    chosen: Candidate
    open: bool = False


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A request for `count` untried candidates of an open task.

    They are derived from the best so far, or sampled. `tried` are the measured candidates, each
    with its time relative to the default's.
    """

    count: int
    tried: tuple[tuple[Candidate, float], ...]
    skipped: frozenset[str]  # the `words` of candidates not to be tried again
    seed: int


@dataclass(frozen=True, slots=True)
class CompiledCandidate:
    """A compiled candidate: a function of a library. `arguments` are the names of its arrays."""

    workload: str
    candidate: Candidate
    function: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledCandidateBatch:
    """Variants in one library, with their arrays by name in an .npz.

    Variants of one workload compute the same answer, and are compared. `failed` are candidates that
    do not compile: workload, description of the configuration, reason.
    """

    library: Path
    arrays: Path
    variants: tuple[CompiledCandidate, ...]
    failed: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledCandidateStarted:
    """The report that a device is about to run a variant for the first time.

    If the device dies now, this variant is the cause.
    """

    index: int


@dataclass(frozen=True, slots=True)
class TuningRoundTimings:
    """The seconds per call of each variant still compared, by index, measured interleaved."""

    seconds: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class WrongCompiledCandidate:
    """A variant whose answer differs from that of the first variant of its workload."""

    index: int
    why: str
