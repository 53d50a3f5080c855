"""A job, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from farm.types.fleet import Device, Model, computing_in_words
from farm.types.made import Agreement


@dataclass(frozen=True, slots=True)
class Plan:
    """How to measure: after a warm-up, at least `count` samples and `minimum_s` seconds of them, at most `maximum_s` or `most` samples.

    With a `precision`, also until the median is as sure as that: its standard error over itself, see `stats.uncertainty`.

    The warm-up is at least `warmup` runs, and goes on until the latency has settled, for `warmup_s` at the most.
    After measuring, the device has up to `cooldown_s` to become as cool as it was before.
    `deadline_s` bounds a whole job on a device. `dataset_limit` caps the labelled samples run; None runs all, 0 none.
    `min_snr_db` and `min_top1` (a share) are what its answer must reach beside the model's own limits, see `stats.below`.
    `install` has a model whose answer is right stay on the device, as the current release of its name.
    Several models of a device take turns in `rounds`, each with its share of all this. A sample is the mean of a `block` of inferences;
    0 leaves it to their length.
    """

    warmup: int = 3
    count: int = 50
    minimum_s: float = 1.0
    maximum_s: float = 10.0
    deadline_s: float = 600.0
    dataset_limit: int | None = None
    install: bool = False
    warmup_s: float = 1.0
    cooldown_s: float = 0.0
    most: int = 10_000
    precision: float | None = None
    rounds: int = 1
    block: int = 0
    min_snr_db: float | None = None
    min_top1: float | None = None

    @classmethod
    def once(cls) -> Plan:
        """One inference, to see that the answer is right."""
        return cls(warmup=0, count=1, minimum_s=0.0, maximum_s=0.0, dataset_limit=0)


# How `--quick`, `--standard` and `--mlperf` change a plan. MLPerf's are the rules of SingleStream: 600 s, from 64 queries on, and the 90th
# percentile by early stopping. https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc
PRESETS: Mapping[str, Mapping[str, float]] = {
    "quick": {"warmup": 1, "count": 10, "minimum_s": 0.2, "maximum_s": 5.0, "warmup_s": 0.5, "cooldown_s": 0.0},
    "standard": {
        "warmup": 3,
        "count": 100,
        "minimum_s": 5.0,
        "maximum_s": 60.0,
        "warmup_s": 5.0,
        "cooldown_s": 60.0,
        "precision": 0.004,
        "rounds": 3,
    },
    "mlperf": {
        "warmup": 3,
        "count": 64,
        "minimum_s": 600.0,
        "maximum_s": 3600.0,
        "warmup_s": 30.0,
        "cooldown_s": 300.0,
        "deadline_s": 7200.0,
        "most": 1_000_000,
    },
}


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

    Each of `seconds` is the mean of a `block` of inferences, which is one but for models of less than a millisecond. `warm` is whether
    the latency had settled when they began. `measured_s` is the time they took by our clock, what was said on the way included.
    `facts_during` are the facts that change, read between samples, and `host_s`, our clock then. `wall_s` is all the time of the job.
    `memory_peak_bytes` is the most memory that the session's process on the device has had at once, of an emulated device the emulator's.
    `energy_j` is what the whole board took in `measured_s`; None where it does not tell.
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
    block: int = 1
    warm: bool | None = None
    measured_s: float | None = None
    facts_during: tuple[Mapping[str, str], ...] = ()
    wall_s: float | None = None
    memory_peak_bytes: int | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds per inference. A percentile is None where the sample count does not support it, and so is its 95 % interval.

    `p90_early_ms` is MLPerf's estimate of the 90th percentile by early stopping. With a `block` above one, samples are means of so many
    inferences, and no percentile but the median is stated.
    """

    count: int
    minimum_ms: float
    p50_ms: float
    mean_ms: float
    iqr_ms: float
    p90_ms: float | None
    p99_ms: float | None
    p95_ms: float | None = None
    p50_interval_ms: tuple[float, float] | None = None
    p90_interval_ms: tuple[float, float] | None = None
    p95_interval_ms: tuple[float, float] | None = None
    p99_interval_ms: tuple[float, float] | None = None
    p90_early_ms: float | None = None
    block: int = 1


class Verdict(str, Enum):
    """What a run is worth. RIGHT is the verdict of a run that was not timed, SKIPPED of one that was not begun: a canary failed."""

    RIGHT = "RIGHT"
    STABLE = "STABLE"
    NOISY = "NOISY"
    THROTTLED = "THROTTLED"
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
    its facts (`threads`, `thread_cores`, `threads_pinned`) what it did. `model_digest` is that of the imported model and its
    reference. `batch` is the number of samples that an inference takes at once, where that was asked for.
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
    model_digest: str | None = None
    batch: int | None = None

    @property
    def title(self) -> str:
        """As that of its job."""
        computing = computing_in_words(self.threads, self.cores, self.pinned)
        return f"{self.model} ({computing})" if computing else self.model

    @property
    def good(self) -> bool:
        """Whether it has an answer, and a right one."""
        return self.verdict not in (Verdict.WRONG, Verdict.FAILED, Verdict.UNAVAILABLE, Verdict.SKIPPED)

    @property
    def emulated(self) -> bool:
        return self.url.partition(":")[0] == "qemu" or self.verdict is Verdict.EMULATED
