"""What a command and a function of a `Farm` are given, made into what they work with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farm.errors import UsageError, did_you_mean
from farm.types import PRESETS, Model, Plan, Profile, Run

if TYPE_CHECKING:
    from farm.config import Fleet
    from farm.store import RunStore

HOST_PROFILE = "x86"


def planned(plan: Plan, preset: str | None, given: Mapping[str, Any]) -> Plan:
    """A plan, changed by a preset and then by what is given and not None. Raises UsageError for what a plan has not."""
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", did_you_mean(preset, PRESETS), "")
    changes = {name: value for name, value in given.items() if value is not None}
    known = [name for name in Plan.__dataclass_fields__ if name != "install"]
    if unknown := [name for name in changes if name not in known]:
        raise UsageError(f"a plan has no {unknown[0]!r}", did_you_mean(unknown[0], known), "")
    plan = replace(plan, **{**(PRESETS[preset] if preset else {}), **changes})
    return replace(plan, maximum_s=max(plan.maximum_s, plan.minimum_s))


def of_batch(model: Model, batch: int | None) -> Model:
    """A model for so many samples at once, under a name of its own: its latencies are those of another model. Labelled samples come one by
    one, and are left out. As it is without a batch."""
    return model if batch is None else replace(model, name=f"{model.name}.batch{batch}", batch=batch, dataset=None)


def deadline_asked(preset: str | None, given: Mapping[str, Any]) -> float | None:
    """The deadline of a job that what is given, or else the preset, asks for: it goes before a device's own."""
    asked: float | None = given.get("deadline_s") or PRESETS.get(preset or "", {}).get("deadline_s")
    return asked


def runs_named(record: RunStore, name: str) -> list[Run]:
    """The runs of a baseline, or the one whose id begins so. Raises UsageError where there is none, or more than one."""
    if found := record.baseline(name):
        return found
    found = record.starting_with(name)
    if len(found) == 1:
        return found
    if found:
        raise UsageError(f"{len(found)} runs begin with {name}", ", ".join(run.id for run in found[:5]), "give more letters of the id")
    raise UsageError(
        f"there is no baseline and no run {name!r}", did_you_mean(name, record.baselines()), "farm baseline list, or: farm history"
    )


def worth_keeping(runs: Iterable[Run]) -> list[Run]:
    """Those that a later run can be compared with."""
    return [run for run in runs if run.good and run.latency]


def host_profile(fleet: Fleet) -> Profile:
    """The profile of this machine, on which every import is checked."""
    if platform.machine() in ("x86_64", "AMD64"):
        return fleet.profile(HOST_PROFILE)
    return Profile("this-machine", {"kind": "llvm", "mcpu": "native"}, "")


def build_lanes() -> int:
    """How many builds run at once: one a processor we may use, four at most, for each takes a gigabyte."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
