"""Run the trials of a search: build batches of variants ahead and measure them on the boards.

One worker process builds the batches, or several workers of a cluster do; one per board measures
them. On a cluster, batches are built ahead, so that no board waits for one. Results are stored at
once, so Ctrl-C loses none. If a board dies, the rest of its batch is dropped, and the candidate
that it was trying is tried once more; it is skipped if that happens again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from farm import __version__, transports
from farm.compiler import build_digests
from farm.errors import FarmError
from farm.pipeline.tuning.search import BatchRequest, KernelSearch, TuningSearch
from farm.pipeline.worker_tasks import BUILD_S, build_variant_batch_task, measure_variants_task
from farm.processes.deadline import Deadline
from farm.processes.workers import Message, MessageKind, WorkerPool
from farm.store import Store, TuningRecordStore
from farm.types import (
    CompiledCandidateBatch,
    CompiledCandidateStarted,
    Device,
    Model,
    PreparedModel,
    Profile,
    Progress,
    Stage,
    TuningRecord,
    TuningRoundTimings,
    WrongCompiledCandidate,
)

if TYPE_CHECKING:
    from farm.cluster import ClusterEngine

_TICK_S = 0.1
_BATCH_S = 20.0  # fixed part of a batch's deadline on a device; to it are added:
_CALLS = 60  # at most per variant, including those that do not count
_SECONDS_PER_BYTE = 1e-6  # of the transfer
_UNKNOWN_S = 2.0  # one call of every kernel of a model that was never measured
_BUILDER = "worker"
_AHEAD = 2  # batches for each board, built or being built on a cluster
_FAILURES = 3  # in a row, after which a board is no longer used
_IN_QUEUE_S = 5.0  # of a lab, after which an idle board takes the batch of one that waits


@dataclass
class BoardState:
    """The state of a board, which has a worker process of its own.

    `said` is its current activity or its last error. `gone` means that it is no longer used.
    `waited_s` is how long it waited for batches after its first one; `idle_since` is set while it
    waits. `queued_since` is set while it has a batch, but waits in a lab's queue for its board.
    """

    device: Device
    slot: str
    agent: Path | None
    said: str = ""
    batch: CompiledCandidateBatch | None = None
    trying: int | None = None
    rounds: list[Mapping[int, float]] = field(default_factory=list)
    wrong: dict[int, str] = field(default_factory=dict)
    failures: int = 0
    gone: bool = False
    batches: int = 0
    waited_s: float = 0.0
    idle_since: float | None = None
    queued_since: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass
class TuningState:
    """The state of a search, which `show` displays."""

    model: Model
    devices: Sequence[Device]
    store: Store
    records: TuningRecordStore
    search: TuningSearch = field(default_factory=lambda: TuningSearch([]))
    boards: list[BoardState] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    kept: int = 0
    core: str = ""


Show = Callable[[TuningState, str], None]  # with a line if something has happened, else ""


@dataclass
class TuningLoop:
    """The loop from candidates to batches to records.

    `work` is the state that `show` displays. The batches that wait for a board or are being built
    are the loop's own. With a `cluster`, its workers build them.
    """

    work: TuningState
    pool: WorkerPool
    prepared: PreparedModel
    profile: Profile
    show: Show
    cluster: ClusterEngine | None = None
    _built: list[CompiledCandidateBatch] = field(default_factory=list)
    _building: dict[str, BatchRequest] = field(default_factory=dict)  # by slot
    _batches_begun: int = 0

    def run(self, deadline: Deadline) -> None:
        """Build and measure batches until nothing is left to try or the time is over."""
        work = self.work
        try:
            while True:
                if not deadline.expired:
                    self._build_next()
                self._call_back(deadline)
                self._measure_next(deadline)
                under_way = [board for board in work.boards if board.batch]
                if not (under_way or self._building) and (deadline.expired or not self._built):
                    return
                for message in self.pool.messages(_TICK_S):
                    self._hear(message)
                self.show(work, "")
        finally:  # keep the results so far after Ctrl-C or the failure of the last board
            for board in work.boards:
                self._take(board)

    def _build_next(self) -> None:
        """Assign batches to idle builders, unless enough are waiting for the boards."""
        if self.cluster is None:
            self._build_in(_BUILDER, len(self.work.boards))
            return
        enough = _AHEAD * len(self.work.boards)
        for number in range(min(self.cluster.slots(), enough)):
            self._build_in(f"{_BUILDER}-{number + 1}", enough - len(self._building))

    def _build_in(self, slot: str, enough: int) -> None:
        """Assign the next batch to a builder that is idle, unless `enough` are built."""
        if slot in self._building or len(self._built) >= enough or not self.pool.idle(slot):
            return
        if not (wanted := self.work.search.next()):
            return
        self._building[slot] = wanted
        self._batches_begun += 1
        folder = self.pool.scratch / f"batch-{self._batches_begun}"
        arguments = (self.work.model, self.prepared, self.profile, wanted, folder)
        task = f"compiling {len(wanted)} variants"
        if self.cluster is None:
            self.pool.assign(
                slot, build_variant_batch_task, *arguments, deadline_s=BUILD_S, task=task
            )
            return
        from farm.pipeline.cluster.task_transfer import ELSEWHERE_S
        from farm.pipeline.cluster.tuning_candidates import request_batch_from_cluster

        self.pool.assign(
            slot,
            request_batch_from_cluster,
            *(*arguments, self.cluster),
            deadline_s=ELSEWHERE_S,
            task=f"{task} on the cluster",
            thread=True,
        )

    def _call_back(self, deadline: Deadline) -> None:
        """Take a batch back from a board that is still in a lab's queue.

        Another board that is idle measures it; if the time is over, nobody does.
        """
        boards = self.work.boards
        some_idle = any(not one.gone and one.batch is None for one in boards)
        for board in boards:
            if board.batch is None or board.queued_since is None:
                continue
            queued_s = time.monotonic() - board.queued_since
            if deadline.expired or (some_idle and not self._built and queued_s > _IN_QUEUE_S):
                self.pool.drop(board.slot)
                board.queued_since = None
                if deadline.expired:
                    self._take(board)
                else:
                    self._built.append(board.batch)
                    board.batch, some_idle = None, False

    def _measure_next(self, deadline: Deadline) -> None:
        """Assign waiting batches to idle boards."""
        # The board with the fewest batches comes first: all get some if building is the bottleneck.
        for board in sorted(self.work.boards, key=lambda one: one.batches):
            if board.batch or board.gone or deadline.expired:
                continue
            if not self._built:
                if board.idle_since is None and board.batches:
                    board.idle_since = time.monotonic()
            else:
                if board.idle_since is not None:
                    board.waited_s += time.monotonic() - board.idle_since
                    board.idle_since = None
                batch = self._built.pop(0)
                board.batch, board.trying, board.rounds, board.wrong = batch, None, [], {}
                board.queued_since = None
                limit_s = self._limit_s(batch)
                self.pool.assign(
                    board.slot,
                    measure_variants_task,
                    *(board.device, batch, board.agent, self.work.store.root, limit_s),
                    deadline_s=limit_s + transports.max_board_wait_s(board.device),
                    task=f"{len(batch.variants)} variants on {board.device.name}",
                    here=board.device.on_this_machine,
                )

    def _limit_s(self, batch: CompiledCandidateBatch) -> float:
        """Return the deadline of a batch in seconds, from the times of its kernels and its size."""
        known = {kernel.task.workload: kernel.best_s for kernel in self.work.search.kernels}
        all_s = sum(known[variant.workload] for variant in batch.variants)
        if not all(known[variant.workload] for variant in batch.variants):
            all_s = max(all_s, _UNKNOWN_S)
        return _BATCH_S + all_s * _CALLS + batch.arrays.stat().st_size * _SECONDS_PER_BYTE

    def _hear(self, message: Message) -> None:
        if message.slot in self._building:
            self._hear_builder(message)
            return
        board = next(one for one in self.work.boards if one.slot == message.slot)
        if message.kind is MessageKind.NOTE:
            note = message.value
            if isinstance(note, CompiledCandidateStarted):
                board.trying = note.index
            elif isinstance(note, TuningRoundTimings):
                board.trying = None
                board.rounds.append(note.seconds)
            elif isinstance(note, WrongCompiledCandidate):
                board.wrong[note.index] = note.why
            elif isinstance(note, dict):
                board.facts, board.queued_since = note, None
            elif isinstance(note, Progress):
                board.said = f"{note.stage.value} {note.note}".strip()
                if note.stage is Stage.CONNECTING and board.queued_since is None:
                    board.queued_since = time.monotonic()
        elif message.kind is MessageKind.DONE:
            board.failures, board.said = 0, ""
            board.batches += 1
            self._take(board)
        else:
            self._failed(board, message.value)

    def _hear_builder(self, message: Message) -> None:
        work = self.work
        if message.kind is MessageKind.NOTE:
            return
        wanted = self._building.pop(message.slot)
        if message.kind is MessageKind.DONE:
            batch: CompiledCandidateBatch = message.value
            self._built.append(batch)
            for workload, choice, why in batch.failed:
                next(
                    kernel for kernel in work.search.kernels if kernel.task.workload == workload
                ).skipped[choice] = why
                self.show(work, f"skipped {choice} of {workload}: {why}")
        else:
            work.search.give_up(wanted, message.value.what)
            self.show(work, f"skipped {len(wanted)} candidates: {message.value.what}")

    def _failed(self, board: BoardState, error: FarmError) -> None:
        """Store what a board measured before it failed; strike the candidate that it was trying.

        After several failures in a row the board is no longer used. Raises the error if no board is
        left.
        """
        work, batch, trying = self.work, board.batch, board.trying
        self._take(board)
        board.failures += 1
        board.said, board.queued_since = error.what, None
        if (
            batch is not None
            and trying is not None
            and (name := work.search.strike(batch, trying, error.what))
        ):
            work.skipped.append(name)
            board.failures = 0
            self.show(work, f"skipped {name}: {error.what}")
        else:
            self.show(work, f"{board.device.name}: {error.what}; trying again")
        if board.failures >= _FAILURES:
            board.gone = True
            if all(one.gone for one in work.boards):
                raise error

    def _take(self, board: BoardState) -> None:
        """Store the results of a board's batch in the records."""
        work, batch = self.work, board.batch
        if batch is None:
            return
        board.batch = None
        for kernel in work.search.take(batch, board.rounds, board.wrong):
            if len(kernel.tried) > 1:
                self._keep(board, kernel)
            self.show(work, _line(kernel))

    def _keep(self, board: BoardState, kernel: KernelSearch) -> None:
        work = self.work
        work.kept += not kernel.recorded
        kernel.recorded = True
        facts = board.facts
        work.records.keep(
            TuningRecord(
                core=work.core,
                workload=kernel.task.workload,
                choice=kernel.best.choice,
                seconds=kernel.best_s,
                default_s=kernel.default_s,
                runs=kernel.runs,
                measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
                device=board.device.name,
                cpu=facts.get("cpu", ""),
                threads=int(facts.get("threads", 0)),
                versions={"farm": __version__, **build_digests.compiler_package_versions()},
            )
        )


def _line(kernel: KernelSearch) -> str:
    told = f"{kernel.progress.replace('/', ' of ')} tried"
    return (
        f"{kernel.task.workload}: {kernel.best.words}, {1e6 * kernel.best_s:.1f} us, "
        f"{kernel.speedup:.2f}x, {told}"
    )
