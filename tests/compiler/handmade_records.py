"""Make records of tuning by hand."""

from __future__ import annotations

from farm.compiler.lower import resolve_target
from farm.compiler.target.cpu_model import tuning_target_key
from farm.types import TuningRecord


def record(profile, workload, choice):
    core = tuning_target_key(resolve_target(profile))
    return TuningRecord(core, workload, choice, 1e-6, 2e-6, 9, "2026-01-02T03:04:05+00:00", "board")
