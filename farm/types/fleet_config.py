"""The content of devices.toml: kinds of board (profiles), devices, models."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of board: the compilation target, the linker and the agent that it runs.

    `target` is the argument of `tvm.target.Target`; `"mcpu": "native"` stands for the CPU of this
    machine. `linker` is a command such as `("aarch64-linux-gnu-gcc",)`; empty means the bundled
    linker. `quantize` is int8 if models with calibration data compute in integers there, or float16
    if their weights are stored as float16. `agent` names the native agent: its architecture
    (x86_64, aarch64, armv7, riscv64), with suffix -cuda for NVIDIA GPUs; None if there is no agent
    for the board. `memory_mb` is its RAM, None if it is not known.
    """

    name: str
    target: Mapping[str, object]
    triple: str
    description: str = ""
    agent: str | None = None
    linker: tuple[str, ...] = ()
    source: str = ""
    quantize: str | None = None
    memory_mb: int | None = None

    @property
    def on_gpu(self) -> bool:
        """Return whether its code is for a GPU, with a CPU as the host."""
        return self.target.get("kind") != "llvm"

    @property
    def machine(self) -> str | None:
        """The architecture of the CPU that runs its agent; None if there is no agent."""
        return self.agent and self.agent.partition("-")[0]


def describe_threads(threads: object, cores: object, pinned: object) -> str:
    """Return threads and cores in words; omit unset values.

    For example: "2 threads, cores big, pinned".
    """
    words = [
        f"{threads} thread{'s' if threads != 1 else ''}" if threads else "",
        f"cores {cores}" if cores else "",
    ]
    return ", ".join(filter(None, [*words, "pinned" if pinned else ""]))


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    The scheme of `url` names its transport. `emulated` devices give answers, never benchmarks.
    """

    name: str
    profile: Profile
    url: str
    tags: tuple[str, ...] = ()
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def scheme(self) -> str:
        """The scheme of its URL, which names its transport."""
        return self.url.partition(":")[0]

    @property
    def emulated(self) -> bool:
        """Return whether its agent runs under QEMU."""
        launcher = str(self.options.get("launcher", "")).split()
        return self.scheme == "qemu" or any(
            word.rpartition("/")[2].startswith("qemu-") for word in launcher
        )

    @property
    def on_this_machine(self) -> bool:
        """Return whether its agent runs on this machine."""
        return self.scheme in ("local", "qemu")

    @property
    def computing(self) -> str:
        """The requested threads and cores in words; empty if the device chooses them."""
        return describe_threads(
            self.options.get("threads"), self.options.get("cores"), self.options.get("pinned")
        )

    @property
    def gpu(self) -> int:
        """The index of the GPU on the board, if its profile is for a GPU."""
        return int(self.options.get("gpu", 0))

    @property
    def command(self) -> tuple[str, ...]:
        """The command that runs a shell on it, for `exec:` urls; empty if it has none."""
        return tuple(shlex.split(str(self.options.get("command", ""))))

    @property
    def deadline_s(self) -> float | None:
        """Its own limit for a whole job in seconds, or None if it has none."""
        own = self.options.get("deadline_s")
        return None if own is None else float(own)

    @property
    def gets_agent(self) -> bool:
        """Return whether its transport installs and starts our agent there.

        Otherwise someone else has started one.
        """
        return self.scheme in ("local", "qemu", "ssh", "adb", "exec")


DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape (elements per axis) and dtype (numpy's name) of one input or output.

    If the batch is `open`, any batch is accepted, and `shape` has the batch that is measured. If
    an output is `bounded`, its extents depend on the values of the inputs; `shape` bounds them. If
    `scale` is not 0, the tensor is quantized: an element stands for the number (element - zero) *
    scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    open: bool = False
    scale: float = 0.0
    zero: int = 0
    bounded: bool = False


def describe_shape(spec: TensorSpec) -> str:
    """Return the shape as [1, 3, 224, 224], or [any, 3, 224, 224] if the batch is open.

    The shape of a bounded output is [300, 6] at most.
    """
    if spec.bounded:
        return f"{list(spec.shape)} at most"
    return f"[{', '.join(map(str, ('any', *spec.shape[1:]) if spec.open else spec.shape))}]"


def describe_open_batch(inputs: Sequence[TensorSpec], fixed: str) -> str:
    """Return how an open batch of a model is handled, in words; empty if the model has none.

    `fixed` is the reason if the open batch was fixed.
    """
    if fixed:
        return f"fixed, as the model does not work with an open one ({fixed})"
    return "any; measured at 1 (--shape fixes another)" if any(spec.open for spec in inputs) else ""


@dataclass(frozen=True, slots=True)
class PreprocessSettings:
    """The conversion of an image to an input.

    The image is resized to the input's height and width, scaled to [0, 1], then normalized: (x -
    mean) / std. With `crop`, the image keeps its proportions, and this share of it, in the middle,
    becomes the input. `mean` and `std` hold one value per channel, or a single one for all.
    `layout` is NCHW or NHWC; `channels` is RGB, BGR or L (grey). `stated` is whether the user
    specified the normalization. If not, an input quantized to bytes maps black to its lowest byte
    and white to its highest.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "NCHW"
    channels: str = "RGB"
    crop: float | None = None
    stated: bool = False


