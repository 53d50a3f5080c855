"""A job and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farm.types.artifacts import Agreement
from farm.types.fleet_config import Device, Model, describe_threads


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """How to measure.

    After a warm-up, take at least `count` samples and `minimum_s` seconds of samples, at most
    `maximum_s` seconds or `most` samples. With `precision`, also continue until the relative
    standard error of the median is that small, see `stats.median_relative_standard_error`.

    The warm-up is at least `warmup` runs, and continues until the latency has settled, for at most
    `warmup_s`. After measuring, the device has up to `cooldown_s` to cool down to its temperature
    before. `deadline_s` limits a whole job on a device. `dataset_limit` limits the labelled samples
    run; None runs all, 0 none. `min_snr_db` and `min_top1` (a share) are requirements on its answer
    in addition to the model's own limits, see `stats.below`. With `install`, a model with a right
    answer stays on the device as the current release of its name. Several models of a device are
    interleaved in `rounds`, each with its share of all this. A sample is the mean of a `block` of
    inferences; 0 chooses the block by their length.
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
    def once(cls) -> MeasurementSettings:
        """Return the plan for one inference, which checks the answer."""
        return cls(warmup=0, count=1, minimum_s=0.0, maximum_s=0.0, dataset_limit=0)


# The changes of `--quick`, `--standard` and `--mlperf` to a plan. MLPerf's are the rules of
# SingleStream: 600 s, at least 64 queries, and the 90th percentile by early stopping.
# https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc
PRESETS: Mapping[str, Mapping[str, float]] = {
    "quick": {
        "warmup": 1,
        "count": 10,
        "minimum_s": 0.2,
        "maximum_s": 5.0,
        "warmup_s": 0.5,
        "cooldown_s": 0.0,
    },
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
    plan: MeasurementSettings

    @property
    def title(self) -> str:
        """The model with its threads and cores in words: it identifies the job on its device."""
        return (
            f"{self.model.name} ({self.device.computing})"
            if self.device.computing
            else self.model.name
        )

    @property
    def build(self) -> tuple[str, str]:
        """The key of the build: the names of the model and of the profile."""
        return (self.model.name, self.device.profile.name)


@dataclass(frozen=True, slots=True)
class DeviceResults:
    """The results from a device: raw seconds per inference by the device's clock.

    The board never summarises them. `first_s` is the duration of the first inference, measured on
    the host. `correct` of `total` labelled samples were classified correctly. `facts_before` and
    `facts_after` describe the device before and after. `ledger` is the time of the job, in seconds
    by part. `uploaded` counts the bytes sent. `held_up` is the share of the measuring time in which
    the session was ready to run and other work had the CPU; None if the device does not report it.
    `release` is the number under which the model was installed there, None if it was not.

    Each of `seconds` is the mean of a `block` of inferences; the block is 1 except for models that
    take less than a millisecond. `warm` is whether the latency had settled when the samples began.
    `measured_s` is the time that they took by the host's clock, including progress messages.
    `facts_during` are the facts that change, read between samples; their `host_s` is the host's
    clock at that moment. `wall_s` is the whole time of the job. `memory_peak_bytes` is the peak
    memory of the session's process on the device, or of the emulator if the device is emulated.
    `energy_j` is the energy of the whole board during `measured_s`; None if it does not report
    that.
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
    """Milliseconds per inference.

    A percentile and its 95 % interval are None if the sample count does not support them.
    `p90_early_ms` is MLPerf's estimate of the 90th percentile by early stopping. With a `block`
    above one, samples are means of that number of inferences, and no percentile except the median
    is stated.
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


class Verdict(StrEnum):
    """The assessment of a run.

    RIGHT is the verdict of a run that was not timed, SKIPPED of one that was not started because a
    canary failed.
    """

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
    """An error as a value: what happened, why, the command that fixes it, and its exit code."""

    kind: str
    what: str
    why: str
    fix: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Run:
    """One completed job; a failed run is a value as well.

    If it failed, `failure` is set, and missing results are None. `started_at` is the host's time
    when the run was recorded, after the job had ended. `threads`, `cores` and `pinned` are the
    requested values; None and empty if the device chooses, and then its facts (`threads`,
    `thread_cores`, `threads_pinned`) tell its choice. `model_digest` is that of the imported model
    and its reference. `batch` is the number of samples per inference, if one was requested.
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
    samples: DeviceResults | None = None
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
        """The title of its job: the model with its threads and cores in words."""
        computing = describe_threads(self.threads, self.cores, self.pinned)
        return f"{self.model} ({computing})" if computing else self.model

    @property
    def good(self) -> bool:
        """Return whether it has an answer, and the answer is right."""
        return self.verdict not in (
            Verdict.WRONG,
            Verdict.FAILED,
            Verdict.UNAVAILABLE,
            Verdict.SKIPPED,
        )

    @property
    def emulated(self) -> bool:
        """Return whether the device is emulated, so that its latency is not a benchmark."""
        return self.url.partition(":")[0] == "qemu" or self.verdict is Verdict.EMULATED
