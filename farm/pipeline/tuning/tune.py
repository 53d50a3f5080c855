"""Tune the kernels of a model on devices: search, then compare the builds before and after.

    prepare ─> build ─> tasks ─> [ candidates ─> build a batch ─> measure it ─> records ]...
            ─> build ─> compare the builds

Batches are built in one worker process, or on a cluster, and measured in others, one per board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm import stats, transports
from farm.errors import UsageError, WrongAnswer
from farm.pipeline.job_dependencies import can_build_remotely, model_for_profile
from farm.pipeline.operations import (
    build_artifact,
    check_no_emulator,
    ensure_agent_executable_for_device,
    prepare_model,
    run_task,
    unusable_state_error,
)
from farm.pipeline.tuning.loop import BoardState, Show, TuningLoop, TuningState
from farm.pipeline.tuning.search import KernelSearch, TuningSearch
from farm.pipeline.worker_tasks import (
    BUILD_S,
    count_boards_task,
    find_tuning_tasks_task,
    measure_builds_interleaved_task,
    open_pool,
)
from farm.processes.deadline import Deadline
from farm.processes.workers import thread_map
from farm.store import Store, TuningRecordStore
from farm.types import (
    Artifact,
    Device,
    Model,
    PairedBuild,
    PairedSamples,
    PairedStoppingRule,
    Profile,
    Progress,
    TuningRecord,
)

if TYPE_CHECKING:
    from farm.cluster import ClusterEngine

_BOARDS_S = 60.0  # to query a tracker for its number of boards
_COMPARE_S = 300.0
_UNTIL = PairedStoppingRule(seconds=10.0, precision=0.0025, confidence=0.95, loads=1)
WORTH_SAYING = 0.005  # relative to a model's time: code placement alone causes such differences


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The result of a search: the builds before and after, compared interleaved if they differ."""

    before: Artifact
    after: Artifact
    paired: PairedSamples | None

    @property
    def speedup(self) -> tuple[float, float, float] | None:
        """Return the median ratio of before over after and its 95 % interval; None if unknown."""
        if self.paired is None:
            return None
        ratio, (low, high) = stats.interleaved_ratio_interval(
            self.paired.after, self.paired.before, _UNTIL.confidence, self.paired.loads
        )
        return ratio, low, high

    @property
    def slower(self) -> bool:
        """Return True if the whole model became slower although each changed kernel became faster.

        This happens, for example, if the kernels leave less in the caches for each other.
        """
        return self.speedup is not None and self.speedup[2] < 1 - WORTH_SAYING


def tune_model(
    model: Model,
    devices: Sequence[Device],
    *,
    host: Profile,
    store: Store,
    records: TuningRecordStore,
    minutes: float,
    show: Show,
    cluster: ClusterEngine | None = None,
) -> TuningResult:
    """Search until nothing is left to gain or the `minutes` are over.

    With a `cluster`, its workers build the candidates, if the profile's builds may be made on
    another machine.

    If the model as a whole became slower, the records from before the search are restored. Raises
    FarmError if the search cannot start or its last board fails, and WrongAnswer if the model
    answers wrong with the new records; the old records are restored then, too.
    """
    _check(devices)
    profile = devices[0].profile
    work = TuningState(model_for_profile(model, profile), devices, store, records)

    def said(progress: Progress) -> None:
        show(work, f"{progress.stage.value} {progress.note}".strip())

    with open_pool(store) as pool:
        _, prepared = prepare_model(pool, work.model, profile, host, store, said)
        agents = {
            device.name: ensure_agent_executable_for_device(pool, device, store, said)
            for device in devices
        }
        before = build_artifact(pool, work.model, prepared, profile, store, said)
        work.core, tasks = run_task(
            pool,
            find_tuning_tasks_task,
            (work.model, prepared, profile),
            said,
            BUILD_S,
            f"looking at {model.name}",
        )
        there = {
            record.workload: record for record in records.records() if record.core == work.core
        }
        work.search = TuningSearch([KernelSearch(task) for task in tasks])
        for device in devices:
            count = run_task(
                pool, count_boards_task, (device,), said, _BOARDS_S, f"asking {device.name}"
            )
            work.boards += [
                BoardState(device, f"device-{device.name}-{number + 1}", agents[device.name])
                for number in range(count)
            ]
        builders = cluster if can_build_remotely(profile) else None
        TuningLoop(work, pool, prepared, profile, show, builders).run(Deadline(60 * minutes))
        after = build_artifact(pool, work.model, prepared, profile, store, said)
        paired = None
        if after.library_digest != before.library_digest:
            limits = work.model.limits[prepared.precision]
            sides = (
                PairedBuild("the build before", before, prepared, limits),
                PairedBuild("the build after", after, prepared, limits),
            )
            board = next(board for board in work.boards if not board.gone)
            arguments = (board.device, sides, board.agent, _UNTIL, _COMPARE_S, store.root)
            try:
                paired = run_task(
                    pool,
                    measure_builds_interleaved_task,
                    arguments,
                    said,
                    _COMPARE_S + transports.max_board_wait_s(board.device),
                    f"{model.name} before and after on {board.device.name}",
                )
            except WrongAnswer:
                _restore(work, there)
                raise
        tuned = TuningResult(before, after, paired)
        if tuned.slower:
            _restore(work, there)
        return tuned


def _restore(work: TuningState, there: Mapping[str, TuningRecord]) -> None:
    """Restore the records from before the search."""
    for kernel in work.search.kernels:
        if kernel.recorded and (record := there.get(kernel.task.workload)):
            work.records.keep(record)
        elif kernel.recorded:
            work.records.forget(work.core, kernel.task.workload)
    work.kept = 0


def _check(devices: Sequence[Device]) -> None:
    """Raise an error unless the devices are usable CPU boards of one profile, and not emulated."""
    if len({device.profile.name for device in devices}) > 1:
        names = ", ".join(f"{device.name} is a {device.profile.name}" for device in devices)
        raise UsageError(
            "a search takes devices of one profile", names, "tune for each profile by itself"
        )
    for device, there in zip(devices, thread_map(transports.probe_state, devices), strict=True):
        check_no_emulator(device)
        if device.profile.on_gpu:
            raise UsageError(
                f"{device.name} computes on a GPU",
                "kernels are searched for CPUs only",
                "name a device whose profile is a CPU's",
            )
        if not there.usable:
            raise unusable_state_error(device, there)
