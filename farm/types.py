"""The nouns. Every value that crosses a seam is one of these: frozen, picklable, without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of board: what to compile for, how to link, which agent it runs.

    `target` is what `tvm.target.Target` takes; `"mcpu": "native"` stands for the CPU of this machine.
    `linker` is a command such as `("aarch64-linux-gnu-gcc",)`; empty means the bundled linker.
    `agent` names the architecture of the native agent (x86_64, aarch64, armv7, riscv64); None where there is none.
    """

    name: str
    target: Mapping[str, object]
    triple: str
    description: str = ""
    agent: str | None = None
    linker: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """One board. The scheme of `url` names its transport; `emulated` devices give answers, never benchmarks."""

    name: str
    profile: Profile
    url: str
    tags: tuple[str, ...] = ()
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0]

    @property
    def emulated(self) -> bool:
        launcher = str(self.options.get("launcher", "")).split()
        return self.scheme == "qemu" or any(word.rpartition("/")[2].startswith("qemu-") for word in launcher)

    @property
    def on_this_machine(self) -> bool:
        return self.scheme in ("local", "qemu")

    @property
    def gets_agent(self) -> bool:
        """Whether its transport puts and starts an agent of ours there; elsewhere somebody has."""
        return self.scheme in ("local", "qemu", "ssh")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape (elements per axis) and dtype (numpy's name) of one input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes an input: resized to the input's height and width, scaled to [0, 1], then (x - mean) / std.

    `mean` and `std` hold one value per channel, or a single one for all; `layout` is NCHW or NHWC; `channels` RGB, BGR or L (grey).
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "NCHW"
    channels: str = "RGB"


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the user names it. `source` is an absolute path, or `python:package.module:function`.

    `shapes` overrides input shapes by name. `labels` is a text file, a label a line. `dataset` is an .npz with
    `inputs` (N x one sample) and `labels` (N integers).
    """

    name: str
    source: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    preprocess: Preprocess = Preprocess()
    labels: Path | None = None
    dataset: Path | None = None


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
    def build(self) -> tuple[str, str]:
        return (self.model.name, self.device.profile.name)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far an output is from the reference's: the worst over all outputs.

    `max_abs` is the largest absolute difference, `snr_db` the signal-to-noise ratio in decibels (inf when equal),
    `same_top1` whether the largest element is the same one, None where an output is no vector of scores.
    """

    max_abs: float
    snr_db: float
    same_top1: bool | None
    right: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """An imported and checked model, kept in the store: the module every build starts from, and the reference.

    `directory` holds module.json, weights.npz and reference.npz. `engine` names what gave the reference. `check` is the agreement of
    our host build with it, within `tolerance` (see `stats.agreement`); `reference_correct` counts the labelled samples that the
    reference gets right.
    """

    model: str
    digest: str
    directory: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    engine: str
    check: Agreement
    tolerance: float
    reference_correct: int | None
    reference_total: int | None
    seconds: Mapping[str, float]
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """What became of one fused kernel: the rule that scheduled it (`none` where all failed), the reason for a fallback, its arithmetic.

    `operations` counts a multiplication and an addition as two.
    """

    name: str
    rule: str
    note: str = ""
    operations: int = 0


@dataclass(frozen=True, slots=True)
class Artifact:
    """What was built: a library, its parameters and metadata.json, kept in the store under `digest`.

    `seconds` is where the time of the build went, by part.
    """

    model: str
    profile: str
    digest: str
    library: Path
    library_digest: str
    parameters: Path
    parameters_digest: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: Mapping[str, object]
    versions: Mapping[str, str]
    nbytes: int
    kernels: tuple[Kernel, ...]
    seconds: Mapping[str, float]
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """A model as it is installed on a device. Releases of a name are numbered from 1; the `current` one is what a run uses.

    `files` are the digests (SHA-256) of the files in the device's store, by file name; `labels` the names of the classes, if it has any.
    """

    name: str
    number: int
    current: bool
    artifact: str
    profile: str
    files: Mapping[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocess: Preprocess
    labels: tuple[str, ...]
    installed_at: str  # ISO 8601, UTC, by the host's clock
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Samples:
    """What came back from a device: raw seconds per inference by the device's clock, never summarised on the board.

    `first_s` is the first inference as the host saw it. `correct` of `total` labelled samples were classified right. `facts` describe the
    device before and after. `ledger` is where the time of the job went, in seconds by part. `uploaded` counts bytes that were sent.
    `release` is the number under which the model was installed there, None where it was not.
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
    """One job, done. A failed run is a value like any other: `failure` is set, and what is missing is None."""

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

    @property
    def emulated(self) -> bool:
        return self.url.partition(":")[0] == "qemu" or self.verdict is Verdict.EMULATED


class Stage(str, Enum):
    """Where a job is. The order is the order in which a job goes through them."""

    WAITING = "waiting"
    IMPORTING = "importing"
    COMPILING = "compiling"
    AGENT = "agent"
    READY = "ready"
    CONNECTING = "connecting"
    UPLOADING = "uploading"
    LOADING = "loading"
    RUNNING = "running"
    MEASURING = "measuring"
    ACCURACY = "accuracy"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker says on the way: the stage it is in, a note in words, and the fraction done where it is known."""

    stage: Stage
    note: str = ""
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something to show about a job: its stage, a note in words, and the fraction done where it is known.

    `run` comes with the last event of a job.
    """

    device: str
    model: str
    stage: Stage
    note: str = ""
    fraction: float | None = None
    run: Run | None = None
