"""A job, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from farm.types.fleet import Device, Model, computing_in_words
from farm.types.made import Agreement


@dataclass(frozen=True, slots=True)
class Plan:
    """How to measure: at least `count` samples and `minimum_s` seconds of them after `warmup` runs, at most `maximum_s`
    or 10,000 samples.

    `deadline_s` bounds a whole job on a device. `dataset_limit` caps the labelled samples run; None runs all, 0 none.
    `install` has a model whose answer is right stay on the device, as the current release of its name.
    """

    warmup: int = 3
    count: int = 50
    minimum_s: float = 1.0
    maximum_s: float = 10.0
    deadline_s: float = 600.0
    dataset_limit: int | None = None
    install: bool = False

    @classmethod
    def once(cls) -> Plan:
        """One inference, to see that the answer is right."""
        return cls(warmup=0, count=1, minimum_s=0.0, maximum_s=0.0, dataset_limit=0)


@dataclass(frozen=True, slots=True)
class Job:
    """A model on a device, measured by a plan."""

    device: Device
    model: Model
    plan: Plan

    @property
    def title(self) -> str:
        """The model, and how the device is asked to compute: what tells the jobs of a device from each other."""
        return f"{self.model.name} ({self.device.computing})" if self.device.computing else self.model.name

    @property
    def build(self) -> tuple[str, str]:
        return (self.model.name, self.device.profile.name)


@dataclass(frozen=True, slots=True)
class Samples:
    """What came back from a device: raw seconds per inference by the device's clock, never summarised on the board.

    `first_s` is the first inference as the host saw it. `correct` of `total` labelled samples were classified right. `facts` describe the
    device before and after. `ledger` is where the time of the job went, in seconds by part. `uploaded` counts bytes that were sent.
    `held_up` is the share of the time of measuring in which the session was ready to run and other work had the CPU; None where
    the device does not tell. `release` is the number under which the model was installed there, None where it was not.
    """

    seconds: tuple[float, ...]
    first_s: float
    agreement: Agreement
    correct: int | None
    total: int | None
    facts_before: Mapping[str, str]
    facts_after: Mapping[str, str]
    ledger: Mapping[str, float]
    uploaded: int
    release: int | None = None
    held_up: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds per inference. A percentile is None where the sample count does not support it."""

    count: int
    minimum_ms: float
    p50_ms: float
    mean_ms: float
    iqr_ms: float
    p90_ms: float | None
    p99_ms: float | None


class Verdict(str, Enum):
    """What a run is worth. RIGHT is the verdict of a run that was not timed, SKIPPED of one that was not begun: a canary failed."""

    RIGHT = "RIGHT"
    STABLE = "STABLE"
    NOISY = "NOISY"
    EMULATED = "EMULATED"
    WRONG = "WRONG"
    FAILED = "FAILED"
    UNAVAILABLE = "UNAVAILABLE"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value: what happened, why, the command that mends it, and the exit code it stands for."""

    kind: str
    what: str
    why: str
    fix: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Run:
    """One job, done. A failed run is a value like any other: `failure` is set, and what is missing is None.

    `threads`, `cores` and `pinned` are what was asked for; None and empty where that was left to the device, which says in
    its facts (`threads`, `thread_cores`, `threads_pinned`) what it did.
    """

    id: str
    device: str
    model: str
    profile: str
    url: str
    started_at: str  # ISO 8601, UTC
    verdict: Verdict
    reason: str
    artifact_digest: str | None = None
    samples: Samples | None = None
    latency: Latency | None = None
    reference_correct: int | None = None
    reference_total: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    failure: Failure | None = None
    threads: int | None = None
    cores: str = ""
    pinned: bool = False

    @property
    def title(self) -> str:
        """As that of its job."""
        computing = computing_in_words(self.threads, self.cores, self.pinned)
        return f"{self.model} ({computing})" if computing else self.model

    @property
    def emulated(self) -> bool:
        return self.url.partition(":")[0] == "qemu" or self.verdict is Verdict.EMULATED