QUANTIZED = ("int8", "float16")  # element types that a float model can be quantized to
RECIPES = tuple(f".{dtype}" for dtype in QUANTIZED)  # suffixes of the files of quantized models


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """Settings of the quantization of a float model.

    The result computes in integers (int8), or stores its weights in half precision (float16), which
    uses none of the other settings. `calibration` is how tensor ranges are chosen from their values
    on up to `samples` samples: kl_divergence, minmax, percentile (of the magnitudes, in per cent)
    or global_scale (a step of `global_scale` / 128 for all). Weights have one scale for each
    channel or, without `per_channel`, one for each tensor. `weight_scale` is max, or power2: the
    next power of two.
    """

    calibration: str = "kl_divergence"
    weight_scale: str = "max"
    per_channel: bool = True
    samples: int = 128
    percentile: float = 99.99
    global_scale: float = 8.0
    dtype: str = "int8"

    @property
    def calibrates(self) -> bool:
        """Return whether it needs samples of the model's inputs."""
        return self.dtype == "int8"


@dataclass(frozen=True, slots=True)
class OutputErrorLimits:
    """The largest allowed difference of an answer from the reference; None and False mean no limit.

    `max_abs` is absolute for values up to one, and relative to the largest value above that.
    `min_snr_db` is a signal-to-noise ratio in decibels, `min_cosine` a cosine of the angle between
    the two. With `same_top1`, every row's best class must be the reference's.
    """

    max_abs: float | None = None
    min_snr_db: float | None = None
    min_cosine: float | None = None
    same_top1: bool = False


# By the type in which a model computes. Half precision has 3 decimal digits. For 8-bit integers the
# absolute difference means little: engines round ties in different directions, and one step of the
# last scale may be large.
LIMITS: Mapping[str, OutputErrorLimits] = {
    "float32": OutputErrorLimits(max_abs=1e-4),
    "float16": OutputErrorLimits(max_abs=1e-2),
    "int8": OutputErrorLimits(min_snr_db=20.0, min_cosine=0.99),
}


# A number, or rows of them in lists.
Value: TypeAlias = bool | int | float | Sequence[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the user names it.

    `source` is an absolute path, or `python:package.module:function`. `shapes` overrides input
    shapes by name. `values` holds the inputs that are constants, by name. `dtypes` overrides
    element types (numpy's names) by name; "" stands for all floating-point numbers of a module.
    `module` is the `python:` function that creates the module for a file with weights only.
    `labels` is a text file with one label per line. `dataset` is labelled samples: an .npz with
    `inputs` (N x one sample) and `labels` (N integers), or a folder of images by class (see
    farm.data). With `quantize` the model is quantized; int8 uses the samples of `calibration_data`.
    `limits` are those of its answer, by the type in which it computes. With `batch`, it is built
    for this number of samples at once. With `trust`, its file is treated as the user's own program
    and imported without a sandbox.
    """

    name: str
    source: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    preprocess: PreprocessSettings = PreprocessSettings()
    labels: Path | None = None
    dataset: Path | None = None
    limits: Mapping[str, OutputErrorLimits] = field(default_factory=lambda: LIMITS)
    module: str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    quantize: QuantizeSettings | None = None
    calibration_data: Path | None = None
    batch: int | None = None
    trust: bool = False
    values: Mapping[str, Value] = field(default_factory=dict)
