"""Measure the builds of stored runs again, interleaved on their device.

The builds are found in the cache and loaded on the device at the same time. Devices are measured in
parallel, the pairs of one device one after the other.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from farm.compiler import artifact as artifacts
from farm.config import Fleet
from farm.errors import FarmError, UsageError
from farm.pipeline.operations import check_no_emulator, ensure_agent_executables_for_devices
from farm.pipeline.worker_tasks import measure_builds_interleaved_task, open_pool
from farm.processes.workers import MessageKind
from farm.store import Store
from farm.types import (
    Device,
    OutputErrorLimits,
    PairedBuild,
    PairedSamples,
    PairedStoppingRule,
    Progress,
    Run,
)

_TICK_S = 0.1
_AROUND_S = 20.0  # per load, without the measurement: connect, upload, first inference


@dataclass(frozen=True, slots=True)
class PairOfBuilds:
    """Two builds to be measured interleaved, and their device."""

    device: Device
    sides: tuple[PairedBuild, PairedBuild]
    title: str


def pair_of_builds(first: Run, second: Run, fleet: Fleet, store: Store) -> PairOfBuilds:
    """Return the two builds of two runs and their device.

    Raises UsageError if the runs cannot be compared this way.
    """
    device = _device(first, second, fleet)
    sides = tuple(build_of_run(run, fleet, store) for run in (first, second))
    return PairOfBuilds(device, (sides[0], sides[1]), second.title)


def build_of_run(run: Run, fleet: Fleet, store: Store) -> PairedBuild:
    """Return the build of a run.

    Raises UsageError if the run does not name its build or the build is no longer in the cache.
    """
    from farm import checked_model_import

    again = (
        f"measure it again: farm bench --device {shlex.quote(run.device)} {shlex.quote(run.model)}"
    )
    if run.artifact_digest is None or run.model_digest is None:
        why = (
            f"it is {run.verdict.value}" if run.artifact_digest is None else "an older farm kept it"
        )
        raise UsageError(f"run {run.id} does not say which build it was of", why, again)
    artifact, model = (
        store.find(artifacts.KIND, run.artifact_digest),
        store.find(checked_model_import.KIND, run.model_digest),
    )
    if artifact is None or model is None:
        gone = (
            f"artifact {run.artifact_digest[:12]}"
            if artifact is None
            else f"model {run.model_digest[:12]}"
        )
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        fix = (
            f"from the sources of then: farm compile {shlex.quote(run.model)} --profile "
            f"{shlex.quote(run.profile)}; or {again}"
        )
        raise UsageError(
            f"the build of run {run.id} is no longer in the cache",
            f"{gone} is not in {store.root}; made by {versions}",
            fix,
        )
    prepared = checked_model_import.load_prepared_model(run.model, model, cached=True)
    built = artifacts.load_artifact(artifact, cached=True)
    built = replace(
        built,
        model=run.model,
        profile=run.profile,
        inputs=prepared.inputs,
        outputs=prepared.outputs,
    )  # builds are shared between models of the same content but another name
    return PairedBuild(
        f"{run.title} (run {run.id[:6]})", built, prepared, _limits(run, fleet)[prepared.precision]
    )


def measure_pairs(
    contests: Sequence[PairOfBuilds],
    until: PairedStoppingRule,
    deadline_s: Callable[[Device], float],
    *,
    store: Store,
    show: Callable[[Progress], None],
) -> list[PairedSamples | FarmError]:
    """Measure each contest; return, in the same order, its result or the FarmError of its failure.

    All devices are measured at the same time, the contests of one device one after the other.
    `deadline_s` gives the seconds that a device has in addition to the measurement.
    """
    devices = {one.device.name: one.device for one in contests}
    found: dict[int, PairedSamples | FarmError] = {}
    with open_pool(store) as pool:
        agents = ensure_agent_executables_for_devices(pool, list(devices.values()), store, show)
        waiting, running = list(range(len(contests))), dict[str, int]()
        while waiting or running:
            for index in list(waiting):
                one = contests[index]
                agent, slot = agents[one.device.name], f"device-{one.device.name}"
                if isinstance(agent, FarmError):
                    found[index] = agent
                elif pool.idle(slot):
                    running[slot] = index
                    limit_s = deadline_s(one.device) + until.seconds + _AROUND_S * until.loads
                    arguments = (one.device, one.sides, agent, until, limit_s, store.root)
                    task = f"{one.title} on {one.device.name}, in turns"
                    pool.assign(
                        slot,
                        measure_builds_interleaved_task,
                        *arguments,
                        deadline_s=limit_s,
                        task=task,
                        here=one.device.on_this_machine,
                    )
                else:
                    continue
                waiting.remove(index)
            for message in pool.messages(_TICK_S):
                one = contests[running[message.slot]]
                if message.kind is MessageKind.NOTE:
                    show(
                        replace(
                            message.value,
                            note=": ".join(
                                filter(
                                    None, (f"{one.title} on {one.device.name}", message.value.note)
                                )
                            ),
                        )
                    )
                else:
                    found[running.pop(message.slot)] = message.value
    return [found[index] for index in range(len(contests))]


def _device(first: Run, second: Run, fleet: Fleet) -> Device:
    """Return the device of both runs, with the threads and cores that they used.

    Raises UsageError if the runs differ in device, profile, threads or cores, if the device has
    another profile now, or if it is emulated.
    """
    runs = f"runs {first.id[:6]} and {second.id[:6]}"
    for what, one, other in (
        ("devices", first.device, second.device),
        ("kinds of board", first.profile, second.profile),
        ("threads or cores", _computing(first), _computing(second)),
    ):
        if one != other:
            fix = (
                f"without --in-turns, farm compare {shlex.quote(first.id[:6])} "
                f"{shlex.quote(second.id[:6])} says what their figures tell"
            )
            raise UsageError(
                f"{runs} cannot be measured in turns: they are of different {what}",
                f"{one} and {other}",
                fix,
            )
    device = fleet.device(first.device)
    if device.profile.name != first.profile:
        why = f"its profile is {device.profile.name} now, and was {first.profile}"
        raise UsageError(
            f"{runs} cannot be measured in turns: {device.name} is another board",
            why,
            f"correct [devices.{device.name}]",
        )
    check_no_emulator(device)
    own = {
        name: value
        for name, value in device.options.items()
        if name not in ("threads", "cores", "pinned")
    }
    asked = {"threads": first.threads, "cores": first.cores or None, "pinned": first.pinned or None}
    return replace(
        device,
        options={**own, **{name: value for name, value in asked.items() if value is not None}},
    )


def _computing(run: Run) -> str:
    """Return the threads and cores of a run as in its title."""
    return run.title.removeprefix(run.model).strip() or "those of the device"


def _limits(run: Run, fleet: Fleet) -> Mapping[str, OutputErrorLimits]:
    """Return the limits that the answers of a run's model are judged by.

    A quantized model may be named after its float model with the data type as a suffix.
    """
    known = fleet.models.get(run.model) or fleet.models.get(run.model.rpartition(".")[0])
    return known.limits if known else fleet.limits
