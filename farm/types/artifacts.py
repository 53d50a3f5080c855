"""The forms of a model that farm makes: imported, built, installed on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.types.fleet_config import Model, OutputErrorLimits, PreprocessSettings, TensorSpec


@dataclass(frozen=True, slots=True)
class Agreement:
    """The difference of outputs from the reference's: the worst over all outputs.

    `max_abs` is the largest absolute difference. `snr_db` is the signal-to-noise ratio in decibels
    (inf if the outputs are equal). `cosine` is the cosine of the angle between the two. `max_rel`
    is the largest difference relative to the reference, over values above 1 % of its largest.
    `same_top1` is whether the largest element of every row is the reference's; `top1` is the share
    of rows for which it is, and `top5` the share of rows in which the reference's is among the five
    largest. All three are None if no output is a matrix of scores. `why` is the reason if `right`
    is false.
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
class PreparedModel:
    """An imported and checked model in the store: the module that every build starts from.

    `directory` holds module.json, weights.npz and reference.npz. `engine` names the engine that
    computed the reference output. `check` is the agreement of our host build with it. `precision`
    is the type in which the model computes: float32, float16 or int8. `reference_correct` counts
    the labelled samples that the reference classifies correctly. `fixed` is the reason if an open
    batch of the model was given a fixed extent. `built` is True if the check left its code as the
    model's build for this machine.
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
    built: bool = False


@dataclass(frozen=True, slots=True)
class QuantizedTensorSnr:
    """The error of a quantized tensor.

    `index` is its position in the order of the model, `name` describes it, and `snr_db` is its
    signal-to-noise ratio against the float tensor.
    """

    index: int
    name: str
    snr_db: float


@dataclass(frozen=True, slots=True)
class QuantizationComparison:
    """A quantized model compared with its float model on this machine.

    `layers` are its tensors, the worst first. `float_ms` and `ms` are median milliseconds. `dtype`
    is the type it was quantized to, `remarks` are notes on that. `float_correct` and `correct`
    count the labelled samples, out of `total`, that each model classifies correctly; if `total` is
    0, `unlabelled` is the reason.
    """

    layers: tuple[QuantizedTensorSnr, ...]
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
    """A fused kernel in a build.

    `rule` is the rule that scheduled it (`none` if all failed), and `note` the reason for a
    fallback. `operations` are those of all its calls in an inference; a multiplication and an
    addition count as two. `workload` is the key of
    the workload whose configuration was chosen, empty if there was nothing to choose; `choice`
    describes the configuration, and `recorded` is whether a tuning record determined it. `halves`
    is where its weights are converted from float16 to float32: "in the kernel" or "when loaded".
    `share` is the predicted share of what a core can do that it reaches, None if nothing is
    predicted, and `slow` the reason if that is too little.
    """

    name: str
    rule: str
    note: str = ""
    operations: int = 0
    workload: str = ""
    choice: str = ""
    recorded: bool = False
    halves: str = ""
    share: float | None = None
    slow: str = ""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A build: a library, its parameters and metadata.json, stored under `digest`.

    `seconds` is the time that each part of the build took.
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
class BuildWithAgent:
    """A model built for a device, with everything needed to run it there.

    `agent` is the native agent's executable, for the transports that start one.
    """

    model: Model
    prepared: PreparedModel
    artifact: Artifact
    agent: Path | None

    @property
    def limits(self) -> OutputErrorLimits:
        """The limits for its answers, by the precision in which it computes."""
        return self.model.limits[self.prepared.precision]


@dataclass(frozen=True, slots=True)
class Release:
    """A model installed on a device.

    Releases of a name are numbered from 1; a run uses the `current` one. `files` are the digests
    (SHA-256) of the files in the device's store, by file name. `labels` are the names of the
    classes, if it has any. `on_gpu` is whether its code is for a GPU.
    """

    name: str
    number: int
    current: bool
    artifact: str
    profile: str
    files: Mapping[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    preprocess: PreprocessSettings
    labels: tuple[str, ...]
    installed_at: str  # ISO 8601, UTC, by the host's clock
    versions: Mapping[str, str]
    on_gpu: bool = False
