"""A model taken apart on a device: what each of its kernels gave there, beside what it must give."""

from __future__ import annotations

from dataclasses import dataclass

from farm.types.made import Agreement


@dataclass(frozen=True, slots=True)
class Likeness:
    """What stays of a tensor's values, whatever the order of its axes: by it, the same tensor is found again in another engine."""

    count: int
    norm: float
    total: float
    largest: float
    smallest: float


@dataclass(frozen=True, slots=True)
class Layer:
    """A kernel's output on a device, with the inputs that the device itself had made.

    `snr_db` and `max_abs` are by the reference, plain loops on this machine; `alone_db` is the ratio with the reference's inputs, known of
    a bad layer only. `not_finite` says what is in the output that should be finite. `damaged`: the build's parameters are not the model's.
    `name` and `operator` are those of the source, empty where it has no such tensor.
    """

    kernel: str
    shape: tuple[int, ...]
    dtype: str
    snr_db: float
    max_abs: float
    bad: bool
    not_finite: str = ""
    alone_db: float | None = None
    damaged: bool = False
    likeness: Likeness | None = None
    name: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Dissection:
    """All layers in order, and how the whole model's answer on the device agrees with the reference engine's."""

    layers: tuple[Layer, ...]
    whole: Agreement

    @property
    def first_bad(self) -> int | None:
        return next((index for index, layer in enumerate(self.layers) if layer.bad), None)
