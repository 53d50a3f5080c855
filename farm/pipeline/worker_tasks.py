"""The functions that run in worker processes, and the pool of workers of a command.

The functions are defined at module level, because they are pickled. They import the rooms that they
need in the worker process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError
from farm.pipeline.sandboxed_tasks import (
    run_build_sandboxed_if_untrusted,
    run_sandboxed_if_untrusted,
)
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext, WorkerPool
from farm.store import Store, TuningRecordStore
from farm.types import Device, Progress, Stage

if TYPE_CHECKING:
    from farm.types import (
        Artifact,
        BuildWithAgent,
        Candidate,
        CompiledCandidateBatch,
        DeviceResults,
        EngineComparison,
        MeasurementSettings,
        Model,
        ModelProfile,
        PairedBuild,
        PairedSamples,
        PairedStoppingRule,
        PreparedModel,
        Profile,
        Release,
        Task,
    )

# Deadlines; reading the facts may include sending the agent.
PREPARE_S, BUILD_S, AGENT_S, FACTS_S = 900.0, 900.0, 1800.0, 120.0
_TUNING_MODULES = ("farm.compiler.tuning.batch_code",)  # what a sandbox of tuning has imported
_ANSWERS_S = 10.0  # for a short session with an agent that is there


@contextlib.contextmanager
def open_pool(store: Store) -> Iterator[WorkerPool]:
    """Yield the pool of workers of one command.

    Before and after, the store is swept of what killed workers of this or an earlier command have
    left.
    """
    store.sweep()
    try:
        with store.scratch() as scratch, WorkerPool(scratch) as pool:
            yield pool
    finally:
        store.sweep()


def build_agent_task(context: TaskContext, machine: str, cache: Path, deadline_s: float) -> Path:
    """Return the executable of the native agent for a machine, built if necessary."""
    from farm.agent import build

    def note(text: str, fraction: float | None) -> None:
        context.note(Progress(Stage.AGENT, text, fraction))

    executable: Path = build.ensure_executable(machine, cache, note, Deadline(deadline_s))
    return executable


def find_built_agent(machine: str, cache: Path) -> Path | None:
    """Return the executable of the native agent for a machine if it is already built, else None.

    This is the common case and needs no worker. Errors are ignored here: the worker that builds the
    agent reports them, so that only the jobs that need it fail.
    """
    from farm.agent import build

    with contextlib.suppress(FarmError, OSError):
        found: Path | None = build.find_existing_executable(machine, cache)
        return found
    return None


def find_prepared_model_task(_: TaskContext, model: Model, cache: Path) -> PreparedModel | None:
    """Return a model that is prepared already; None if it has to be imported. May be a thread's."""
    from farm import checked_model_import

    return checked_model_import.find_prepared_model(model, cache)


def find_build_task(
    _: TaskContext, prepared: PreparedModel, profile: Profile, cache: Path
) -> Artifact | None:
    """Return a build that is there already; None if it has to be made. May be a thread's."""
    from farm.compiler import build

    return build.find_stored_build(prepared, profile, cache, TuningRecordStore.of_user())


def prepare_model_task(
    context: TaskContext,
    model: Model,
    host: Profile,
    store: Store,
    profiles: Sequence[Profile] = (),
) -> PreparedModel:
    """Import and check a model, in a sandbox if the model needs one.

    If it is to be built for one of `profiles` with the code that the check generates, that becomes
    the build.
    """
    from farm.checked_model_import import (
        import_and_check_into_folder,
        linked_folder,
        prepare_model,
    )
    from farm.compiler.build import GenerationResult, build_reuses_import_check_code

    def maker(
        context: TaskContext,
        model: Model,
        host: Profile,
        cache: Path,
        folder: Path,
        keep_build: bool,
    ) -> GenerationResult | None:
        arguments = (model, host, cache, folder, keep_build)
        made: GenerationResult | None = run_sandboxed_if_untrusted(
            context,
            model,
            import_and_check_into_folder,
            *arguments,
            read=(linked_folder(folder),),
            write=(folder,),
            types=(GenerationResult,),
        )
        return made

    keep_build = any(build_reuses_import_check_code(profile, host) for profile in profiles)
    return prepare_model(
        context, model, host, store.root, maker, store.upstream, keep_build=keep_build
    )


