"""Where the time of an inference goes, kernel by kernel, on a device."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.types.made import Agreement


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a kernel in an inference: what it does, and the mean of the seconds that it took in typical inferences, the middle half
    by length of those recorded.

    `layer` names the operators of the source model that became this kernel, empty where that is not known. `operations` counts a
    multiplication and an addition as two; `nbytes` is what it must read and write, each tensor once: None where a shape is open.
    `rule` is what scheduled it, empty for a function of the runtime, such as a reshape.
    """

    kernel: str
    seconds: float
    operations: int = 0
    nbytes: int | None = None
    layer: str = ""
    rule: str = ""

    @property
    def gflops(self) -> float:
        return 1e-9 * self.operations / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Roof:
    """What a device can do at the most, with the threads of the inference: arithmetic on float32 in registers, and memory far larger than
    the caches, read and written. `source` says in words how that is known."""

    gflops: float
    gbytes_s: float
    source: str

    def seconds(self, step: Step) -> float:
        """The least time that a step's arithmetic or its bytes take."""
        return max(1e-9 * step.operations / self.gflops, 1e-9 * (step.nbytes or 0) / self.gbytes_s)

    def share(self, step: Step) -> float | None:
        """The share of its time in which the step would be done at the roof: 1 is as fast as can be, above it the caches have helped. None
        where neither arithmetic nor bytes are known."""
        return self.seconds(step) / step.seconds if step.seconds and (step.operations or step.nbytes) else None

    def is_bound_by_memory(self, step: Step) -> bool:
        return (step.nbytes or 0) * self.gflops > step.operations * self.gbytes_s


@dataclass(frozen=True, slots=True)
class Span:
    """A call within one inference: `begin_s` since the inference's own, and how many calls it lies within."""

    name: str
    begin_s: float
    seconds: float
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Profiled:
    """A model's profile on a device. Seconds are by the device's clock.

    Plain inferences and recorded ones took turns: `plain_s` and `recorded_s` are theirs, one of each a turn. `steps` are in the order in
    which they run. `runtime_s` is what the virtual machine's own calls took in a typical inference, which get memory and the like:
    `runtime_calls` of them. `trace` is the recorded inference whose length is the median one. `threads` and `cores` are what the session
    computed with. `ledger` is where the time on the device, `wall_s`, went.
    """

    device: str
    model: str
    profile: str
    url: str
    artifact_digest: str
    started_at: str  # ISO 8601, UTC
    agreement: Agreement
    steps: tuple[Step, ...]
    runtime_s: float
    runtime_calls: int
    plain_s: tuple[float, ...]
    recorded_s: tuple[float, ...]
    trace: tuple[Span, ...]
    roof: Roof | None = None
    threads: int | None = None
    cores: str = ""
    emulated: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    ledger: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def latency_s(self) -> float:
        """Of an inference that is not recorded: the median."""
        return statistics.median(self.plain_s)

    @property
    def kernels_s(self) -> float:
        """All steps together."""
        return sum(step.seconds for step in self.steps)

    @property
    def between_s(self) -> float:
        """The latency less the kernels: what lies between them, `runtime_s` of it calls of the runtime. Negative where noise has it so."""
        return self.latency_s - self.kernels_s

    @property
    def accounted(self) -> float:
        """The share of the latency that the kernels and the runtime's calls add up to."""
        return (self.kernels_s + self.runtime_s) / self.latency_s

    @property
    def recording_s(self) -> float:
        """How much longer an inference takes while it is recorded."""
        return statistics.median(self.recorded_s) - self.latency_s
