"""One job on a device: its answer, its latency by the device's own clock, its accuracy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import prepare, releases, stats
from farm.clock import timed
from farm.executor.loading import Loaded, facts_of, open_and_load
from farm.importers import feed
from farm.parallel import Desk
from farm.transports import Link
from farm.types import Artifact, Device, Model, Plan, Prepared, Progress, Samples, Stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_BATCH_S = 0.25  # of samples between two notes of progress
_MOST_SAMPLES = 10_000  # more say no more, and each is kept
_NOTE_EVERY = 10  # labelled samples


def measure(desk: Desk, device: Device, model: Model, prepared: Prepared, artifact: Artifact, agent: Path | None, plan: Plan) -> Samples:
    """One job: the answer on the example input, samples of the latency, the labelled samples. Raises DeviceError and its kin."""
    ledger: dict[str, float] = {}
    inputs, expected = prepare.reference(prepared)
    with ExitStack() as stack:
        loaded, link, uploaded = open_and_load(stack, desk, device, artifact, agent, plan.deadline_s, ledger)
        before = facts_of(link)
        desk.note(Progress(Stage.RUNNING, "first inference"))
        with timed(ledger, "first run"):
            loaded.feed(inputs)
            begin = time.perf_counter()
            loaded.run()
            first_s = time.perf_counter() - begin
            agreement = stats.agreement(loaded.outputs(), expected, prepared.tolerance)
        seconds, held_up = _sample(desk, device, link, loaded, plan, first_s, ledger)
        correct, total = _classify(desk, loaded, model, plan, ledger)
        release = releases.install(link, model, artifact) if plan.install and link.native and agreement.right else None
        after = facts_of(link)
        return Samples(tuple(seconds), first_s, agreement, correct, total, before, after, ledger, uploaded, release, held_up)


def _sample(
    desk: Desk, device: Device, link: Link, loaded: Loaded, plan: Plan, first_s: float, ledger: dict[str, float]
) -> tuple[Sequence[float], float | None]:
    """Samples until there are enough of them for long enough, while nothing else of ours runs here if the device is this machine; and
    the share of that time in which other work had the CPU.

    None of an emulated device: they would be figures of the emulator.
    """
    if plan.maximum_s <= 0 or device.emulated:
        return [], None
    with ExitStack() as stack:
        with timed(ledger, "wait for quiet"):
            if device.scheme == "local":
                desk.note(Progress(Stage.MEASURING, "waiting for quiet"))
                stack.enter_context(desk.quiet())
        with timed(ledger, "measure"):
            if plan.warmup:
                loaded.time(plan.warmup)
            samples: list[float] = []
            waited_before = _waited_s(link)
            begin = time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < plan.maximum_s:
                enough = min(len(samples) / plan.count, elapsed / plan.minimum_s if plan.minimum_s else 1.0)
                if samples and (enough >= 1 or len(samples) >= _MOST_SAMPLES):
                    break
                desk.note(Progress(Stage.MEASURING, f"{len(samples)} samples", enough))
                typical = sorted(samples)[len(samples) // 2] if samples else first_s
                samples += loaded.time(max(1, min(_MOST_SAMPLES, int(_BATCH_S / max(typical, 1e-6)))))
            waited = _waited_s(link)
    return samples, None if waited is None or waited_before is None else (waited - waited_before) / elapsed


def _waited_s(link: Link) -> float | None:
    """How long the session has stood ready to run while other work had the CPU, so far."""
    told = facts_of(link).get("cpu_wait_s")
    return None if told is None else float(told)


def _classify(desk: Desk, loaded: Loaded, model: Model, plan: Plan, ledger: dict[str, float]) -> tuple[int | None, int | None]:
    if model.dataset is None or plan.dataset_limit == 0:
        return None, None
    samples, labels = feed.read_dataset(model.dataset, loaded.inputs)
    samples, labels = samples[: plan.dataset_limit], labels[: plan.dataset_limit]
    name, correct = loaded.inputs[0].name, 0
    with timed(ledger, "accuracy"):
        for index, (sample, label) in enumerate(zip(samples, labels, strict=True)):
            if index % _NOTE_EVERY == 0:
                desk.note(Progress(Stage.ACCURACY, f"{index} of {len(labels)}", index / len(labels)))
            loaded.feed({name: sample[None]})
            loaded.run()
            correct += int(loaded.outputs()[0].argmax() == label)
    return correct, len(labels)
