"""Turn the arguments of commands and of `Farm`'s methods into plans, models, runs and profiles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farm import this_machine
from farm.errors import UsageError, did_you_mean
from farm.types import (
    PRESETS,
    Device,
    MeasurementSettings,
    Model,
    Profile,
    Run,
    Value,
    check_cluster_address,
)

if TYPE_CHECKING:
    from farm.config import Fleet
    from farm.store import RunStore

VALUES = "a value is a number, true, false, or lists of these"


def plan_with_overrides(
    plan: MeasurementSettings, preset: str | None, given: Mapping[str, Any]
) -> MeasurementSettings:
    """Return a plan changed by a preset and then by the given values that are not None.

    Raises UsageError for an unknown preset or an unknown field of a plan.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", did_you_mean(preset, PRESETS), "")
    changes = {name: value for name, value in given.items() if value is not None}
    known = [name for name in MeasurementSettings.__dataclass_fields__ if name != "install"]
    if unknown := [name for name in changes if name not in known]:
        raise UsageError(f"a plan has no {unknown[0]!r}", did_you_mean(unknown[0], known), "")
    plan = replace(plan, **{**(PRESETS[preset] if preset else {}), **changes})
    return replace(plan, maximum_s=max(plan.maximum_s, plan.minimum_s))


def model_with_batch(model: Model, batch: int | None) -> Model:
    """Return a model with a batch size and a name of its own; unchanged if `batch` is None.

    Its latencies are those of a different model, hence the name. The labelled dataset is removed,
    because its samples come one at a time.
    """
    return (
        model
        if batch is None
        else replace(model, name=f"{model.name}.batch{batch}", batch=batch, dataset=None)
    )


def model_with_input_shapes(
    model: Model, shapes: Mapping[str, Sequence[int]] | None, values: Mapping[str, Value] | None
) -> Model:
    """Return a model with these shapes and constants of inputs added.

    Arrays of numpy are values, too. Raises UsageError for a value that is none.
    """
    constants = {name: _as_lists(value) for name, value in (values or {}).items()}
    if wrong := [name for name, value in constants.items() if not is_input_value(value)]:
        what = f"values={{{wrong[0]!r}: {constants[wrong[0]]!r}}}: no value of an input"
        raise UsageError(what, VALUES, f"values={{{wrong[0]!r}: 16000}}")
    sizes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    return replace(model, shapes={**model.shapes, **sizes}, values={**model.values, **constants})


def device_with_options(device: Device, options: Mapping[str, str | int | bool | None]) -> Device:
    """Return a device with those of these options that are not None."""
    given = {name: value for name, value in options.items() if value is not None}
    return replace(device, options={**device.options, **given})


def devices_with_reservation(devices: Iterable[Device], number: int | None) -> list[Device]:
    """Return devices of a lab that use the boards of a reservation; unchanged if it is None.

    Raises UsageError for a device that no lab leases.
    """
    if number is None:
        return list(devices)
    found = []
    for device in devices:
        if device.scheme != "lab":
            raise UsageError(
                f"{device.name} cannot be reserved",
                f"it is no device of a lab: its url begins with {device.scheme}:",
                "leave the reservation out, or name a device at lab:KIND or lab://HOST/KIND",
            )
        if number < 1:
            why = "the first one of a lab has the number 1"
            raise UsageError(f"there is no reservation {number}", why, "farm lab reservations")
        found.append(device_with_options(device, {"reservation": number}))
    return found


def check_reservations(devices: Iterable[Device]) -> None:
    """Raise UsageError for a device whose reservation cannot be used, before anything is built."""
    reserved = {
        (device.url, device.options["reservation"]): device
        for device in devices
        if "reservation" in device.options
    }
    if reserved:
        from farm import transports

        for device in reserved.values():
            transports.check_reservation(device)


def is_input_value(value: object) -> bool:
    """Return whether this is a value that an input can have: see VALUES."""
    return (
        all(map(is_input_value, value))
        if isinstance(value, list)
        else isinstance(value, bool | int | float)
    )


def _as_lists(value: Any) -> Any:
    """Return a value with lists in the place of arrays and tuples."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_as_lists(one) for one in value] if isinstance(value, list | tuple) else value


def deadline_from_options_or_preset(preset: str | None, given: Mapping[str, Any]) -> float | None:
    """Return the deadline from the given values, or else from the preset.

    It takes precedence over the deadline of a device.
    """
    asked: float | None = given.get("deadline_s") or PRESETS.get(preset or "", {}).get("deadline_s")
    return asked


def find_runs(record: RunStore, name: str) -> list[Run]:
    """Return the runs of a baseline, or the run whose id begins with `name`.

    Raises UsageError if there is none, or more than one.
    """
    if found := record.baseline(name):
        return found
    found = record.starting_with(name)
    if len(found) == 1:
        return found
    if found:
        raise UsageError(
            f"{len(found)} runs begin with {name}",
            ", ".join(run.id for run in found[:5]),
            "give more letters of the id",
        )
    raise UsageError(
        f"there is no baseline and no run {name!r}",
        did_you_mean(name, record.baselines()),
        "farm baseline list, or: farm history",
    )


def comparable_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that a later run can be compared with."""
    return [run for run in runs if run.good and run.latency]


def host_profile(fleet: Fleet) -> Profile:
    """Return the profile of this machine, on which every import is checked."""
    if (name := this_machine.native_profile_name()) is not None:
        return fleet.profile(name)
    return Profile("this-machine", {"kind": "llvm", "mcpu": "native"}, "")


def resolve_cluster_address(asked: str | None, configured: str | None) -> str | None:
    """Return the address of the cluster that builds; None for none.

    `asked` overrides the configuration, with "none" too. Raises UsageError if it is no address.
    """
    if asked is None:
        return configured
    try:
        return None if asked == "none" else check_cluster_address(asked)
    except ValueError as exc:
        raise UsageError(
            f"{asked} names no cluster", str(exc), "--cluster tcp://HOST:8786"
        ) from exc


def max_parallel_builds() -> int:
    """Return how many builds run at once: one per available CPU, at most four.

    Each build needs about a gigabyte of memory.
    """
    return max(
        1,
        min(
            4,
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
        ),
    )
