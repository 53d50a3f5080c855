"""The workers of a command, and what they are given to do: module-level functions, whose rooms are imported in the worker's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.deadline import Deadline
from farm.errors import FarmError
from farm.parallel import Crew, Desk
from farm.store import RecordStore, Store
from farm.types import (
    Artifact,
    Batch,
    Candidate,
    Contest,
    Device,
    Fitted,
    Model,
    Paired,
    Plan,
    Prepared,
    Profile,
    Profiled,
    Progress,
    Release,
    Samples,
    Side,
    Stage,
    Task,
    Until,
)

PREPARE_S, BUILD_S, AGENT_S, FACTS_S = 900.0, 900.0, 1800.0, 120.0  # deadlines; for the facts, the agent may have to be sent


@contextlib.contextmanager
def crew_of(store: Store) -> Iterator[Crew]:
    """The workers of one command. What killed ones have left in the store, of this command or of earlier ones, is swept."""
    store.sweep()
    try:
        with store.scratch() as scratch, Crew(scratch) as crew:
            yield crew
    finally:
        store.sweep()


def agent_task(desk: Desk, machine: str, cache: Path, deadline_s: float) -> Path:
    """The native agent's executable for a machine."""
    from farm.agent import build

    def note(text: str, fraction: float | None) -> None:
        desk.note(Progress(Stage.AGENT, text, fraction))

    executable: Path = build.ensure(machine, cache, note, Deadline(deadline_s))
    return executable


def agent_there(machine: str, cache: Path) -> Path | None:
    """The native agent's executable for a machine where it is made already: most often, and to find out takes no worker.

    What keeps it from being found is for the worker to tell that makes it: it is an error of the jobs that want it, and of no others.
    """
    from farm.agent import build

    with contextlib.suppress(FarmError, OSError):
        found: Path | None = build.there(machine, cache)
        return found
    return None


def prepare_task(desk: Desk, model: Model, host: Profile, cache: Path) -> Prepared:
    """The imported and checked model."""
    from farm.prepare import prepare

    return prepare(desk, model, host, cache)


def build_task(desk: Desk, prepared: Prepared, profile: Profile, cache: Path) -> Artifact:
    """The library for a profile, by the records of this user."""
    from farm.compiler.build import build

    return build(desk, prepared, profile, cache, RecordStore.of_user())


def measure_task(desk: Desk, device: Device, fitted: Fitted, plan: Plan, cache: Path) -> Samples:
    """One job on a device."""
    from farm import executor

    return executor.measure(desk, device_at_home(device, cache), fitted, plan)


def whole(samples: Samples, made: tuple[Prepared | Artifact, ...], lane_s: float) -> Samples:
    """The samples with a ledger of all that a job took: what was made for it, and `lane_s`, with its process's start and answer."""
    build_s = sum(sum(one.seconds.values()) for one in made if not one.cached)
    around = {"build": build_s, "process": lane_s - (samples.wall_s or lane_s)}
    return replace(samples, ledger={**around, **samples.ledger}, wall_s=build_s + lane_s)


def probe_task(desk: Desk, profile: Profile, cache: Path) -> Any:
    """What measures the most that a core of a profile can do."""
    from farm.compiler import probe

    return probe.build(desk, profile, cache)


def profile_task(desk: Desk, device: Device, fitted: Fitted, probe: Any, seconds: float, deadline_s: float, cache: Path) -> Profiled:
    """A model's profile on a device."""
    from farm.executor import profiling

    return profiling.profile(desk, device_at_home(device, cache), fitted, probe, seconds, deadline_s)


def rivals_task(desk: Desk, device: Device, fitted: Fitted, names: tuple[str, ...], rounds: int, deadline_s: float, cache: Path) -> Contest:
    """A model in farm's code and in other engines, in turns."""
    from farm.executor import rivals

    return rivals.contest(desk, device_at_home(device, cache), fitted, names, rounds, deadline_s, cache)


def tasks_task(desk: Desk, prepared: Prepared, profile: Profile) -> tuple[str, list[Task]]:
    """The core of a profile, and the workloads of a model for which there is something to choose."""
    from farm.compiler import variants

    desk.note(Progress(Stage.COMPILING, "what there is to choose"))
    return variants.tasks(prepared, profile, RecordStore.of_user())


def batch_task(desk: Desk, prepared: Prepared, profile: Profile, wanted: tuple[tuple[str, Candidate], ...], folder: Path) -> Batch:
    """Candidates of workloads, built."""
    from farm.compiler import variants

    return variants.build_batch(desk, prepared, profile, wanted, folder)


def time_variants_task(desk: Desk, device: Device, batch: Batch, agent: Path | None, cache: Path, deadline_s: float) -> None:
    """The variants of a batch, measured; all that is found is told on the way."""
    from farm.executor import tuning

    tuning.time_variants(desk, device_at_home(device, cache), batch, agent, deadline_s)


def compare_task(
    desk: Desk, device: Device, sides: tuple[Side, Side], agent: Path | None, until: Until, deadline_s: float, cache: Path
) -> Paired:
    """Two builds, in turns."""
    from farm.executor import comparing

    return comparing.compare(desk, device_at_home(device, cache), sides, agent, until, deadline_s)


def boards_task(_: Desk, device: Device) -> int:
    """How many boards a device's url can give at once."""
    from farm import transports

    return transports.boards(device)


def infer_task(
    desk: Desk, device: Device, artifact: Artifact, agent: Path | None, inputs: dict[str, Any], deadline_s: float, cache: Path
) -> list[Any]:
    """The outputs for one input."""
    from farm import executor

    return executor.infer(desk, device_at_home(device, cache), artifact, agent, inputs, deadline_s)


def infer_deployed_task(
    desk: Desk, device: Device, agent: Path | None, name: str, source: Path, deadline_s: float
) -> tuple[Release, list[Any], list[str]] | None:
    """The release and the outputs of a deployed model for the input in a file, and how that was converted; None without one."""
    from farm import executor

    return executor.infer_deployed(desk, device, agent, name, source, deadline_s)


def deployments_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> list[Release]:
    """What is deployed on a device."""
    from farm import executor

    return executor.deployments(desk, device, agent, timeout_s)


def roll_back_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float, name: str, number: int) -> Release:
    """The release that is current now."""
    from farm import executor

    return executor.roll_back(desk, device, agent, timeout_s, name, number)


def undeploy_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float, names: tuple[str, ...]) -> None:
    """The models are gone from the device."""
    from farm import executor

    executor.undeploy(desk, device, agent, timeout_s, names)


def facts_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> dict[str, str]:
    """What a device says of itself."""
    from farm import executor

    return executor.facts(desk, device, agent, timeout_s)


def device_at_home(device: Device, cache: Path) -> Device:
    """A device on this machine keeps what it was sent in the cache, unless it has a place of its own."""
    if not device.on_this_machine or "store" in device.options:
        return device
    options = {**device.options, "store": str(cache / "devices" / device.name)}
    return Device(device.name, device.profile, device.url, device.tags, options)
