"""What devices.toml names: kinds of board, boards, models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of board: what to compile for, how to link, which agent it runs.

    `target` is what `tvm.target.Target` takes; `"mcpu": "native"` stands for the CPU of this machine.
    `linker` is a command such as `("aarch64-linux-gnu-gcc",)`; empty means the bundled linker.
    `quantize` is int8, where models compute in integers there and have calibration data, or float16, where their weights are kept so.
    `agent` names the native agent: its architecture (x86_64, aarch64, armv7, riscv64), with -cuda that for NVIDIA's GPUs; None where there
    is none.
    """

    name: str
    target: Mapping[str, object]
    triple: str
    description: str = ""
    agent: str | None = None
    linker: tuple[str, ...] = ()
    source: str = ""
    quantize: str | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether its code is for a GPU, with a CPU as the host."""
        return self.target.get("kind") != "llvm"

    @property
    def machine(self) -> str | None:
        """The architecture of the CPU that runs its agent; None where there is none."""
        return self.agent and self.agent.partition("-")[0]


def computing_in_words(threads: object, cores: object, pinned: object) -> str:
    """2 threads, cores big, pinned; what is not set is left out."""
    words = [f"{threads} thread{'s' if threads != 1 else ''}" if threads else "", f"cores {cores}" if cores else ""]
    return ", ".join(filter(None, [*words, "pinned" if pinned else ""]))


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
    def computing(self) -> str:
        """With how many threads and on which cores it is asked to compute, in words; empty where that is left to it."""
        return computing_in_words(self.options.get("threads"), self.options.get("cores"), self.options.get("pinned"))

    @property
    def gpu(self) -> int:
        """Which of the board's GPUs it is, where its profile is for one."""
        return int(self.options.get("gpu", 0))

    @property
    def deadline_s(self) -> float | None:
        """Its own bound on a whole job, where it has one."""
        own = self.options.get("deadline_s")
        return None if own is None else float(own)

    @property
    def gets_agent(self) -> bool:
        """Whether its transport puts and starts an agent of ours there; elsewhere somebody has."""
        return self.scheme in ("local", "qemu", "ssh")


DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape (elements per axis) and dtype (numpy's name) of one input or output.

    Where the batch is `open`, any will do: `shape` is that of the batch that is measured. With a `scale`, the tensor is quantized: an
    element stands for the number (element - zero) * scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    open: bool = False
    scale: float = 0.0
    zero: int = 0


def shape_in_words(spec: TensorSpec) -> str:
    """[1, 3, 224, 224], or [any, 3, 224, 224] where the batch is open."""
    return f"[{', '.join(map(str, ('any', *spec.shape[1:]) if spec.open else spec.shape))}]"


def batch_in_words(inputs: Sequence[TensorSpec], fixed: str) -> str:
    """What becomes of a batch that a model leaves open; `fixed` is why it is none any more. Empty where there was none."""
    if fixed:
        return f"fixed, as the model does not work with an open one ({fixed})"
    return "any; measured at 1 (--shape fixes another)" if any(spec.open for spec in inputs) else ""


@dataclass(frozen=True, slots=True)
class Preprocess:
    """How an image becomes an input: resized to the input's height and width, scaled to [0, 1], then (x - mean) / std.

    With a `crop`, an image keeps its proportions, and that share of it, in the middle, is what becomes the input. `mean` and `std` hold
    one value per channel, or a single one for all; `layout` is NCHW or NHWC; `channels` RGB, BGR or L (grey). `stated` is whether
    somebody said so: where nobody did, an input that is quantized to bytes takes black as its lowest byte and white as its highest.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "NCHW"
    channels: str = "RGB"
    crop: float | None = None
    stated: bool = False


QUANTIZED = ("int8", "float16")  # what a float model can be quantized to
RECIPES = tuple(f".{dtype}" for dtype in QUANTIZED)  # suffixes of the files of quantized models


@dataclass(frozen=True, slots=True)
class Quantize:
    """How a float model becomes one of integers (int8), or one whose weights are kept in half precision (float16), which takes no more.

    `calibration` says how the ranges of tensors are chosen from what is seen of them on up to `samples` samples: kl_divergence, minmax,
    percentile (of the magnitudes, in per cent) or global_scale (a step of `global_scale` / 128 for all). Weights have a scale for each
    channel or, without `per_channel`, one each; `weight_scale` is max, or power2: the next power of two.
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
        """Whether it takes samples of what the model will be fed."""
        return self.dtype == "int8"


@dataclass(frozen=True, slots=True)
class Limits:
    """How far an answer may be from the reference's; None and False where there is no such limit.

    `max_abs` is absolute for values up to one, and relative to the largest beyond; `min_snr_db` a ratio of signal to noise;
    `min_cosine` a cosine of the angle between the two; with `same_top1` every row's best class must be the reference's.
    """

    max_abs: float | None = None
    min_snr_db: float | None = None
    min_cosine: float | None = None
    same_top1: bool = False


# By what a model computes in. Half precision has 3 decimal digits; of 8-bit integers the absolute difference says little: engines round
# halves to different sides, and a step of the last scale may be large.
LIMITS: Mapping[str, Limits] = {
    "float32": Limits(max_abs=1e-4),
    "float16": Limits(max_abs=1e-2),
    "int8": Limits(min_snr_db=20.0, min_cosine=0.99),
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the user names it. `source` is an absolute path, or `python:package.module:function`.

    `shapes` overrides input shapes by name; `dtypes` element types (numpy's names), "" standing for all floating-point numbers of a
    module. `module` is the `python:` function that makes the module of a file that holds weights alone. `labels` is a text file, a label
    a line. `dataset` is labelled samples: an .npz with `inputs` (N x one sample) and `labels` (N integers), or a folder of images by class
    (see farm.data). With `quantize`, it is quantized, to int8 by the samples of `calibration_data`. `limits` are those of its answer, by
    what it computes in. With a `batch`, it is built for so many samples at once.
    """

    name: str
    source: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    preprocess: Preprocess = Preprocess()
    labels: Path | None = None
    dataset: Path | None = None
    limits: Mapping[str, Limits] = field(default_factory=lambda: LIMITS)
    module: str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    quantize: Quantize | None = None
    calibration_data: Path | None = None
    batch: int | None = None
