"""What is made of a model: imported, built, installed on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.types.fleet import Limits, Model, Preprocess, TensorSpec


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far an output is from the reference's: the worst over all outputs.

    `max_abs` is the largest absolute difference, `snr_db` the signal-to-noise ratio in decibels (inf when equal), `cosine` that of the
    angle between the two. `max_rel` is the largest difference relative to the reference, of values above 1 % of its largest.
    `same_top1` is whether the largest element of every row is the same one; `top1` is the share of rows where it is, and `top5` where the
    reference's is among the five largest: None where no output is a matrix of scores. `why` says why it is not right.
    """

    max_abs: float
    snr_db: float
    same_top1: bool | None
    right: bool
    max_rel: float | None = None
    cosine: float | None = None
    top1: float | None = None
    top5: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An imported and checked model, kept in the store: the module every build starts from, and the reference.

    `directory` holds module.json, weights.npz and reference.npz. `engine` names what gave the reference. `check` is the agreement of our
    host build with it; `precision` is what the model computes in, float32, float16 or int8; `reference_correct` counts the labelled
    samples that the reference gets right. `fixed` says why a batch that the model leaves open was given an extent.
    """

    model: str
    digest: str
    directory: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    engine: str
    check: Agreement
    precision: str
    reference_correct: int | None
    reference_total: int | None
    seconds: Mapping[str, float]
    cached: bool = False
    fixed: str = ""


@dataclass(frozen=True, slots=True)
class LayerError:
    """A quantized tensor: its place in the order of the model, what it is in words, and its signal-to-noise ratio beside the float one."""

    index: int
    name: str
    snr_db: float


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized model beside its float model, on this machine: its tensors, the worst first, the outputs, and median milliseconds.

    `dtype` is what it was quantized to, `remarks` what there is to say of that. `float_correct` and `correct` count the labelled samples
    that each gets right, of `total`; where that is 0, `unlabelled` says why.
    """

    layers: tuple[LayerError, ...]
    output_snr_db: float
    float_correct: int
    correct: int
    total: int
    unlabelled: str
    float_ms: float
    ms: float
    dtype: str = "int8"
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """What became of one fused kernel: the rule that scheduled it (`none` where all failed), the reason for a fallback, its arithmetic.

    `operations` counts a multiplication and an addition as two. `workload` is the key of what was chosen for, where there was something to
    choose; `choice` says what, `recorded` whether a record decided it. `halves` says where its weights of float16 become float32: "in the
    kernel" or "when loaded".
    """

    name: str
    rule: str
    note: str = ""
    operations: int = 0
    workload: str = ""
    choice: str = ""
    recorded: bool = False
    halves: str = ""


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
class Fitted:
    """A model made for a device: all that it takes to compute it there. `agent` is the native agent's executable, for the transports that
    start one."""

    model: Model
    prepared: Prepared
    artifact: Artifact
    agent: Path | None

    @property
    def limits(self) -> Limits:
        """By which its answers are judged."""
        return self.model.limits[self.prepared.precision]


@dataclass(frozen=True, slots=True)
class Release:
    """A model as it is installed on a device. Releases of a name are numbered from 1; the `current` one is what a run uses.

    `files` are the digests (SHA-256) of the files in the device's store, by file name; `labels` the names of the classes, if it has any.
    `on_gpu` is whether its code is for a GPU.
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
    on_gpu: bool = False
