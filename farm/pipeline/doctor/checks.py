"""Check the layers of all devices at the same time; a device is done at its first failure."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farm import __version__, transports
from farm.errors import FarmError, WrongAnswer, error_from_failure
from farm.pipeline.operations import Show, ensure_agent_executable_for_device
from farm.pipeline.run_jobs import execute_jobs, expand_jobs
from farm.processes.deadline import Deadline
from farm.processes.workers import MessageKind, TaskContext, WorkerPool
from farm.store import RunStore, Store
from farm.transports.connection_layer import LayerCheck
from farm.types import Device, Event, MeasurementSettings, Model, Profile, Progress

_REACH_S, _PLACE_S, _SESSION_S, _ANSWER_S = 60.0, 300.0, 60.0, 300.0
_TICK_S = 0.1
_HOT_C = 80.0
_CLOCK_S = 5.0  # tolerated difference of two clocks


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `failure` if it failed, `advice` if it could be better."""

    layer: str
    detail: str = ""
    failure: FarmError | None = None
    advice: str = ""


def error_of_first_failed_check(findings: Sequence[Finding]) -> FarmError | None:
    """Return the error of the first check that failed; None if all passed."""
    return next((finding.failure for finding in findings if finding.failure), None)


@dataclass
class Examination:
    """The checks of all devices; `found` holds the findings of each so far.

    `host` is the profile of this machine, `slots` how many builds run at once. `show` is called
    with progress, `tell` with each finding as it is made and the name of its device.
    """

    pool: WorkerPool
    devices: Sequence[Device]
    host: Profile
    store: Store
    slots: int
    show: Show
    tell: Callable[[str, Finding], None] = lambda _name, _finding: None
    found: dict[str, list[Finding]] = field(init=False)
    _agents: dict[str, Path | FarmError] = field(default_factory=dict)
    _conditions: dict[str, list[Finding]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = {device.name: [] for device in self.devices}

    @property
    def well(self) -> list[Device]:
        """Return the devices without a failure so far."""
        return [
            device
            for device in self.devices
            if not error_of_first_failed_check(self.found[device.name])
        ]

    def note(self, device: str, finding: Finding) -> None:
        """Add a finding to a device and report it."""
        self.found[device].append(finding)
        self.tell(device, finding)

    def ask(
        self,
        layer: str,
        task: Callable[..., Any],
        more: Callable[[Device], tuple[Any, ...]],
        deadline_s: float,
    ) -> dict[str, Any]:
        """Run a task for each device without a failure, each in a worker of its own.

        Returns the results by device name. The task is called as `task(context, device,
        *more(device))` and reports findings as notes. If it raises an error, that is the failure of
        `layer`.
        """
        running, returned = set(), {}
        for device in self.well:
            self.pool.assign(
                device.name,
                task,
                device,
                *more(device),
                deadline_s=deadline_s,
                task=f"{device.name}, {layer}",
                thread=transports.runs_in_thread(device),
            )
            running.add(device.name)
        while running:
            for message in self.pool.messages(_TICK_S):
                if isinstance(message.value, Finding):
                    self.note(message.slot, message.value)
                elif message.kind is MessageKind.NOTE:
                    self.show(message.value)
                else:
                    running.discard(message.slot)
                    if message.kind is MessageKind.FAILED:
                        self.note(message.slot, Finding(layer, failure=message.value))
                    else:
                        returned[message.slot] = message.value
        return returned

    def reach(self) -> None:
        """Check the layers below the agent."""
        self.ask("name", check_connection_task, lambda _: (_REACH_S,), _REACH_S + _TICK_S)

    def build_agents(self) -> None:
        """Build each agent that a device needs, once."""
        for device in self.well:
            machine = device.profile.agent
            if not device.gets_agent or machine is None:
                continue
            if machine not in self._agents:
                try:
                    self._agents[machine] = (
                        ensure_agent_executable_for_device(self.pool, device, self.store, self.show)
                        or Path()
                    )
                except FarmError as error:
                    self._agents[machine] = error
            if isinstance(failure := self._agents[machine], FarmError):
                self.note(device.name, Finding("agent binary", failure=failure))

    def agent(self, device: Device) -> Path | None:
        """Return the agent's executable for a device that gets one from farm; else None."""
        found = self._agents.get(device.profile.agent or "") if device.gets_agent else None
        return found if isinstance(found, Path) else None

    def place(self) -> None:
        """Build the agents and install them on the devices."""
        self.build_agents()
        self.ask(
            "agent binary",
            check_agent_start_task,
            lambda device: (self.agent(device), _PLACE_S),
            _PLACE_S + _TICK_S,
        )

    def open_session(self) -> None:
        """Open a session on each device and read its conditions, which `prove` reports."""
        self._conditions = self.ask(
            "RPC handshake",
            check_session_task,
            lambda device: (self.agent(device), _SESSION_S),
            _SESSION_S,
        )

    def prove(self, model: Model, keep: RunStore) -> None:
        """Run `model` once on each device and check its answer; report the device's conditions.

        The runs are stored in `keep`.
        """
        jobs = expand_jobs(
            self.well, [model], replace(MeasurementSettings.once(), deadline_s=_ANSWER_S)
        )

        def hear(event: Event) -> None:
            self.show(Progress(event.stage, f"{event.device} {event.note}".strip(), event.fraction))

        if not jobs:
            return
        outcome = execute_jobs(
            jobs,
            host=self.host,
            store=self.store,
            keep=keep,
            slots=self.slots,
            show=hear,
            tick=lambda: None,
        )
        for run in outcome.runs:
            if run.failure:
                self.note(run.device, Finding("answer", failure=error_from_failure(run.failure)))
                continue
            assert run.samples
            difference = f"largest difference {run.samples.agreement.max_abs:.2g}"
            if not run.samples.agreement.right:
                fix = "correct `profile` of it; then suspect its memory"
                self.note(
                    run.device,
                    Finding(
                        "answer",
                        failure=WrongAnswer(f"{run.device} answers wrong", run.reason, fix),
                    ),
                )
                continue
            self.note(run.device, Finding("answer", f"{model.name} is right, {difference}"))
            for finding in self._conditions.get(run.device, ()):
                self.note(run.device, finding)


def check_connection_task(context: TaskContext, device: Device, seconds: float) -> None:
    """Check the layers below the agent, up to the first failure; called in a worker process."""
    from farm.transports.connectivity_checks import connection_layers

    with ExitStack() as stack:
        _check_each(
            context, device, connection_layers(device, stack, Deadline(seconds), context.ask)
        )


def check_agent_start_task(
    context: TaskContext, device: Device, agent: Path | None, seconds: float
) -> None:
    """Install the agent on a device and start it once; called in a worker process."""
    from farm.transports.connectivity_checks import agent_layers

    _check_each(context, device, agent_layers(device, agent, Deadline(seconds), context.ask))


def _check_each(context: TaskContext, device: Device, layers: Iterable[LayerCheck]) -> None:
    from farm.transports.rpc_errors import translate_error

    name = "name"
    try:
        for layer in layers:
            name = layer.name
            context.note(Finding(name, layer.check()))
    except FarmError as error:
        context.note(Finding(name, failure=error))
    except OSError as error:
        context.note(Finding(name, failure=translate_error(device, error)))


def check_session_task(
    context: TaskContext, device: Device, agent: Path | None, timeout_s: float
) -> list[Finding]:
    """Check the RPC session, agent and GPU of a device; called in a worker process.

    Returns the findings about the board's conditions. TVM's own server reports none.
    """
    from farm import executor, transports
    from farm.transports.agent import version as agent_version

    gpu: Finding | None = None
    older = ""
    with transports.open_without_version_check(
        device, agent, context.scratch, timeout_s, context.ask, transports.PROMPT_S
    ) as link:
        facts = executor.read_device_facts(link)
        if not link.native:
            older = agent_version.describe_older_tvm_server(link.session.has_function)
        apart_s = float(facts["time_s"]) - time.time() if "time_s" in facts else 0.0
        if device.profile.on_gpu and (
            not facts or facts.get("protocol") == agent_version.expected_facts()["protocol"]
        ):
            try:
                gpu = Finding("GPU", executor.use_gpu_in_session(link, device))
                facts = executor.read_device_facts(link)
            except FarmError as error:
                gpu = Finding("GPU", failure=error)
    if not facts:
        advice = "farm's agent keeps what it was sent, and says what the board is"
        whose = ", ".join(filter(None, ["TVM's own RPC server", older]))
        context.note(Finding("RPC handshake", whose, advice=advice))
        if gpu:
            context.note(gpu)
        return []
    context.note(Finding("RPC handshake", f"protocol {facts.get('protocol')}"))
    try:
        agent_version.check_versions(device, facts)
    except FarmError as error:
        context.note(Finding("agent version", failure=error))
        return []
    if not device.gets_agent:
        context.note(Finding("agent version", f"farm {__version__}, TVM {facts['tvm']}"))
    if gpu:
        context.note(
            gpu if gpu.failure else replace(gpu, detail=", ".join([gpu.detail, *_of_gpu(facts)]))
        )
        if gpu.failure:
            return []
    return list(condition_findings(facts, apart_s))


def _of_gpu(facts: Mapping[str, str]) -> Iterator[str]:
    """Yield the properties of a GPU as text."""
    if "gpu_driver" in facts:
        yield f"driver {facts['gpu_driver']}"
    yield f"CUDA {facts.get('gpu_cuda')}"
    if "gpu_memory_total_bytes" in facts:
        yield (
            f"{int(facts['gpu_memory_free_bytes']) / 2**30:.1f} of "
            f"{int(facts['gpu_memory_total_bytes']) / 2**30:.1f} GiB free"
        )
    if "gpu_power_w" in facts:
        yield f"{float(facts['gpu_power_w']):.0f} W"


def _of_phone(facts: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings about the battery and the screen of a phone; none of other boards."""
    if "battery_percent" in facts or "battery_saver" in facts:
        saver = facts.get("battery_saver") == "true"
        power = {"true": "on external power", "false": "not on external power"}.get(
            facts.get("external_power", ""), ""
        )
        level = f"{facts['battery_percent']} %" if "battery_percent" in facts else ""
        words = ", ".join(filter(None, [level, power, "its saver is on" if saver else ""]))
        advice = (
            "switch its battery saver off: figures are THROTTLED while it is on" if saver else ""
        )
        if not saver and facts.get("external_power") == "false":
            advice = "for steady figures, plug it in to power"
        yield Finding("battery", words or "its saver is off", advice=advice)
    if "screen_on" in facts:
        off = facts["screen_on"] == "false"
        advice = (
            (
                "Android may slow down while its screen is off; on it, while it is plugged in: "
                "svc power stayon true"
            )
            if off
            else ""
        )
        yield Finding("screen", "off" if off else "on", advice=advice)
    if facts.get("thermal_status", "0") != "0":
        yield Finding(
            "thermal status",
            facts["thermal_status"],
            advice="Android throttles it for its heat: cool it",
        )


def condition_findings(facts: Mapping[str, str], apart_s: float) -> Iterator[Finding]:
    """Yield findings about what makes times unsteady, slow or hard to date, by the agent's facts.

    `apart_s` is how many seconds the device's clock is ahead of this machine's.
    """
    governor = facts.get("governor", "")
    slow = (
        "for steady figures, on it: echo performance | sudo tee "
        "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    )
    yield Finding(
        "governor",
        governor or "it has none",
        advice=slow if governor not in ("", "performance") else "",
    )
    celsius = json.loads(facts.get("temperatures_c", "{}"))
    shown = ", ".join(f"{name} {value:.0f} °C" for name, value in celsius.items())
    hot = any(value > _HOT_C for value in celsius.values())
    yield Finding(
        "temperature",
        shown or "it does not tell",
        advice=f"it is above {_HOT_C:.0f} °C and slows down, or will: cool it" if hot else "",
    )
    if slowed := json.loads(facts.get("gpu_slowed_by", "[]")):
        yield Finding(
            "GPU clocks",
            ", ".join(slowed),
            advice="they hold it back now: its cooling, its power supply or its power limit",
        )
    yield from _of_phone(facts)
    flags = int(json.loads(facts.get("throttled", "0")))
    yield Finding(
        "throttling flags",
        hex(flags) if "throttled" in facts else "it has none",
        advice=(
            "its supply or its heat has slowed it down since it started: give it a better supply, "
            "and cooling"
        )
        if flags
        else "",
    )
    if "time_s" in facts:
        words = f"{abs(apart_s):.1f} s {'ahead of' if apart_s > 0 else 'behind'} ours"
        set_it = (
            "set it, on it: sudo timedatectl set-ntp true, or: sudo date -u -s @$(date +%s) with "
            "the seconds of this machine"
        )
        yield Finding("clock", words, advice=set_it if abs(apart_s) > _CLOCK_S else "")
