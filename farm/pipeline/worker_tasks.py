"""The functions that run in worker processes, and the pool of workers of a command.

The functions are defined at module level, because they are pickled. They import the rooms that they
need in the worker process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.deadline import Deadline
from farm.errors import FarmError
from farm.pipeline.confinement import confined
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
from farm.workers import Crew, Desk

# Deadlines; reading the facts may include sending the agent.
PREPARE_S, BUILD_S, AGENT_S, FACTS_S = 900.0, 900.0, 1800.0, 120.0
_ANSWERS_S = 10.0  # for a short session with an agent that is there


@contextlib.contextmanager
def crew_of(store: Store) -> Iterator[Crew]:
    """Yield the pool of workers of one command.

    Before and after, the store is swept of what killed workers of this or an earlier command have
    left.
    """
    store.sweep()
    try:
        with store.scratch() as scratch, Crew(scratch) as crew:
            yield crew
    finally:
        store.sweep()


def agent_task(desk: Desk, machine: str, cache: Path, deadline_s: float) -> Path:
    """Return the executable of the native agent for a machine, built if necessary."""
    from farm.agent import build

    def note(text: str, fraction: float | None) -> None:
        desk.note(Progress(Stage.AGENT, text, fraction))

    executable: Path = build.ensure(machine, cache, note, Deadline(deadline_s))
    return executable


def agent_there(machine: str, cache: Path) -> Path | None:
    """Return the executable of the native agent for a machine if it is already built, else None.

    This is the common case and needs no worker. Errors are ignored here: the worker that builds the
    agent reports them, so that only the jobs that need it fail.
    """
    from farm.agent import build

    with contextlib.suppress(FarmError, OSError):
        found: Path | None = build.there(machine, cache)
        return found
    return None


def kept_model_task(_: Desk, model: Model, cache: Path) -> Prepared | None:
    """Return a model that is prepared already; None if it has to be imported. May be a thread's."""
    from farm import prepare

    return prepare.kept(model, cache)


def kept_build_task(_: Desk, prepared: Prepared, profile: Profile, cache: Path) -> Artifact | None:
    """Return a build that is there already; None if it has to be made. May be a thread's."""
    from farm.compiler import build

    return build.kept(prepared, profile, cache, RecordStore.of_user())


def prepare_task(desk: Desk, model: Model, host: Profile, store: Store) -> Prepared:
    """Import and check a model, in a sandbox if the model needs one."""
    from farm.prepare import make, prepare

    def maker(desk: Desk, model: Model, host: Profile, cache: Path, folder: Path) -> None:
        confined(desk, model, make, model, host, cache, folder, write=(folder,))

    return prepare(desk, model, host, store.root, maker, store.upstream)


def build_task(desk: Desk, prepared: Prepared, profile: Profile, store: Store) -> Artifact:
    """Build a prepared model for a profile, with this user's tuning records."""
    from farm.compiler.build import build

    return build(desk, prepared, profile, store.root, RecordStore.of_user(), store.upstream)


def measure_task(desk: Desk, device: Device, fitted: Fitted, plan: Plan, cache: Path) -> Samples:
    """Run one job on a device."""
    from farm import executor

    return executor.measure(desk, device_at_home(device, cache), fitted, plan)


def whole(samples: Samples, made: tuple[Prepared | Artifact, ...], lane_s: float) -> Samples:
    """Return the samples with a ledger of the whole job.

    The ledger then includes the import and builds in `made`, and the start and exit of the worker
    process. `lane_s` is the worker's time for the job in seconds.
    """
    build_s = sum(sum(one.seconds.values()) for one in made if not one.cached)
    around = {"build": build_s, "process": lane_s - (samples.wall_s or lane_s)}
    return replace(samples, ledger={**around, **samples.ledger}, wall_s=build_s + lane_s)


def probe_task(desk: Desk, profile: Profile, cache: Path) -> Any:
    """Build the kernels that measure the roofline of a profile."""
    from farm.compiler.diagnostics import roofline_probe as probe

    return probe.build(desk, profile, cache)


def profile_task(desk: Desk, device: Device, fitted: Fitted, probe: Any, seconds: float, deadline_s: float, cache: Path) -> Profiled:
    """Profile a model on a device."""
    from farm.executor import profiling

    return profiling.profile(desk, device_at_home(device, cache), fitted, probe, seconds, deadline_s)


