"""What tuning leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Record:
    """The best choice measured for a kernel's workload on a core, as the compiler names all three.

    `seconds` is the median of `runs` measurements of the kernel with what followed it in the model where it was found, `default_s` that of
    what is chosen without a record, measured in turns with it. `cpu` is what the device calls its processor; `threads` how many it used,
    0 where it does not tell.
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
