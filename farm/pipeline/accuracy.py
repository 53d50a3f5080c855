"""Count how many samples of a labelled set the devices and the reference classify correctly.

    prepare ─> build, agent of each device ─> [ unanswered samples ─> session ─> predictions ]...

All devices run at the same time. Predictions are stored as they arrive, and an interrupted run
continues from them. A session ends after half of the device's deadline, so that a device that hangs
is detected however long the whole run takes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import transports
from farm.errors import FarmError, ModelError
from farm.pipeline.operations import (
    build_models_and_agents_for_devices,
    prepare_model,
    unusable_state_error,
)
from farm.pipeline.sandboxed_tasks import run_sandboxed_if_untrusted
from farm.pipeline.worker_tasks import device_with_default_store, open_pool
from farm.processes.workers import Message, MessageKind, TaskContext, WorkerPool, thread_map
from farm.store import PredictionStore, Store, digest_of_parts
from farm.types import (
    Accuracy,
    BuildWithAgent,
    Device,
    Model,
    PredictionsReported,
    PreparedModel,
    Profile,
    Progress,
)

if TYPE_CHECKING:
    from farm.data import DataSet

REFERENCE = "reference"
_TICK_S = 0.1
_REFERENCE_S = 600.0  # deadline of the reference engine; one session takes half of it


@dataclass
class AccuracyParticipant:
    """The state of one device, or of the reference: its predictions and its progress.

    `best` holds the best classes, the best first, by the samples' keys; `kept` counts those that an
    earlier run stored. `since` is the time (monotonic) at which it began to answer in this run.
    """

    name: str
    subject: str
    sit: Callable[[Sequence[int]], None]  # assigns samples, by index, to the worker
    best: dict[str, tuple[int, ...]]
    kept: int
    note: str = "starting"
    since: float | None = None
    converted: Counter[str] = field(default_factory=Counter)
    failure: FarmError | None = None

    @property
    def new(self) -> int:
        """Return the number of samples answered in this run."""
        return len(self.best) - self.kept


@dataclass(frozen=True, slots=True)
class AccuracyProgressState:
    """The state of a run for display.

    The samples to answer, their classes, and the participants.
    """

    wanted: Mapping[str, tuple[int, int]]  # sample key -> (index, class)
    participants: Sequence[AccuracyParticipant]

    def remaining_s(self, participant: AccuracyParticipant, now: float) -> float | None:
        """Return the seconds left at the rate since the first answer; None while it is unknown."""
        if participant.since is None or not participant.new or now <= participant.since:
            return None
        return (
            (len(self.wanted) - len(participant.best)) * (now - participant.since) / participant.new
        )


@dataclass(frozen=True, slots=True)
class AccuracyResults:
    """The results of a set: one Accuracy per device, in their order, then the reference's.

    `classes` is the number of classes; `note` is a remark about the set, or empty.
    """

    found: list[Accuracy]
    classes: int
    note: str


Show = Callable[[AccuracyProgressState], None]


def measure_accuracy(
    model: Model,
    devices: Sequence[Device],
    path: Path,
    *,
    host: Profile,
    store: Store,
    keep: PredictionStore,
    deadlines_s: Mapping[str, float],
    count: int | None = None,
    fresh: bool = False,
    told: Callable[[Progress], None],
    show: Show,
) -> AccuracyResults:
    """Score the devices and the reference on the set at a path, or on `count` of its samples.

    The `count` samples are spread evenly over the set. With `fresh`, stored predictions are deleted
    first. `host` is the profile of this machine. Raises FarmError if nothing can start, for example
    if the model cannot be imported; the failure of a single device is in its Accuracy.
    """
    from farm import data

    with open_pool(store) as pool:
        _, prepared = prepare_model(pool, model, host, host, store, told)
        samples = data.open_labelled_data_set(path, model, prepared.inputs, prepared.outputs)
        work = _Work(model, prepared, path, samples, keep, pool, store, fresh)
        states = dict(
            zip(
                (device.name for device in devices),
                thread_map(transports.probe_state, devices),
                strict=True,
            )
        )
        made = build_models_and_agents_for_devices(
            pool,
            model,
            [device for device in devices if states[device.name].usable],
            host,
            store,
            told,
        )
        participants = [
            _device_participant(
                work,
                device,
                made.get(device.name) or unusable_state_error(device, states[device.name]),
                deadlines_s[device.name],
            )
            for device in devices
        ]
        participants.append(_reference_participant(work))
        assert samples.labels is not None
        wanted = {
            samples.key(index): (index, int(samples.labels[index]))
            for index in samples.spread(count)
        }
        for participant in participants:
            participant.best = {
                key: best for key, best in participant.best.items() if key in wanted
            }
            participant.kept = len(participant.best)
        _run(pool, AccuracyProgressState(wanted, participants), keep, show)
        found = [_accuracy(participant, participants[-1], wanted) for participant in participants]
        return AccuracyResults(found, prepared.outputs[0].shape[-1], samples.note)


@dataclass(frozen=True, slots=True)
class _Work:
    model: Model
    prepared: PreparedModel
    path: Path
    samples: DataSet
    keep: PredictionStore
    pool: WorkerPool
    store: Store
    fresh: bool

    def participant(
        self, name: str, subject: str, sit: Callable[[Sequence[int]], None]
    ) -> AccuracyParticipant:
        """Return a participant that continues from stored predictions, unless `fresh`."""
        if self.fresh:
            self.keep.forget(subject)
        return AccuracyParticipant(name, subject, sit, self.keep.answers(subject), 0)

    def subject(self, *parts: str) -> str:
        """Return the digest of what predictions depend on, except the sample."""
        return digest_of_parts(*parts, asdict(self.model.preprocess), str(self.path.resolve()))


def _device_participant(
    work: _Work, device: Device, made: BuildWithAgent | FarmError, seconds: float
) -> AccuracyParticipant:
    """Return the participant of a device; if the build failed, a participant with that failure."""
    from farm.executor.accuracy import stream_device_predictions

    name, task = device.name, f"{work.model.name} on {device.name}"
    if isinstance(made, FarmError):
        participant = AccuracyParticipant(name, "", lambda _: None, {}, 0)
        participant.failure = made
        return participant

    def sit(indices: Sequence[int]) -> None:
        sitting = (work.path, made.model, made.prepared, indices)
        arguments = (
            device_with_default_store(device, work.store.root),
            made.artifact,
            made.agent,
            sitting,
            seconds / 2,
            seconds,
        )
        work.pool.assign(
            f"device-{name}",
            stream_device_predictions,
            *arguments,
            deadline_s=seconds,
            task=task,
            here=device.on_this_machine,
        )

    return work.participant(
        name, work.subject("device", name, device.url, made.artifact.digest), sit
    )


def _reference_participant(work: _Work) -> AccuracyParticipant:
    """Return the participant of the reference engine."""

    def sit(indices: Sequence[int]) -> None:
        arguments = (
            work.model,
            (work.path, work.model, work.prepared, indices),
            work.store.root,
            _REFERENCE_S / 2,
        )
        work.pool.assign(
            "reference",
            classify_with_reference_task,
            *arguments,
            deadline_s=_REFERENCE_S,
            task=f"{work.model.name} by {work.prepared.engine}",
        )

    return work.participant(
        work.prepared.engine, work.subject(REFERENCE, work.prepared.digest), sit
    )


def classify_with_reference_task(
    context: TaskContext,
    model: Model,
    sitting: tuple[Path, Model, PreparedModel, Sequence[int]],
    *arguments: Any,
) -> None:
    """Run the reference engine in a worker process, in a sandbox if the model needs one."""
    from farm.executor.accuracy import stream_reference_predictions

    run_sandboxed_if_untrusted(
        context, model, stream_reference_predictions, sitting, *arguments, read=(sitting[0],)
    )


def _run(
    pool: WorkerPool, counting: AccuracyProgressState, keep: PredictionStore, show: Show
) -> None:
    """Assign samples and process messages until every participant is done or has failed."""
    by_slot = {
        ("reference" if one is counting.participants[-1] else f"device-{one.name}"): one
        for one in counting.participants
    }
    sitting: dict[str, int] = {}  # busy slots -> answers they had when their session began
    while True:
        for slot, participant in by_slot.items():
            left = (
                [
                    index
                    for key, (index, _) in counting.wanted.items()
                    if key not in participant.best
                ]
                if slot not in sitting
                else []
            )
            if left and participant.failure is None:
                sitting[slot] = len(participant.best)
                participant.sit(left)
        show(counting)
        if not sitting:
            return
        for message in pool.messages(_TICK_S):
            _hear(by_slot[message.slot], message, counting, keep)
            if message.kind is not MessageKind.NOTE and sitting.pop(message.slot) == len(
                by_slot[message.slot].best
            ):
                participant = by_slot[message.slot]
                participant.failure = participant.failure or ModelError(
                    "the data changed while they were read", "", "run the command again"
                )


def _hear(
    participant: AccuracyParticipant,
    message: Message,
    counting: AccuracyProgressState,
    keep: PredictionStore,
) -> None:
    """Process a message of a worker: store new predictions, note progress or the failure."""
    if message.kind is MessageKind.FAILED:
        participant.failure = message.value
    elif isinstance(message.value, PredictionsReported):
        best = {
            key: classes for key, classes in message.value.best.items() if key in counting.wanted
        }
        if best:
            keep.keep(participant.subject, best)
        participant.best.update(best)
        participant.converted.update(message.value.converted)
    elif isinstance(message.value, Progress):
        participant.note = f"{message.value.stage.value} {message.value.note}".strip()
        participant.since = (
            time.monotonic()
            if participant.since is None and message.value.stage.value == "accuracy"
            else participant.since
        )


def _accuracy(
    participant: AccuracyParticipant,
    reference: AccuracyParticipant,
    wanted: Mapping[str, tuple[int, int]],
) -> Accuracy:
    """Count a participant's right answers and those that agree with the reference."""
    right = Counter[str]()
    for key, best in participant.best.items():
        label = wanted[key][1]
        right["top1"] += label in best[:1]
        right["top5"] += label in best
        right["nan"] += not best
        if key in reference.best:
            right["compared"] += 1
            right["same"] += best[:1] == reference.best[key][:1]
    return Accuracy(
        name=participant.name,
        total=len(wanted),
        answered=len(participant.best),
        top1=right["top1"],
        top5=right["top5"],
        same=right["same"],
        compared=right["compared"],
        nan=right["nan"],
        kept=participant.kept,
        converted=dict(participant.converted),
        failure=participant.failure.as_failure() if participant.failure else None,
    )


def accuracy_to_json(found: Accuracy) -> dict[str, Any]:
    """Return an Accuracy as JSON, with top-1 and top-5 shares and their 95 % intervals (Wilson)."""
    from farm import stats

    shares = {
        name: {
            "share": right / found.answered,
            "interval": stats.wilson_interval(right, found.answered),
        }
        if found.answered
        else None
        for name, right in (("top1", found.top1), ("top5", found.top5))
    }
    return {**asdict(found), "shares": shares}