def rivals_task(desk: Desk, device: Device, fitted: Fitted, names: tuple[str, ...], rounds: int, deadline_s: float, cache: Path) -> Contest:
    """Measure a model in farm's build and in other engines, interleaved."""
    from farm.executor import engine_comparison

    return engine_comparison.contest(desk, device_at_home(device, cache), fitted, names, rounds, deadline_s, cache)


def tasks_task(desk: Desk, prepared: Prepared, profile: Profile) -> tuple[str, list[Task]]:
    """Return the CPU model of a profile, and the tuning tasks of a model."""
    from farm.compiler.tuning import batch_build

    desk.note(Progress(Stage.COMPILING, "what there is to choose"))
    return batch_build.tasks(prepared, profile, RecordStore.of_user())


def batch_task(desk: Desk, prepared: Prepared, profile: Profile, wanted: tuple[tuple[str, Candidate], ...], folder: Path) -> Batch:
    """Build the candidates of a batch of tuning tasks."""
    from farm.compiler.tuning import batch_build

    return batch_build.build_batch(desk, prepared, profile, wanted, folder)


def time_variants_task(desk: Desk, device: Device, batch: Batch, agent: Path | None, cache: Path, deadline_s: float) -> None:
    """Measure the variants of a batch; all results are reported as notes while it runs."""
    from farm.executor import tuning

    tuning.time_variants(desk, device_at_home(device, cache), batch, agent, deadline_s)


def compare_task(
    desk: Desk, device: Device, sides: tuple[Side, Side], agent: Path | None, until: Until, deadline_s: float, cache: Path
) -> Paired:
    """Measure two builds, interleaved."""
    from farm.executor import comparing

    return comparing.compare(desk, device_at_home(device, cache), sides, agent, until, deadline_s)


def boards_task(_: Desk, device: Device) -> int:
    """Return how many boards a device's url can provide at the same time."""
    from farm import transports

    return transports.boards(device)


def infer_task(
    desk: Desk, device: Device, artifact: Artifact, agent: Path | None, inputs: dict[str, Any], deadline_s: float, cache: Path
) -> list[Any]:
    """Return the outputs for one input."""
    from farm import executor

    return executor.infer(desk, device_at_home(device, cache), artifact, agent, inputs, deadline_s)


def infer_deployed_task(
    desk: Desk, device: Device, agent: Path | None, name: str, source: Path, deadline_s: float
) -> tuple[Release, list[Any], list[str]] | None:
    """Run a deployed model for the input in a file.

    Returns its release, the outputs, and how an image was converted; None if it is not deployed.
    """
    from farm import executor

    return executor.infer_deployed(desk, device, agent, name, source, deadline_s)


def deployments_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> list[Release]:
    """Return the releases on a device."""
    from farm import executor

    return executor.deployments(desk, device, agent, timeout_s)


def roll_back_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float, name: str, number: int) -> Release:
    """Make an earlier release current and return it."""
    from farm import executor

    return executor.roll_back(desk, device, agent, timeout_s, name, number)


def undeploy_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float, names: tuple[str, ...]) -> None:
    """Remove the models from a device."""
    from farm import executor

    executor.undeploy(desk, device, agent, timeout_s, names)


def facts_task(desk: Desk, device: Device, agent: Path | None, timeout_s: float) -> dict[str, str]:
    """Return the facts that a device reports about itself; none for TVM's own server.

    An agent that has no upload to wait for answers within seconds.
    """
    from farm import transports

    seconds = _ANSWERS_S if transports.runs_in_thread(device) else timeout_s
    with transports.open(device, agent, desk.scratch, seconds, desk.ask, transports.PROMPT_S) as link:
        if device.profile.on_gpu:  # a GPU reports facts only after it is opened
            from farm.executor import open_gpu

            open_gpu(link, device)
        return link.facts() if link.native else {}


def device_at_home(device: Device, cache: Path) -> Device:
    """Return the device; one on this machine that names no store gets a store in the cache."""
    if not device.on_this_machine or "store" in device.options:
        return device
    options = {**device.options, "store": str(cache / "devices" / device.name)}
    return Device(device.name, device.profile, device.url, device.tags, options)