def build_model_task(
    context: TaskContext,
    model: Model,
    prepared: PreparedModel,
    profile: Profile,
    store: Store,
    records: TuningRecordStore | None = None,
) -> Artifact:
    """Build a prepared model for a profile, with these tuning records, or else with this user's.

    The code is generated in a sandbox if the model needs one. For GPUs, it may read the stub of the
    driver's library, which is built before.
    """
    from farm.compiler.build import GenerationResult, find_or_build_model, generate_model_code
    from farm.compiler.codegen.cuda_driver_stub import build_driver_stub

    def generator(
        context: TaskContext,
        prepared: PreparedModel,
        profile: Profile,
        records: Any,
        cache: Path,
        folder: Path,
    ) -> GenerationResult:
        arguments = (prepared, profile, records, cache, folder)
        read = [prepared.directory]
        if profile.on_gpu:
            read.append(build_driver_stub(Store(cache)).parent)
        made: GenerationResult = run_build_sandboxed_if_untrusted(
            context,
            model,
            generate_model_code,
            *arguments,
            read=read,
            write=(folder,),
            types=(GenerationResult,),
        )
        return made

    return find_or_build_model(
        context,
        prepared,
        profile,
        store.root,
        records or TuningRecordStore.of_user(),
        store.upstream,
        generator,
    )


def measure_job_task(
    context: TaskContext,
    device: Device,
    fitted: BuildWithAgent,
    plan: MeasurementSettings,
    cache: Path,
) -> DeviceResults:
    """Run one job on a device. If a lab leases it, the wait for a board is not the job's time."""
    from farm import executor

    _reserve(context, device)
    return executor.measure_job(context, device_with_default_store(device, cache), fitted, plan)


def _reserve(context: TaskContext, device: Device) -> None:
    """Have a board for the session that is opened next, if a lab leases the device."""
    from farm import transports

    transports.reserve_board(
        device, context.ask, lambda words: context.note(Progress(Stage.CONNECTING, words))
    )


def add_build_and_process_times(
    samples: DeviceResults, made: tuple[PreparedModel | Artifact, ...], worker_s: float
) -> DeviceResults:
    """Return the samples with a ledger of the whole job.

    The ledger then includes the import and builds in `made`, and the start and exit of the worker
    process. `worker_s` is the worker's time for the job in seconds.
    """
    build_s = sum(sum(one.seconds.values()) for one in made if not one.cached)
    around = {"build": build_s, "process": worker_s - (samples.wall_s or worker_s)}
    return replace(samples, ledger={**around, **samples.ledger}, wall_s=build_s + worker_s)


def build_roofline_probe_task(context: TaskContext, profile: Profile, cache: Path) -> Any:
    """Build the kernels that measure the roofline of a profile."""
    from farm.compiler.diagnostics import roofline_probe as probe

    return probe.build_probe_library(context, profile, cache)


def profile_model_task(
    context: TaskContext,
    device: Device,
    fitted: BuildWithAgent,
    probe: Any,
    seconds: float,
    deadline_s: float,
    cache: Path,
) -> ModelProfile:
    """Profile a model on a device."""
    from farm.executor import profiling

    return profiling.profile_model(
        context, device_with_default_store(device, cache), fitted, probe, seconds, deadline_s
    )


def measure_engines_interleaved_task(
    context: TaskContext,
    device: Device,
    fitted: BuildWithAgent,
    names: tuple[str, ...],
    rounds: int,
    deadline_s: float,
    cache: Path,
) -> EngineComparison:
    """Measure a model in farm's build and in other engines, interleaved."""
    from farm.executor import engine_comparison

    return engine_comparison.measure_engines_interleaved(
        context, device_with_default_store(device, cache), fitted, names, rounds, deadline_s, cache
    )


def find_tuning_tasks_task(
    context: TaskContext, model: Model, prepared: PreparedModel, profile: Profile
) -> tuple[str, list[Task]]:
    """Return the CPU model of a profile, and the tuning tasks of a model.

    They are found in a sandbox if the model needs one.
    """
    from farm.compiler.tuning import batch_build

    def finder(context: TaskContext, prepared: PreparedModel, *arguments: Any) -> list[Task]:
        read = (prepared.directory,)
        found: list[Task] = run_build_sandboxed_if_untrusted(
            context,
            model,
            batch_build.find_tuning_tasks,
            prepared,
            *arguments,
            read=read,
            modules=_TUNING_MODULES,
        )
        return found

    return batch_build.cpu_model_key_and_tuning_tasks(
        prepared, profile, TuningRecordStore.of_user(), context, finder
    )


