"""Profile a model on a device: plain and recorded inferences, interleaved, and the roofline."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from farm import checked_model_import
from farm.compiler.artifact import GRAPH
from farm.errors import DeviceError, WrongAnswer
from farm.executor.loading import (
    LoadedModel,
    connect_and_load_model,
    pause_other_workers,
    read_device_facts,
)
from farm.executor.measuring import run_and_check_first_inference
from farm.executor.profile_records import (
    RecordedInference,
    mean_step_times,
    median_inference,
    parse_recorded_inferences,
)
from farm.executor.roofline import measure_roofline
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.time_ledger import add_block_duration
from farm.transports import Link
from farm.transports.agent import answer_validation as agent_answers
from farm.types import BuildWithAgent, Device, ModelProfile, Progress, Stage

if TYPE_CHECKING:
    from farm.compiler.diagnostics.roofline_probe import ProbeLibrary

_BATCH_S = 0.25  # seconds of inferences between two progress notes
_WARM_S = 0.5
_LEAST, _LEAST_EMULATED = 10, 3  # pairs of inferences
_LONGEST = 10.0  # limit, as a factor on the requested seconds, for slow inferences


def profile_model(
    context: TaskContext,
    device: Device,
    fitted: BuildWithAgent,
    probe: ProbeLibrary | None,
    seconds: float,
    deadline_s: float,
) -> ModelProfile:
    """Profile a model for about `seconds`, with a roofline if there is a probe.

    Raises DeviceError and its subclasses, also if TVM's own server answers, and WrongAnswer.
    """
    ledger: dict[str, float] = {}
    model, artifact = fitted.model, fitted.artifact
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    begin = time.perf_counter()
    with ExitStack() as stack:
        with add_block_duration(ledger, "reference"):
            inputs, expected = checked_model_import.read_reference_inputs_and_outputs(
                fitted.prepared
            )
        loaded, link, _ = connect_and_load_model(
            stack, context, device, artifact, fitted.agent, deadline_s, ledger
        )
        if not link.native:
            why = "TVM's own RPC server answers there, which does not tell one kernel from another"
            raise DeviceError(
                f"{device.name} cannot be profiled",
                why,
                f"start farm's agent there: farm agent, for {device.url}",
            )
        first_s, agreement = run_and_check_first_inference(
            context, loaded, fitted.limits, inputs, expected, ledger
        )
        if not agreement.right:
            what = (
                f"{model.name} on {device.name}: "
                f"{agreement.why or f'the answer is off by up to {agreement.max_abs:.2g}'}"
            )
            raise WrongAnswer(
                what,
                "the time of a wrong answer is no profile",
                f"farm bench --device {device.name} {shlex.quote(model.name)}",
            )
        with add_block_duration(ledger, "wait for quiet"):
            stack.enter_context(pause_other_workers(context, device))
        plain, recorded = _record(context, device, link, loaded, first_s, seconds, ledger)
        with add_block_duration(ledger, "roof"):
            context.note(Progress(Stage.MEASURING, "what the device can do at the most"))
            roof = measure_roofline(link, device, probe) if probe else None
        facts = read_device_facts(link)
        closing = time.perf_counter()
    ledger["close"] = time.perf_counter() - closing
    steps, runtime_s, calls = mean_step_times(
        recorded, artifact.kernels, json.loads((artifact.library.parent / GRAPH).read_text())
    )
    return ModelProfile(
        device=device.name,
        model=artifact.model,
        profile=artifact.profile,
        url=device.url,
        artifact_digest=artifact.digest,
        started_at=started,
        agreement=agreement,
        steps=tuple(steps),
        runtime_s=runtime_s,
        runtime_calls=calls,
        plain_s=tuple(plain),
        recorded_s=tuple(inference.seconds for inference in recorded),
        trace=median_inference(recorded).spans,
        roof=roof,
        threads=int(facts["threads"]) if "threads" in facts else None,
        cores=facts.get("thread_cores", ""),
        emulated=device.emulated,
        facts=facts,
        ledger=ledger,
        wall_s=time.perf_counter() - begin,
        versions=artifact.versions,
    )


def _record(
    context: TaskContext,
    device: Device,
    link: Link,
    loaded: LoadedModel,
    typical: float,
    seconds: float,
    ledger: dict[str, float],
) -> tuple[list[float], list[RecordedInference]]:
    """Return the seconds of plain inferences and as many recorded inferences, interleaved."""
    context.note(Progress(Stage.MEASURING, "warming up"))
    with add_block_duration(ledger, "warm-up"):
        times = loaded.time(max(1, min(100, int(_WARM_S / max(typical, 1e-6)))))
    typical = sorted(times)[len(times) // 2]
    plain: list[float] = []
    recorded: list[RecordedInference] = []
    least, enough, limit = (
        _LEAST_EMULATED if device.emulated else _LEAST,
        Deadline(seconds),
        Deadline(_LONGEST * seconds),
    )
    with add_block_duration(ledger, "recording"):
        while not (enough.expired and len(recorded) >= least) and not (recorded and limit.expired):
            context.note(
                Progress(
                    Stage.MEASURING,
                    f"{len(recorded)} inferences recorded",
                    min(1.0, len(recorded) / least),
                )
            )
            pairs = max(1, int(_BATCH_S / (2 * max(typical, 1e-6))))
            answer = link.call("farm.agent.profile", loaded.machine.module, "main", pairs, _BATCH_S)
            more = parse_recorded_inferences(
                agent_answers.check_bytes("farm.agent.profile", answer)
            )
            plain += more[0]
            recorded += more[1]
    return plain, recorded
