"""The doctor: asks a device layer by layer, from its name to a model's answer, and names the first layer that fails and the cure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from farm import __version__, errors
from farm.deadline import Deadline
from farm.errors import DeviceError, FarmError, WrongAnswer
from farm.parallel import Desk
from farm.pipeline.single import Show, do, ensure_agent
from farm.pipeline.story import execute, expand
from farm.pipeline.tasks import crew_of, facts_task
from farm.store import RunStore, Store
from farm.types import Device, Event, Model, Plan, Profile, Progress

_REACH_S, _SESSION_S, _ANSWER_S = 60.0, 60.0, 300.0
_HOT_C = 80.0
_CONDITIONS = ("cpu", "kernel", "governor", "temperatures_c", "throttled")


@dataclass(frozen=True, slots=True)
class Finding:
    """A layer, and what was found there: `failure` where it does not hold, `advice` where it does and could be better."""

    layer: str
    detail: str = ""
    failure: FarmError | None = None
    advice: str = ""


def failed(findings: Sequence[Finding]) -> FarmError | None:
    """The error of the first layer that does not hold."""
    return next((finding.failure for finding in findings if finding.failure), None)


def examine(device: Device, *, model: Model, host: Profile, store: Store, keep: RunStore, show: Show) -> list[Finding]:
    """What was found on each layer of a device, up to the first that fails. The answer of `model` is the last; its run is kept.

    `host` is the profile of this machine.
    """
    findings: list[Finding] = []
    layer = "way"
    try:
        with crew_of(store) as crew:
            findings += do(crew, reach_task, (device, _REACH_S), show, _REACH_S, f"reaching {device.name}")
            if failed(findings):
                return findings
            layer = "agent"
            if agent := ensure_agent(crew, device, store, show):
                findings.append(Finding(layer, f"for {device.profile.agent}"))
            layer = "session"
            facts = do(crew, facts_task, (device, agent, _SESSION_S), show, _SESSION_S, f"a session with {device.name}")
            findings += _of_session(facts)
        layer = "answer"
        findings.append(Finding(layer, _answer(device, model, host, store, keep, show)))
    except FarmError as error:
        findings.append(Finding(layer, failure=error))
    return findings


def reach_task(desk: Desk, device: Device, seconds: float) -> list[Finding]:
    """In a lane: the layers below a session, up to the first that does not hold."""
    from farm.transports.errors import translate
    from farm.transports.layers import layers

    found: list[Finding] = []
    name = "address"
    with ExitStack() as stack:
        try:
            for name, check in layers(device, stack, Deadline(seconds), desk.ask):
                found.append(Finding(name, check()))
        except FarmError as error:
            found.append(Finding(name, failure=error))
        except OSError as error:
            found.append(Finding(name, failure=translate(device, error)))
    return found


def _of_session(facts: dict[str, str]) -> list[Finding]:
    """What the agent says of itself and its board; TVM's own server says nothing. Raises DeviceError for an agent of another version."""
    if not facts:
        return [Finding("session", "TVM's own RPC server", advice="farm's agent keeps what it was sent, and says what the board is")]
    if facts.get("agent") != __version__:
        why = f"it is {facts.get('agent')}, this farm is {__version__}"
        raise DeviceError("the agent there is of another version", why, "start the agent of this version there (farm agent)")
    conditions = ", ".join(f"{name} {facts[name]}" for name in _CONDITIONS if name in facts)
    return [
        Finding("session", f"agent {facts['agent']}, protocol {facts.get('protocol')}, TVM {facts.get('tvm')}"),
        Finding("conditions", conditions, advice="; ".join(_advice(facts))),
    ]


def _advice(facts: dict[str, str]) -> Iterator[str]:
    """What makes figures unsteady or slow."""
    if facts.get("governor", "performance") != "performance":
        yield "for steady figures, on it: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    if any(celsius > _HOT_C for celsius in json.loads(facts.get("temperatures_c", "{}")).values()):
        yield f"it is above {_HOT_C:.0f} °C and slows down, or will: cool it"
    if json.loads(facts.get("throttled", "[]")):
        yield "its supply or its heat has slowed it down since it started: give it a better supply, and cooling"


def _answer(device: Device, model: Model, host: Profile, store: Store, keep: RunStore, show: Show) -> str:
    def tell(event: Event) -> None:
        show(Progress(event.stage, event.note, event.fraction))

    jobs = expand([device], [model], replace(Plan.once(), deadline_s=_ANSWER_S))
    (run,) = execute(jobs, host=host, store=store, keep=keep, lanes=1, show=tell, tick=lambda: None).runs
    if run.failure:
        raise getattr(errors, run.failure.kind, FarmError)(run.failure.what, run.failure.why, run.failure.fix)
    assert run.samples
    if not run.samples.agreement.right:
        raise WrongAnswer(f"{device.name} answers wrong", run.reason, "correct `profile` of it; then suspect its memory")
    return f"{model.name} is right, largest difference {run.samples.agreement.max_abs:.2g}"
