"""One thread that keeps what changes, and what is said only once it is kept.

Changes that come together share a transaction. An action waits for all leases that changed before
it; where there are none, it is carried out at once. The rest is kept at the next occasion.

When the disk is full, what could not be kept waits, with the actions that wait for it, and is tried
again until there is space.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from farm.errors import FarmError, NoSpaceError
from farm.lab.board_records import BoardRecord
from farm.lab.scheduling.scheduler_changes import SchedulerChanges
from farm.lab.storage.lab_database import EndedSession, LabDatabase, LabDatabaseBatch
from farm.metrics import Histogram

_SPACE_S = 2.0  # after which a full disk is tried again
_MOST_EVENTS = 50_000  # that wait for space; of those of boards alone, the oldest are lost
_COMMIT_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
Action = Callable[[], None]


class LabDatabaseWriter:
    """The only one who writes a journal. `failed` is called once if that cannot be done.

    `told_full` is called with the error when the disk is full, and with None when it is no more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: LabDatabase,
        failed: Callable[[FarmError], None],
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "lab-writer")
        self._batch = LabDatabaseBatch()
        self._written_batch = LabDatabaseBatch()  # or that is being written
        self.full: NoSpaceError | None = None
        self.told_full: Callable[[NoSpaceError | None], None] = lambda _: None
        self._after: list[Action] = []  # of the batch that is collected
        self._writing: asyncio.Future[None] | None = None
        self._then: list[Action] = []  # of the one that is written
        self._urgent = False  # whether that one changes leases
        self._began = 0.0
        self._pruning: asyncio.Future[int] | None = None
        self._broken = False
        self.commit_s = Histogram(
            "farm_lab_commit_seconds", "How long a transaction took.", _COMMIT_BUCKETS_S
        )

    def put(self, effects: SchedulerChanges) -> None:
        """Keep what has changed, soon."""
        self._batch.add(effects)
        if self.full and len(self._batch.events) > _MOST_EVENTS:
            lost = len(self._batch.events) - _MOST_EVENTS
            old = [one for one in self._batch.events[:lost] if one.lease is not None]
            self._batch.events[:lost] = old
        if effects.durable:
            self._start_soon()

    def note(self, session: EndedSession) -> None:
        """Keep a session at the next occasion; nobody waits for it."""
        self._batch.sessions.append(session)

    def note_boards(self, records: Mapping[str, BoardRecord]) -> None:
        """Keep records of boards at the next occasion."""
        self._batch.boards.update(records)

    def after(self, action: Action) -> None:
        """Carry an action out once all leases that were put before are kept."""
        if self._broken:
            return
        if self._batch.durable:
            self._after.append(action)
        elif self._writing and self._urgent:
            self._then.append(action)
        else:
            action()

    def once_kept(self, action: Action) -> None:
        """Carry an action out once all that was put before is kept, whenever that is."""
        if self._broken or (self.full and len(self._after) >= _MOST_EVENTS):
            return
        if not self._batch.empty:
            self._after.append(action)
        elif self._writing:
            self._then.append(action)
        else:
            action()

    def waits_for_space(self, lease: int) -> bool:
        """Return whether the disk is full, and a lease is not kept as it is now."""
        if self.full is None:
            return False
        return lease in self._batch.leases or bool(
            self._writing and lease in self._written_batch.leases
        )

    def flush(self) -> None:
        """Keep what nobody waits for."""
        if not self._batch.empty:
            self._start_soon()

    def prune(self, before: float) -> None:
        """Remove what ended before a time, in portions between which other changes are kept."""
        if not (self._pruning or self._broken):
            self._pruning = self._loop.run_in_executor(self._thread, self._journal.prune, before)
            self._pruning.add_done_callback(lambda done: self._pruned(done, before))

    def _pruned(self, done: asyncio.Future[int], before: float) -> None:
        self._pruning = None
        if not done.cancelled() and done.exception() is None and done.result():
            self.prune(before)

    async def drain(self) -> None:
        """Wait until everything is kept."""
        while not self._broken and (self._writing or not self._batch.empty):
            self._start()
            if self._writing:
                await asyncio.wait([self._writing])
            await asyncio.sleep(0)
            if self.full:
                return

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _start_soon(self) -> None:
        if not self._writing and not self.full:
            self._loop.call_soon(self._start)  # what else comes in this turn of the loop goes along

    def _start(self) -> None:
        if self._writing or self._broken or self._batch.empty:
            return
        batch, self._batch = self._batch, LabDatabaseBatch()
        self._written_batch = batch
        self._then, self._after, self._urgent = self._after, [], batch.durable
        self._began = time.monotonic()
        self._writing = self._loop.run_in_executor(self._thread, self._journal.write, batch)
        self._writing.add_done_callback(self._written)

    def _written(self, done: asyncio.Future[None]) -> None:
        self._writing = None
        if done.cancelled():
            return
        self.commit_s.observe(time.monotonic() - self._began)
        if isinstance(error := done.exception(), NoSpaceError):
            self._wait_for_space(error)
            return
        if error:
            self._broken = True  # what was not kept is not so: the next server reads what is
            known = (
                error
                if isinstance(error, FarmError)
                else FarmError("the lab cannot keep its leases", str(error), "")
            )
            self._failed(known)
            return
        was_full, self.full = self.full, None
        if was_full:
            self.told_full(None)
        then, self._then = self._then, []
        for action in then:
            action()
        if self._batch.durable:
            self._start()

    def _wait_for_space(self, error: NoSpaceError) -> None:
        """Take back what could not be kept, before what has changed since, and try it later."""
        self._written_batch.follow(self._batch)
        self._batch = self._written_batch
        self._after, self._then = self._then + self._after, []
        was_full, self.full = self.full, error
        if was_full is None:
            self.told_full(error)
        self._loop.call_later(_SPACE_S, self._start)
