"""The commands that do one thing: compile a model, run an input, ask for facts, have an agent. Each in lanes that can be killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import transports
from farm.errors import DeviceError, FarmError
from farm.parallel import Crew, Kind
from farm.pipeline.tasks import AGENT_S, BUILD_S, PREPARE_S, agent_task, build_task, crew_of, facts_task, infer_task, prepare_task
from farm.store import Store
from farm.types import Artifact, Device, Model, Prepared, Profile, Progress, TensorSpec

if TYPE_CHECKING:
    import numpy as np

Show = Callable[[Progress], None]
_TICK_S = 0.1


def compile_model(model: Model, profile: Profile, *, host: Profile, store: Store, show: Show) -> tuple[Prepared, Artifact]:
    """The checked model and its library for a profile. `host` is the profile of this machine."""
    with crew_of(store) as crew:
        prepared = _prepare(crew, model, host, store, show)
        return prepared, _build(crew, prepared, profile, store, show)


def infer(
    model: Model, device: Device, source: Path, *, host: Profile, store: Store, deadline_s: float, show: Show
) -> tuple[tuple[TensorSpec, ...], list[np.ndarray[Any, Any]]]:
    """The outputs, and their specifications, of a model on a device for the input in a file."""
    from farm.importers.feed import read_inputs

    there = transports.state(device)
    if not there.usable:
        raise DeviceError(f"{device.name} is {there.word}", there.why, there.fix)
    with crew_of(store) as crew:
        prepared = _prepare(crew, model, host, store, show)
        inputs = read_inputs(source, prepared.inputs, model.preprocess)
        artifact = _build(crew, prepared, device.profile, store, show)
        agent = ensure_agent(crew, device, store, show)
        arguments = (device, artifact, agent, inputs, deadline_s, store.root)
        outputs = do(crew, infer_task, arguments, show, deadline_s, f"{model.name} on {device.name}")
        return prepared.outputs, outputs


def ask_facts(
    devices: Sequence[Device], *, store: Store, lanes: int, timeout_s: float, show: Show
) -> dict[str, dict[str, str] | FarmError]:
    """What each device says of itself, or its error, by name; all of them at once."""
    answers: dict[str, dict[str, str] | FarmError] = {}
    with crew_of(store) as crew:
        agents = {device.profile.agent: ensure_agent(crew, device, store, show) for device in devices if device.gets_agent}
        waiting, running = list(devices), 0
        while waiting or running:
            while waiting and running < lanes:
                device = waiting.pop()
                agent = agents.get(device.profile.agent) if device.gets_agent else None
                task = f"asking {device.name}"
                crew.assign(device.name, facts_task, device, agent, timeout_s, deadline_s=timeout_s, task=task)
                running += 1
            for message in crew.messages(_TICK_S):
                if message.kind is not Kind.NOTE:
                    answers[message.lane] = message.value
                    running -= 1
    return answers


def agent_for(machine: str, *, store: Store, show: Show) -> Path:
    """The native agent's executable for a machine."""
    with crew_of(store) as crew:
        path: Path = do(crew, agent_task, (machine, store.root, AGENT_S), show, AGENT_S, f"building the agent for {machine}")
        return path


def _prepare(crew: Crew, model: Model, host: Profile, store: Store, show: Show) -> Prepared:
    prepared: Prepared = do(crew, prepare_task, (model, host, store.root), show, PREPARE_S, f"importing {model.name}")
    return prepared


def _build(crew: Crew, prepared: Prepared, profile: Profile, store: Store, show: Show) -> Artifact:
    task = f"compiling {prepared.model} for {profile.name}"
    artifact: Artifact = do(crew, build_task, (prepared, profile, store.root), show, BUILD_S, task)
    return artifact


def ensure_agent(crew: Crew, device: Device, store: Store, show: Show) -> Path | None:
    machine = device.profile.agent
    if not device.gets_agent or machine is None:
        return None
    path: Path = do(crew, agent_task, (machine, store.root, AGENT_S), show, AGENT_S, f"building the agent for {machine}")
    return path


def do(crew: Crew, function: Callable[..., Any], arguments: tuple[Any, ...], show: Show, deadline_s: float, task: str) -> Any:
    """One task to its end. Raises its error."""
    crew.assign("worker", function, *arguments, deadline_s=deadline_s, task=task)
    while True:
        for message in crew.messages(_TICK_S):
            if message.kind is Kind.NOTE:
                show(message.value)
            elif message.kind is Kind.DONE:
                return message.value
            else:
                raise message.value