def build_variant_batch_task(
    context: TaskContext,
    model: Model,
    prepared: PreparedModel,
    profile: Profile,
    wanted: tuple[tuple[str, Candidate], ...],
    folder: Path,
) -> CompiledCandidateBatch:
    """Build the candidates of a batch of tuning tasks, in a sandbox if the model needs one."""
    from farm.compiler.tuning import batch_build

    def generator(
        context: TaskContext, prepared: PreparedModel, profile: Profile, wanted: Any, folder: Path
    ) -> batch_build.BatchCode:
        made: batch_build.BatchCode = run_build_sandboxed_if_untrusted(
            *(context, model, batch_build.generate_batch_code, prepared, profile, wanted, folder),
            read=(prepared.directory,),
            write=(folder,),
            types=(batch_build.BatchCode,),
            modules=_TUNING_MODULES,
        )
        return made

    return batch_build.build_variant_batch(context, prepared, profile, wanted, folder, generator)


def measure_variants_task(
    context: TaskContext,
    device: Device,
    batch: CompiledCandidateBatch,
    agent: Path | None,
    cache: Path,
    deadline_s: float,
) -> None:
    """Measure the variants of a batch; all results are reported as notes while it runs.

    If a lab leases the device, others have their turn before, and the wait is not the batch's time.
    """
    from farm import transports
    from farm.executor import tuning

    transports.release_board_if_wanted(device)
    _reserve(context, device)
    tuning.measure_variants(
        context, device_with_default_store(device, cache), batch, agent, deadline_s
    )


def measure_builds_interleaved_task(
    context: TaskContext,
    device: Device,
    sides: tuple[PairedBuild, PairedBuild],
    agent: Path | None,
    until: PairedStoppingRule,
    deadline_s: float,
    cache: Path,
) -> PairedSamples:
    """Measure two builds, interleaved."""
    from farm.executor import compare_builds

    _reserve(context, device)
    return compare_builds.measure_builds_interleaved(
        context, device_with_default_store(device, cache), sides, agent, until, deadline_s
    )


def count_boards_task(_: TaskContext, device: Device) -> int:
    """Return how many boards a device's url can provide at the same time."""
    from farm import transports

    return transports.count_boards(device)


def infer_task(
    context: TaskContext,
    device: Device,
    artifact: Artifact,
    agent: Path | None,
    inputs: dict[str, Any],
    deadline_s: float,
    cache: Path,
) -> list[Any]:
    """Return the outputs for one input."""
    from farm import executor

    return executor.infer(
        context, device_with_default_store(device, cache), artifact, agent, inputs, deadline_s
    )


def infer_deployed_task(
    context: TaskContext,
    device: Device,
    agent: Path | None,
    name: str,
    source: Path,
    deadline_s: float,
) -> tuple[Release, list[Any], list[str]] | None:
    """Run a deployed model for the input in a file.

    Returns its release, the outputs, and how an image was converted; None if it is not deployed.
    """
    from farm import executor

    return executor.infer_deployed(context, device, agent, name, source, deadline_s)


def list_deployments_task(
    context: TaskContext, device: Device, agent: Path | None, timeout_s: float
) -> list[Release]:
    """Return the releases on a device."""
    from farm import executor

    return executor.list_deployments(context, device, agent, timeout_s)


def roll_back_task(
    context: TaskContext,
    device: Device,
    agent: Path | None,
    timeout_s: float,
    name: str,
    number: int,
) -> Release:
    """Make an earlier release current and return it."""
    from farm import executor

    return executor.roll_back_deployment(context, device, agent, timeout_s, name, number)


def undeploy_task(
    context: TaskContext,
    device: Device,
    agent: Path | None,
    timeout_s: float,
    names: tuple[str, ...],
) -> None:
    """Remove the models from a device."""
    from farm import executor

    executor.undeploy(context, device, agent, timeout_s, names)


def read_device_facts_task(
    context: TaskContext, device: Device, agent: Path | None, timeout_s: float
) -> dict[str, str]:
    """Return the facts that a device reports about itself; none for TVM's own server.

    An agent that has no upload to wait for answers within seconds.
    """
    from farm import transports

    seconds = _ANSWERS_S if transports.runs_in_thread(device) else timeout_s
    with transports.open(
        device, agent, context.scratch, seconds, context.ask, transports.PROMPT_S
    ) as link:
        if device.profile.on_gpu:  # a GPU reports facts only after it is opened
            from farm.executor import use_gpu_in_session

            use_gpu_in_session(link, device)
        return {**link.system_facts(), **link.facts()} if link.native else {}


def device_with_default_store(device: Device, cache: Path) -> Device:
    """Return the device; one on this machine that names no store gets a store in the cache."""
    if not device.on_this_machine or "store" in device.options:
        return device
    options = {**device.options, "store": str(cache / "devices" / device.name)}
    return Device(device.name, device.profile, device.url, device.tags, options)
