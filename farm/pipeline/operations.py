"""Single steps of the commands: compile a model, run one input, query devices, get an agent.

Each step runs in a worker that ends at its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import transports
from farm.errors import DeviceError, FarmError, UsageError
from farm.pipeline.job_dependencies import model_for_profile
from farm.pipeline.worker_tasks import (
    AGENT_S,
    BUILD_S,
    FACTS_S,
    PREPARE_S,
    build_agent_task,
    build_model_task,
    device_with_default_store,
    find_build_task,
    find_built_agent,
    find_prepared_model_task,
    infer_deployed_task,
    infer_task,
    open_pool,
    prepare_model_task,
    read_device_facts_task,
)
from farm.processes.workers import MessageKind, WorkerPool, thread_map
from farm.store import Store
from farm.transports.device_availability import DeviceAvailability
from farm.types import (
    Artifact,
    BuildWithAgent,
    Device,
    Model,
    PreparedModel,
    Profile,
    Progress,
    Release,
    TensorSpec,
)

if TYPE_CHECKING:
    import numpy as np

Show = Callable[[Progress], None]
_TICK_S = 0.1
_THREADS = 200  # at once


def compile_model(
    model: Model, profile: Profile, *, host: Profile, store: Store, show: Show
) -> tuple[PreparedModel, Artifact]:
    """Return the checked model and its build for a profile.

    `host` is the profile of this machine.
    """
    with open_pool(store) as pool:
        model, prepared = prepare_model(pool, model, profile, host, store, show)
        return prepared, build_artifact(pool, model, prepared, profile, store, show)


def infer(
    model: Model,
    device: Device,
    source: Path,
    *,
    host: Profile,
    store: Store,
    deadline_s: float,
    show: Show,
) -> tuple[tuple[TensorSpec, ...], list[np.ndarray[Any, Any]], list[str]]:
    """Run a model on a device for the input in a file.

    Returns the specifications of the outputs, the outputs, and sentences that describe how an image
    was converted. `host` is the profile of this machine.
    """
    from farm.inputs.read import read_inputs

    check_device_usable(device)
    with open_pool(store) as pool:
        model, prepared = prepare_model(pool, model, device.profile, host, store, show)
        said: list[str] = []
        inputs = read_inputs(source, prepared.inputs, model.preprocess, said.append)
        fitted = build_model_and_agent_for_device(pool, model, prepared, device, store, show)
        arguments = (device, fitted.artifact, fitted.agent, inputs, deadline_s, store.root)
        outputs = run_task(
            pool,
            infer_task,
            arguments,
            show,
            deadline_s,
            f"{model.name} on {device.name}",
            thread=transports.runs_in_thread(device),
        )
        return prepared.outputs, outputs, said


def infer_deployed(
    name: str, device: Device, source: Path, *, store: Store, deadline_s: float, show: Show
) -> tuple[Release, list[np.ndarray[Any, Any]], list[str]] | None:
    """Run a deployed model on a device for the input in a file.

    Returns the release, the outputs, and sentences that describe how an image was converted; None
    if no model of that name is deployed.
    """
    check_device_usable(device)
    with open_pool(store) as pool:
        agent = ensure_agent_executable_for_device(pool, device, store, show)
        arguments = (
            device_with_default_store(device, store.root),
            agent,
            name,
            source.absolute(),
            deadline_s,
        )
        found: tuple[Release, list[Any], list[str]] | None = run_task(
            pool,
            infer_deployed_task,
            arguments,
            show,
            deadline_s,
            f"{name} on {device.name}",
            thread=transports.runs_in_thread(device),
        )
        return found


def run_task_on_devices(
    devices: Sequence[Device],
    question: Callable[..., Any],
    *arguments: Any,
    store: Store,
    slots: int,
    timeout_s: float,
    show: Show,
) -> dict[str, Any]:
    """Run a task for each device, `slots` at a time, or more where threads do.

    The task is called as `question(context, device, agent, timeout_s, *arguments)`. Returns its
    results by device name; the result of a device that fails is its FarmError.
    """
    with open_pool(store) as pool:
        agents = ensure_agent_executables_for_devices(pool, devices, store, show)
        answers: dict[str, Any] = {
            name: found for name, found in agents.items() if isinstance(found, FarmError)
        }
        waiting = [device for device in devices if device.name not in answers]
        running: dict[str, bool] = {}  # by slot; whether it is a thread
        while waiting or running:
            for device in list(waiting):
                thread = transports.runs_in_thread(device)
                if len([one for one in running.values() if one is thread]) >= (
                    _THREADS if thread else slots
                ):
                    continue
                waiting.remove(device)
                running[device.name] = thread
                pool.assign(
                    device.name,
                    question,
                    *(
                        device_with_default_store(device, store.root),
                        agents[device.name],
                        timeout_s,
                        *arguments,
                    ),
                    deadline_s=timeout_s,
                    task=f"asking {device.name}",
                    thread=thread,
                )
            for message in pool.messages(_TICK_S):
                if message.kind is not MessageKind.NOTE:
                    answers[message.slot] = message.value
                    del running[message.slot]
    return answers


def query_device_facts(
    devices: Sequence[Device], *, store: Store, slots: int, show: Show
) -> dict[str, Any]:
    """Return what each device reports about itself by its name; see `ask`."""
    return run_task_on_devices(
        devices, read_device_facts_task, store=store, slots=slots, timeout_s=FACTS_S, show=show
    )


def ensure_agent_executables_for_devices(
    pool: WorkerPool, devices: Sequence[Device], store: Store, show: Show
) -> dict[str, Path | FarmError | None]:
    """Return each device's agent by device name, built once per kind of board.

    The value is None for a device that gets no agent from farm, and a FarmError if the device
    cannot be used or its agent cannot be built.
    """
    made: dict[str | None, Path | FarmError | None] = {}
    found: dict[str, Path | FarmError | None] = {}
    for device, there in zip(devices, thread_map(transports.probe_state, devices), strict=True):
        kind = device.profile.agent if device.gets_agent else None
        if there.usable and kind not in made:
            try:
                made[kind] = ensure_agent_executable_for_device(pool, device, store, show)
            except FarmError as error:
                made[kind] = error
        found[device.name] = made[kind] if there.usable else unusable_state_error(device, there)
    return found


def ensure_agent_executable_for_machine(machine: str, *, store: Store, show: Show) -> Path:
    """Return the executable of the native agent for a machine, built if necessary."""
    with open_pool(store) as pool:
        return _agent(pool, machine, store, show)


def check_device_usable(device: Device) -> None:
    """Raise DeviceError if a device cannot be used now."""
    there = transports.probe_state(device)
    if not there.usable:
        raise unusable_state_error(device, there)


def check_no_emulator(device: Device) -> None:
    """Raise UsageError if a device is emulated."""
    if device.emulated:
        raise UsageError(
            f"{device.name} is emulated",
            "what is fast on an emulator says nothing of a board",
            "name a real device",
        )


def unusable_state_error(device: Device, there: DeviceAvailability) -> DeviceError:
    """Return the error for a device in a state in which it cannot be used."""
    return DeviceError(f"{device.name} is {there.word}", there.why, there.fix)


def prepare_model(
    pool: WorkerPool, model: Model, profile: Profile, host: Profile, store: Store, show: Show
) -> tuple[Model, PreparedModel]:
    """Import and check a model in the form that a profile needs.

    Returns the model in that form and the prepared model.
    """
    model = model_for_profile(model, profile)
    task = f"importing {model.name}"
    there: PreparedModel | None = run_task(
        pool, find_prepared_model_task, (model, store.root), show, PREPARE_S, task, thread=True
    )
    if there:
        return model, there
    prepared: PreparedModel = run_task(
        pool, prepare_model_task, (model, host, store, (profile,)), show, PREPARE_S, task
    )
    return model, prepared


def build_model_and_agent_for_device(
    pool: WorkerPool,
    model: Model,
    prepared: PreparedModel,
    device: Device,
    store: Store,
    show: Show,
) -> BuildWithAgent:
    """Build a prepared model and get the agent for a device."""
    return BuildWithAgent(
        model,
        prepared,
        build_artifact(pool, model, prepared, device.profile, store, show),
        ensure_agent_executable_for_device(pool, device, store, show),
    )


def build_models_and_agents_for_devices(
    pool: WorkerPool,
    model: Model,
    devices: Sequence[Device],
    host: Profile,
    store: Store,
    show: Show,
) -> dict[str, BuildWithAgent | FarmError]:
    """Build the model for each device, once per profile and need of an agent.

    Returns the builds by device name; the value is a FarmError if the build failed.
    """
    made: dict[tuple[str, bool], BuildWithAgent | FarmError] = {}
    for device in devices:
        kind = (device.profile.name, device.gets_agent)
        if kind not in made:
            try:
                made[kind] = build_model_and_agent_for_device(
                    pool,
                    *prepare_model(pool, model, device.profile, host, store, show),
                    device,
                    store,
                    show,
                )
            except FarmError as error:
                made[kind] = error
    return {device.name: made[device.profile.name, device.gets_agent] for device in devices}


def build_artifact(
    pool: WorkerPool,
    model: Model,
    prepared: PreparedModel,
    profile: Profile,
    store: Store,
    show: Show,
) -> Artifact:
    """Return the build of a prepared model for a profile."""
    task = f"compiling {prepared.model} for {profile.name}"
    there: Artifact | None = run_task(
        pool, find_build_task, (prepared, profile, store.root), show, BUILD_S, task, thread=True
    )
    if there:
        return there
    artifact: Artifact = run_task(
        pool, build_model_task, (model, prepared, profile, store), show, BUILD_S, task
    )
    return artifact


def ensure_agent_executable_for_device(
    pool: WorkerPool, device: Device, store: Store, show: Show
) -> Path | None:
    """Return the executable of a device's agent, built if necessary.

    Returns None for a device that gets no agent from farm.
    """
    machine = device.profile.agent
    if not device.gets_agent or machine is None:
        return None
    return _agent(pool, machine, store, show)


def _agent(pool: WorkerPool, machine: str, store: Store, show: Show) -> Path:
    if path := find_built_agent(machine, store.root):
        return path
    made: Path = run_task(
        pool,
        build_agent_task,
        (machine, store.root, AGENT_S),
        show,
        AGENT_S,
        f"building the agent for {machine}",
    )
    return made


def run_task(
    pool: WorkerPool,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    show: Show,
    deadline_s: float,
    task: str,
    *,
    thread: bool = False,
) -> Any:
    """Run one task to its end in a worker and return its result; raise its error."""
    slot = "thread" if thread else "worker"
    pool.assign(slot, function, *arguments, deadline_s=deadline_s, task=task, thread=thread)
    while True:
        for message in pool.messages(_TICK_S):
            if message.kind is MessageKind.NOTE:
                show(message.value)
            elif message.kind is MessageKind.DONE:
                return message.value
            else:
                raise message.value
