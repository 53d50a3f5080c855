"""The result of tuning a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """The best configuration measured for a kernel's workload on a CPU model.

    `core` is the CPU model, and `choice` the configuration, both as the compiler names them.
    `seconds` is the median of `runs` measurements of the kernel together with the operations that
    followed it in the model where it was found; `default_s` is that of the configuration used
    without a record, measured interleaved with it. `cpu` is the device's name of its processor.
    `threads` is the number of threads it used, 0 if it does not report that.
    """

    core: str
    workload: str
    choice: Mapping[str, object]
    seconds: float
    default_s: float
    runs: int
    measured_at: str  # ISO 8601, UTC
    device: str
    cpu: str = ""
    threads: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
