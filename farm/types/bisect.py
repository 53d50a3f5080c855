"""The outputs of a model's single kernels on a device, compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass

from farm.types.artifacts import Agreement


@dataclass(frozen=True, slots=True)
class TensorFingerprint:
    """A fingerprint of a tensor's values that does not depend on the order of its axes.

    It identifies the same tensor in another engine. `norm` is the Euclidean norm, `total` the sum.
    """

    count: int
    norm: float
    total: float
    largest: float
    smallest: float


@dataclass(frozen=True, slots=True)
class BisectedLayer:
    """A kernel's output on a device, computed from inputs that the device itself produced.

    `snr_db` and `max_abs` compare it with the reference, which is plain loops on this machine.
    `alone_db` is the signal-to-noise ratio with the reference's inputs; it is known for a bad layer
    only. `not_finite` describes values in the output that should be finite. `damaged` is true if
    the build's parameters differ from the model's. `name` and `operator` are those of the source
    model, empty if it has no such tensor.
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
    likeness: TensorFingerprint | None = None
    name: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class KernelBisection:
    """The outputs of all layers, in order; `whole` is the agreement of the model's answer.

    `whole` compares the answer on the device with the reference engine's.
    """

    layers: tuple[BisectedLayer, ...]
    whole: Agreement

    @property
    def first_bad(self) -> int | None:
        """The index of the first bad layer, or None if there is none."""
        return next((index for index, layer in enumerate(self.layers) if layer.bad), None)
