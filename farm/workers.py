"""Worker processes: each lane has one process that runs one task at a time and can be killed.

    crew = Crew(scratch)             with Crew(...) as crew:
    crew.assign("pi3", function, arguments, deadline_s=60)      runs function(desk, *arguments)
    crew.messages(1.0)               -> [Message("pi3", Kind.NOTE | DONE | FAILED, value), ...]

This is farm's only form of concurrency, apart from threads for I/O (`together`, `ahead`). A TVM
call that hangs cannot be interrupted from within its process; therefore lanes are processes. A
worker lives in a process group with everything that it starts, works in a scratch folder that is
deleted with it, and dies with this process. `desk.quiet()` pauses every other lane on this machine,
so that farm's own load does not disturb a latency measured here. `desk.ask(question)` asks the
user. A warning that a worker logs to the logger "farm" is logged here, once for all workers.
"""

from __future__ import annotations

import contextlib
import logging
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

from farm import signals, subprocesses
from farm.deadline import Deadline
from farm.errors import DeadlineError, InternalError
from farm.prompts import terminal
from farm.worker_main import ANSWER, TASK, Desk, Kind

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = ["Crew", "Desk", "Kind", "Message", "ahead", "together"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_TICK_S = 0.1
# A worker has our import path. (`python -m` would search the working directory first, where a
# user's file may have any name.)
_START = "import sys; sys.path[:] = {path!r}; from farm import worker_main; worker_main.main()"


@dataclass(frozen=True, slots=True)
class Message:
    """A lane's message: a progress report, its result, or its error (a FarmError)."""

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
    doing: str = ""  # as the task last noted


@dataclass
class Crew:
    """The worker processes of one command; leaving the block ends them and all that they started.

    `scratch` is the folder in which each worker gets a folder of its own, with its log file.
    """

    scratch: Path
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _quiet: str | None = None
    _wants_quiet: list[str] = field(default_factory=list)
    _warnings: set[str] = field(default_factory=set)
    _heir: subprocesses.Heir = field(init=False)

    def __enter__(self) -> Crew:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._heir = subprocesses.Heir()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            subprocesses.send(worker.child, signal.SIGTERM, group=True)
        for lane in list(self._workers):
            self._dismiss(lane)
        self._heir.close()

    def idle(self, lane: str) -> bool:
        """Return whether a lane has no task."""
        worker = self._workers.get(lane)
        return worker is None or worker.deadline is None

    def assign(self, lane: str, function: Callable[..., Any], *arguments: Any, deadline_s: float, task: str, here: bool = True) -> None:
        """Make an idle lane call `function(desk, *arguments)`, with a module-level function.

        `here` marks a lane on this machine, which others' `quiet` may pause.
        """
        worker = self._workers.get(lane)
        if worker is None or worker.child.poll() is not None:
            if worker is not None:
                self._dismiss(lane)
            worker = self._workers[lane] = self._hire(lane, here)
        (worker.scratch / TASK).write_bytes(pickle.dumps((function, arguments)))
        # the worker has just died: the next `messages` reports it
        with contextlib.suppress(OSError):
            worker.connection.send(None)
        worker.deadline, worker.task, worker.doing = Deadline(deadline_s), task, ""
        if self._quiet not in (None, lane):
            self._pause(worker)

    def messages(self, timeout_s: float) -> list[Message]:
        """Return the lanes' messages, waiting at most `timeout_s` for the first one.

        Lanes past their deadline are ended and fail. Raises Stopped when a signal asks us to end.
        """
        timeout = Deadline(timeout_s)
        while True:
            signals.check()
            found = self._receive(min(_TICK_S, timeout.remaining))
            self._hand_out_answers()
            found += self._expire()
            if found or timeout.expired:
                return found

    def _hire(self, lane: str, here: bool) -> _Worker:
        """Start a worker process with its scratch folder and its connection."""
        scratch = Path(tempfile.mkdtemp(prefix=f"{lane}-", dir=self.scratch))
        log = scratch / "worker.log"
        ours, theirs = Pipe()
        with theirs:
            child = subprocesses.start(
                [sys.executable, "-c", _START.format(path=[entry for entry in sys.path if entry]), str(theirs.fileno()), scratch],
                log=log,
                env={"TMPDIR": str(scratch)},
                pass_fds=[theirs.fileno()],
                own_group=True,
            )
        self._heir.know(child)
        return _Worker(child, ours, scratch, log, here)

    def _dismiss(self, lane: str) -> None:
        """End a worker with everything that it started, and delete its scratch folder."""
        worker = self._workers.pop(lane)
        terminal.withdraw(lane)
        subprocesses.end(worker.child, group=True)
        self._heir.forget(worker.child)
        worker.connection.close()
        shutil.rmtree(worker.scratch, ignore_errors=True)
        if lane in self._wants_quiet:
            self._wants_quiet.remove(lane)
        if self._quiet == lane:
            self._end_quiet()
            self._grant_quiet()

    def _receive(self, timeout_s: float) -> list[Message]:
        """Return the messages that arrive within `timeout_s`, also of workers that died."""
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
        """Handle one message of a worker; return those that concern the caller."""
        if kind is Kind.QUIET:
            self._set_quiet(lane, value)
            return []
        if kind is Kind.WARNING:
            if value not in self._warnings:  # several lanes may meet the same fault
                self._warnings.add(value)
                logging.getLogger("farm").warning("%s", value)
            return []
        worker = self._workers[lane]
        if kind is Kind.ASK:
            worker.asked_at = time.monotonic()
            terminal.put(lane, value)
            return []
        if kind is Kind.NOTE:
            worker.doing = getattr(value, "note", "")
        else:
            worker.deadline = None
        if kind is Kind.DONE:
            value = pickle.loads((worker.scratch / ANSWER).read_bytes())
        return [Message(lane, kind, value)]

    def _died(self, lane: str) -> list[Message]:
        """Remove a worker that died; return the failure of its task, if it had one."""
        worker = self._workers[lane]
        busy, task = worker.deadline is not None, worker.task
        with contextlib.suppress(Exception):
            worker.child.wait(subprocesses.GRACE_S)
        status = worker.child.returncode
        how = subprocesses.exit_in_words(status)
        output = worker.log.read_text(errors="replace") if worker.log.exists() else ""
        why = subprocesses.crash_cause(worker.doing, output)
        self._dismiss(lane)
        if not busy:
            return []
        return [Message(lane, Kind.FAILED, InternalError(f"{task}: its process ended with {how}", why))]

    def _expire(self) -> list[Message]:
        """End the workers past their deadline, and return the failures of their tasks."""
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
        """Pass the user's answers to the workers; extend their deadlines by the waiting time."""
        for lane, answer in terminal.answers():
            worker = self._workers[lane]
            if worker.deadline and worker.asked_at is not None:
                worker.deadline.extend(time.monotonic() - worker.asked_at)
            worker.asked_at = None
            with contextlib.suppress(OSError):  # the worker has just died
                worker.connection.send(answer)

    def _set_quiet(self, lane: str, wanted: bool) -> None:
        """Queue a lane that requests exclusive use of the CPU, or end its exclusive use."""
        if wanted:
            self._wants_quiet.append(lane)
        elif self._quiet == lane:
            self._end_quiet()
        self._grant_quiet()

    def _grant_quiet(self) -> None:
        """Let the next lane run alone: one lane at a time, in the order of asking."""
        if self._quiet is not None or not self._wants_quiet:
            return
        self._quiet = self._wants_quiet.pop(0)
        for other, worker in self._workers.items():
            if other != self._quiet:
                self._pause(worker)
        with contextlib.suppress(OSError):  # the worker has just died
            self._workers[self._quiet].connection.send(True)

    def _end_quiet(self) -> None:
        """Resume the paused workers, and extend their deadlines by the pause."""
        self._quiet = None
        for worker in self._workers.values():
            if worker.paused_at is not None:
                if worker.deadline:
                    worker.deadline.extend(time.monotonic() - worker.paused_at)
                worker.paused_at = None
                subprocesses.send(worker.child, signal.SIGCONT, group=True)

    def _pause(self, worker: _Worker) -> None:
        """Stop the process group of a worker on this machine."""
        if worker.here and worker.paused_at is None:
            worker.paused_at = time.monotonic()
            subprocesses.send(worker.child, signal.SIGSTOP, group=True)


def together(function: Callable[[Item], Answer], items: Sequence[Item], most: int = 32) -> list[Answer]:
    """Apply `function` to all items in parallel threads; return the results in order.

    It is for short network requests, never for TVM.
    """
    if not items:
        return []
    with ThreadPoolExecutor(min(most, len(items))) as pool:
        return list(pool.map(function, items))


def ahead(items: Iterable[Item], most: int) -> Iterator[Item]:
    """Yield the items in order; a thread produces up to `most` of them in advance.

    It reads data while a device computes.
    """
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1)
    try:
        waiting = deque(pool.submit(next, iterator, end) for _ in range(most))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, iterator, end))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)
