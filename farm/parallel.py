"""Work in lanes: each lane is a process of its own that does one task at a time and can be killed. The only concurrency.

    crew = Crew(scratch)             with Crew(...) as crew:
    crew.assign("pi3", function, arguments, deadline_s=60)      function(desk, *arguments) runs in the lane's process
    crew.messages(1.0)               -> [Message("pi3", Kind.NOTE | DONE | FAILED, value), ...]

A TVM call that hangs cannot be interrupted from within its process; that is why lanes are processes. A worker lives in a process
group with whatever it starts, works in a scratch folder that goes with it, and dies with us. `desk.quiet()` pauses every
other lane on this machine, so that a latency measured here is not a measure of our own noise. `desk.ask(question)` has the user asked.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from farm import interrupts, process
from farm.asking import terminal
from farm.deadline import Deadline
from farm.errors import DeadlineError, InternalError
from farm.worker import ANSWER, TASK, Desk, Kind

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = ["Crew", "Desk", "Kind", "Message", "ahead", "together"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_TICK_S = 0.1
# A worker imports from where we import. (`python -m` would look in the working directory first, where a user's file may have any name.)
_START = "import sys; sys.path[:] = {path!r}; from farm import worker; worker.main()"


@dataclass(frozen=True, slots=True)
class Message:
    """What a lane says: a note on the way, its result, or its error (a FarmError)."""

    lane: str
    kind: Kind
    value: Any


@dataclass
class _Worker:
    child: Popen[bytes]
    connection: Connection
    scratch: Path
    log: Path
    here: bool
    deadline: Deadline | None = None
    task: str = ""
    paused_at: float | None = None
    asked_at: float | None = None


@dataclass
class Crew:
    """The workers of one command. Leaving the block ends them all, and what they started.

    `scratch` is the folder in which each worker gets one of its own; `logs` receives what workers print.
    """

    scratch: Path
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _quiet: str | None = None
    _wants_quiet: list[str] = field(default_factory=list)
    _heir: process.Heir = field(init=False)

    def __enter__(self) -> Crew:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._heir = process.Heir()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            process.send(worker.child, signal.SIGTERM, group=True)
        for lane in list(self._workers):
            self._dismiss(lane)
        self._heir.close()

    def idle(self, lane: str) -> bool:
        worker = self._workers.get(lane)
        return worker is None or worker.deadline is None

    def assign(self, lane: str, function: Callable[..., Any], *arguments: Any, deadline_s: float, task: str, here: bool = True) -> None:
        """Have an idle lane call `function(desk, *arguments)`, a module-level function. `here` lanes may be paused by others' quiet."""
        worker = self._workers.get(lane)
        if worker is None or worker.child.poll() is not None:
            if worker is not None:
                self._dismiss(lane)
            worker = self._workers[lane] = self._hire(lane, here)
        (worker.scratch / TASK).write_bytes(pickle.dumps((function, arguments)))
        with contextlib.suppress(OSError):  # it has died this moment: the next `messages` will say so
            worker.connection.send(None)
        worker.deadline, worker.task = Deadline(deadline_s), task
        if self._quiet not in (None, lane):
            self._pause(worker)

    def messages(self, timeout_s: float) -> list[Message]:
        """What the lanes said, waiting at most `timeout_s` for the first of it. Lanes past their deadline are ended, and fail.

        Raises Stopped when a signal asks us to end.
        """
        timeout = Deadline(timeout_s)
        while True:
            interrupts.check()
            found = self._receive(min(_TICK_S, timeout.remaining))
            self._hand_out_answers()
            found += self._expire()
            if found or timeout.expired:
                return found

    def _hire(self, lane: str, here: bool) -> _Worker:
        scratch = Path(tempfile.mkdtemp(prefix=f"{lane}-", dir=self.scratch))
        log = scratch / "worker.log"
        ours, theirs = Pipe()
        with theirs:
            child = process.start(
                [sys.executable, "-c", _START.format(path=[entry for entry in sys.path if entry]), str(theirs.fileno()), scratch],
                log=log,
                env={"TMPDIR": str(scratch)},
                pass_fds=[theirs.fileno()],
                own_group=True,
            )
        self._heir.know(child)
        return _Worker(child, ours, scratch, log, here)

    def _dismiss(self, lane: str) -> None:
        worker = self._workers.pop(lane)
        terminal.withdraw(lane)
        process.end(worker.child, group=True)
        self._heir.forget(worker.child)
        worker.connection.close()
        shutil.rmtree(worker.scratch, ignore_errors=True)
        if lane in self._wants_quiet:
            self._wants_quiet.remove(lane)
        if self._quiet == lane:
            self._end_quiet()
            self._grant_quiet()

    def _receive(self, timeout_s: float) -> list[Message]:
        by_connection = {worker.connection: lane for lane, worker in self._workers.items()}
        if not by_connection:
            time.sleep(timeout_s)
            return []
        found = []
        for connection in wait(list(by_connection), timeout_s):
            lane = by_connection[connection]  # type: ignore[index]
            worker = self._workers[lane]
            try:
                while worker.connection.poll():
                    found += self._hear(lane, *worker.connection.recv())
            except (EOFError, OSError):
                found += self._died(lane)
        return found

    def _hear(self, lane: str, kind: Kind, value: Any) -> list[Message]:
        if kind is Kind.QUIET:
            self._set_quiet(lane, value)
            return []
        worker = self._workers[lane]
        if kind is Kind.ASK:
            worker.asked_at = time.monotonic()
            terminal.put(lane, value)
            return []
        if kind is not Kind.NOTE:
            worker.deadline = None
        if kind is Kind.DONE:
            value = pickle.loads((worker.scratch / ANSWER).read_bytes())
        return [Message(lane, kind, value)]

    def _died(self, lane: str) -> list[Message]:
        worker = self._workers[lane]
        busy, task = worker.deadline is not None, worker.task
        with contextlib.suppress(Exception):
            worker.child.wait(process.GRACE_S)
        status = worker.child.returncode
        how = f"signal {-status}" if status is not None and status < 0 else f"exit code {status}"
        why = process.last_lines(worker.log.read_text(errors="replace")) if worker.log.exists() else ""
        self._dismiss(lane)
        if not busy:
            return []
        return [Message(lane, Kind.FAILED, InternalError(f"{task}: its process ended with {how}", why))]

    def _expire(self) -> list[Message]:
        found = []
        for lane, worker in list(self._workers.items()):
            if worker.deadline and worker.paused_at is None and worker.asked_at is None and worker.deadline.expired:
                seconds, task = worker.deadline.seconds, worker.task
                self._dismiss(lane)
                error = DeadlineError(
                    f"{task}: no end after {seconds:.0f} s",
                    "the device or the work on it hangs, or is slower than the deadline allows",
                    "give it longer with --deadline SECONDS, or look at the device with: farm devices -v",
                )
                found.append(Message(lane, Kind.FAILED, error))
        return found

    def _hand_out_answers(self) -> None:
        for lane, answer in terminal.answers():
            worker = self._workers[lane]
            if worker.deadline and worker.asked_at is not None:
                worker.deadline.extend(time.monotonic() - worker.asked_at)
            worker.asked_at = None
            with contextlib.suppress(OSError):  # it has died this moment
                worker.connection.send(answer)

    def _set_quiet(self, lane: str, wanted: bool) -> None:
        if wanted:
            self._wants_quiet.append(lane)
        elif self._quiet == lane:
            self._end_quiet()
        self._grant_quiet()

    def _grant_quiet(self) -> None:
        """One lane at a time, in the order of asking."""
        if self._quiet is not None or not self._wants_quiet:
            return
        self._quiet = self._wants_quiet.pop(0)
        for other, worker in self._workers.items():
            if other != self._quiet:
                self._pause(worker)
        with contextlib.suppress(OSError):  # it has died this moment
            self._workers[self._quiet].connection.send(True)

    def _end_quiet(self) -> None:
        self._quiet = None
        for worker in self._workers.values():
            if worker.paused_at is not None:
                if worker.deadline:
                    worker.deadline.extend(time.monotonic() - worker.paused_at)
                worker.paused_at = None
                process.send(worker.child, signal.SIGCONT, group=True)

    def _pause(self, worker: _Worker) -> None:
        if worker.here and worker.paused_at is None:
            worker.paused_at = time.monotonic()
            process.send(worker.child, signal.SIGSTOP, group=True)


def together(function: Callable[[Item], Answer], items: Sequence[Item], most: int = 32) -> list[Answer]:
    """`function` of every item, in the order of the items, at once in threads: for quick questions to the network, never for TVM."""
    if not items:
        return []
    with ThreadPoolExecutor(min(most, len(items))) as pool:
        return list(pool.map(function, items))


def ahead(items: Iterable[Item], most: int) -> Iterator[Item]:
    """The items in order, up to `most` of them made by a thread before they are asked for: what is read while a device computes."""
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1)
    try:
        waiting = deque(pool.submit(next, iterator, end) for _ in range(most))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, iterator, end))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)
