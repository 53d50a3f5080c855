"""The seconds that each kernel of an inference takes on a device."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.types.artifacts import Agreement


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel in an inference.

    `seconds` is the mean over typical inferences: the middle fifth, by length, of the recorded
    ones. `layer` names the operators of the source model that became this kernel, empty if unknown.
    `operations` counts a multiplication and an addition as two. `nbytes` is what it must read and
    write, each tensor once; None if a shape is open. `rule` is the rule that scheduled it, empty
    for a function of the runtime such as a reshape.
    """

    kernel: str
    seconds: float
    operations: int = 0
    nbytes: int | None = None
    layer: str = ""
    rule: str = ""

    @property
    def gflops(self) -> float:
        """The arithmetic throughput in Gflop/s; 0 if the duration is 0."""
        return 1e-9 * self.operations / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of a device with the threads of the inference.

    `gflops` is the peak of float32 arithmetic in registers, in Gflop/s. `gbytes_s` is the
    bandwidth, in GB/s, of reading and writing memory far larger than the caches. `source` says in
    words how they were determined.
    """

    gflops: float
    gbytes_s: float
    source: str

    def seconds(self, step: KernelCall) -> float:
        """Return the minimum time that a step's arithmetic or its bytes take."""
        return max(1e-9 * step.operations / self.gflops, 1e-9 * (step.nbytes or 0) / self.gbytes_s)

    def share(self, step: KernelCall) -> float | None:
        """Return the step's minimum time at the roofline over its measured time.

        1 is the maximum without caches; a value above 1 means that caches have helped. The result
        is None if neither arithmetic nor bytes are known.
        """
        return (
            self.seconds(step) / step.seconds
            if step.seconds and (step.operations or step.nbytes)
            else None
        )

    def is_bound_by_memory(self, step: KernelCall) -> bool:
        """Return whether the step's bytes take longer than its arithmetic at the roofline."""
        return (step.nbytes or 0) * self.gflops > step.operations * self.gbytes_s


@dataclass(frozen=True, slots=True)
class Span:
    """A call within one inference.

    `begin_s` is the time since the begin of the inference, `depth` the number of calls that enclose
    it.
    """

    name: str
    begin_s: float
    seconds: float
    depth: int = 0


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model's profile on a device. Seconds are by the device's clock.

    Plain and recorded inferences alternate: `plain_s` and `recorded_s` are their seconds, one of
    each per turn. `steps` are in the order of execution. `runtime_s` is the time of the virtual
    machine's own calls, for memory and the like, in a typical inference, and `runtime_calls` is
    their number. `trace` is the recorded inference of median length. `threads` and `cores` are
    those the session used. `ledger` divides the time on the device, `wall_s`, into parts.
    """

    device: str
    model: str
    profile: str
    url: str
    artifact_digest: str
    started_at: str  # ISO 8601, UTC
    agreement: Agreement
    steps: tuple[KernelCall, ...]
    runtime_s: float
    runtime_calls: int
    plain_s: tuple[float, ...]
    recorded_s: tuple[float, ...]
    trace: tuple[Span, ...]
    roof: Roofline | None = None
    threads: int | None = None
    cores: str = ""
    emulated: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    ledger: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def latency_s(self) -> float:
        """The median of the inferences that were not recorded, in seconds."""
        return statistics.median(self.plain_s)

    @property
    def kernels_s(self) -> float:
        """The seconds of all steps together."""
        return sum(step.seconds for step in self.steps)

    @property
    def between_s(self) -> float:
        """The latency minus the kernels' time: the time between kernels, in seconds.

        It includes `runtime_s`, the calls of the runtime. Noise can make it negative.
        """
        return self.latency_s - self.kernels_s

    @property
    def accounted(self) -> float:
        """The share of the latency that the kernels and the runtime's calls account for."""
        return (self.kernels_s + self.runtime_s) / self.latency_s

    @property
    def recording_s(self) -> float:
        """The additional seconds that an inference takes while it is recorded."""
        return statistics.median(self.recorded_s) - self.latency_s
