"""Workers: each slot has one process, or thread, that runs one task at a time.

    with WorkerPool(scratch) as pool:
        pool.assign("pi3", function, arguments, deadline_s=60)  # runs function(context, *arguments)
        pool.messages(1.0)  # [Message("pi3", Kind.NOTE | DONE | FAILED, value), ...]

A TVM call that hangs cannot be interrupted from within its process; therefore slots that compile
are processes. A worker process lives in a process group with everything that it starts, works in a
scratch folder that is deleted with it, and dies with this process. `context.quiet()` pauses every
other slot on this machine, so that farm's own load does not disturb a latency measured here.
`context.ask(question)` asks the user. A warning that a worker logs to the logger "farm" is logged
here, once for all workers.

A slot that only talks to a device over a network is a thread of this process (`thread=True`): it
costs a thousandth of a process. All its waits are `cancellation.register_wait_breaker`s, so that it
ends at its deadline too.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from farm.errors import DeadlineError, InternalError
from farm.processes import signals, subprocesses
from farm.processes.cancellation import Cancellation
from farm.processes.deadline import Deadline
from farm.processes.worker_main import ANSWER, TASK, MessageKind, TaskContext, run_task
from farm.prompts import terminal

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = ["Message", "MessageKind", "TaskContext", "WorkerPool", "prefetch", "thread_map"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_TICK_S = 0.1
_PART, _PART_S = 64, 0.001  # of what is read ahead: items, and seconds of processor time
_MOST_FILES = 1 << 16
_MOST_MESSAGES = 64  # of a worker, before others are heard
# A worker has our import path. (`python -m` would search the working directory first, where a
# user's file may have any name.)
_START = (
    "import sys; sys.path[:] = {path!r}; from farm.processes import worker_main; worker_main.main()"
)


@dataclass(frozen=True, slots=True)
class Message:
    """A slot's message: a progress report, its result, or its error (a FarmError)."""

    slot: str
    kind: MessageKind
    value: Any


@dataclass
class _Worker:
    connection: Connection
    scratch: Path
    log: Path
    here: bool
    child: Popen[bytes] | None  # None for a thread
    deadline: Deadline | None = None
    task: str = ""
    paused_at: float | None = None
    asked_at: float | None = None
    doing: str = ""  # as the task last noted

    @property
    def has_died(self) -> bool:
        """Return whether the process has ended. A thread of ours does not end by itself."""
        return self.child is not None and self.child.poll() is not None

    def give(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Hand a task to the worker."""
        (self.scratch / TASK).write_bytes(pickle.dumps((function, arguments)))
        # the worker has just died: the next `messages` reports it
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def answer(self) -> Any:
        """Return the result of the task that is done."""
        return pickle.loads((self.scratch / ANSWER).read_bytes())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all that it started."""
        if self.child:
            subprocesses.send_signal(self.child, number, group=True)

    def end(self) -> None:
        """End the worker with everything that it started."""
        if self.child:
            subprocesses.end_program(self.child, group=True)


@dataclass
class _ThreadWorker(_Worker):
    """A thread of this process. Tasks and answers pass as they are."""

    cancellation: Cancellation = field(default_factory=Cancellation)
    _tasks: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = field(
        default_factory=SimpleQueue
    )
    _answer: Any = None

    def give(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._tasks.put((function, arguments))

    def answer(self) -> Any:
        found, self._answer = self._answer, None
        return found

    def end(self) -> None:
        """Have the thread end: its waits break. It is not waited for."""
        self.cancellation.cancel()
        self._tasks.put(None)

    def work(self, connection: Connection) -> None:
        """Run tasks until the pool ends the worker."""
        context = TaskContext(self.scratch, connection)
        with connection, self.cancellation.in_this_thread(), contextlib.suppress(OSError):  # ended
            while task := self._tasks.get():
                kind, value = run_task(context, *task)
                if kind is MessageKind.DONE:
                    self._answer, value = value, None
                connection.send((kind, value))
                del task, value


@dataclass
class WorkerPool:
    """The worker processes of one command; leaving the block ends them and all that they started.

    `scratch` is the folder in which each worker gets a folder of its own, with its log file.
    """

    scratch: Path
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _quiet: str | None = None
    _wants_quiet: list[str] = field(default_factory=list)
    _warnings: set[str] = field(default_factory=set)
    _look_again: Deadline = field(
        default_factory=lambda: Deadline(0)
    )  # for what is past its deadline
    _reaper: subprocesses.ProcessGroupWatchdog = field(init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __enter__(self) -> WorkerPool:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._reaper = subprocesses.ProcessGroupWatchdog()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)
        for slot in list(self._workers):
            self._dismiss(slot)
        self._selector.close()
        self._reaper.close()

    def idle(self, slot: str) -> bool:
        """Return whether a slot has no task."""
        worker = self._workers.get(slot)
        return worker is None or worker.deadline is None

    def assign(
        self,
        slot: str,
        function: Callable[..., Any],
        *arguments: Any,
        deadline_s: float,
        task: str,
        here: bool = True,
        thread: bool = False,
    ) -> None:
        """Make an idle slot call `function(context, *arguments)`, with a module-level function.

        `here` marks a slot on this machine, which others' `quiet` may pause. With `thread`, the
        slot is a thread of this process: for a function that only waits for a network.
        """
        worker = self._workers.get(slot)
        if worker is None or worker.has_died:
            if worker is not None:
                self._dismiss(slot)
            worker = self._workers[slot] = (
                self._start_thread(slot) if thread else self._start_process(slot, here)
            )
            self._selector.register(worker.connection, selectors.EVENT_READ, slot)
        worker.give(function, arguments)
        worker.deadline, worker.task, worker.doing = Deadline(deadline_s), task, ""
        if self._quiet not in (None, slot):
            self._pause(worker)

    def drop(self, slot: str) -> None:
        """End what a slot does; nothing more is heard of it."""
        self._dismiss(slot)

    def messages(self, timeout_s: float) -> list[Message]:
        """Return the slots' messages, waiting at most `timeout_s` for the first one.

        Slots past their deadline are ended and fail. Raises Stopped when a signal asks us to end.
        """
        timeout = Deadline(timeout_s)
        while True:
            signals.raise_if_stopped()
            found = self._receive(min(_TICK_S, timeout.remaining))
            self._hand_out_answers()
            found += self._expire()
            if found or timeout.expired:
                return found

    def _start_thread(self, slot: str) -> _Worker:
        """Start a thread with its scratch folder and its connection."""
        _allow_many_files()
        scratch = Path(tempfile.mkdtemp(prefix=f"{slot}-", dir=self.scratch))
        ours, theirs = Pipe()
        worker = _ThreadWorker(ours, scratch, scratch / "worker.log", here=False, child=None)
        threading.Thread(target=worker.work, args=[theirs], name=slot, daemon=True).start()
        return worker

    def _start_process(self, slot: str, here: bool) -> _Worker:
        """Start a worker process with its scratch folder and its connection."""
        scratch = Path(tempfile.mkdtemp(prefix=f"{slot}-", dir=self.scratch))
        log = scratch / "worker.log"
        ours, theirs = Pipe()
        self._reaper.start()
        with theirs:
            child = subprocesses.start_program(
                [
                    sys.executable,
                    "-c",
                    _START.format(path=[entry for entry in sys.path if entry]),
                    str(theirs.fileno()),
                    scratch,
                ],
                log=log,
                env={"TMPDIR": str(scratch)},
                pass_fds=[theirs.fileno()],
                own_group=True,
            )
        self._reaper.track(child)
        return _Worker(ours, scratch, log, here, child)

    def _dismiss(self, slot: str) -> None:
        """End a worker with everything that it started, and delete its scratch folder."""
        worker = self._workers.pop(slot)
        terminal.withdraw(slot)
        worker.end()
        if worker.child:
            self._reaper.untrack(worker.child)
        with contextlib.suppress(KeyError):  # it is paused
            self._selector.unregister(worker.connection)
        worker.connection.close()
        shutil.rmtree(worker.scratch, ignore_errors=True)
        if slot in self._wants_quiet:
            self._wants_quiet.remove(slot)
        if self._quiet == slot:
            self._end_quiet()
            self._grant_quiet()

    def _receive(self, timeout_s: float) -> list[Message]:
        """Return the messages that arrive within `timeout_s`, also of workers that died."""
        if not self._workers:
            time.sleep(timeout_s)
            return []
        found = []
        for key, _ in self._selector.select(timeout_s):
            slot: str = key.data
            worker = self._workers.get(slot)
            if worker is None or worker.connection is not key.fileobj:
                continue  # dismissed meanwhile
            try:
                for _ in range(_MOST_MESSAGES):
                    # One that was paused in the middle of a message would be waited for for ever
                    if worker.paused_at is not None or not worker.connection.poll():
                        break
                    found += self._hear(slot, *worker.connection.recv())
            except (EOFError, OSError):
                found += self._died(slot)
        return found

    def _hear(self, slot: str, kind: MessageKind, value: Any) -> list[Message]:
        """Handle one message of a worker; return those that concern the caller."""
        if kind is MessageKind.QUIET:
            self._set_quiet(slot, value)
            return []
        if kind is MessageKind.WARNING:
            if value not in self._warnings:  # several slots may meet the same fault
                self._warnings.add(value)
                logging.getLogger("farm").warning("%s", value)
            return []
        worker = self._workers[slot]
        if kind is MessageKind.ASK:
            worker.asked_at = time.monotonic()
            terminal.put(slot, value)
            return []
        if kind is MessageKind.NOTE:
            worker.doing = getattr(value, "note", "")
        else:
            worker.deadline = None
        if kind is MessageKind.DONE:
            value = worker.answer()
        return [Message(slot, kind, value)]

    def _died(self, slot: str) -> list[Message]:
        """Remove a worker that died; return the failure of its task, if it had one."""
        worker = self._workers[slot]
        busy, task = worker.deadline is not None, worker.task
        child = worker.child
        assert child, "a thread closes its connection only after it was dismissed"
        with contextlib.suppress(Exception):
            child.wait(subprocesses.GRACE_S)
        status = child.returncode
        how = subprocesses.describe_exit_status(status)
        output = worker.log.read_text(errors="replace") if worker.log.exists() else ""
        why = subprocesses.last_activity_and_output(worker.doing, output)
        self._dismiss(slot)
        if not busy:
            return []
        return [
            Message(
                slot,
                MessageKind.FAILED,
                InternalError(f"{task}: its process ended with {how}", why),
            )
        ]

    def _expire(self) -> list[Message]:
        """End the workers past their deadline, and return the failures of their tasks.

        A thousand workers have ten thousand messages: not after each of these.
        """
        if not self._look_again.expired:
            return []
        self._look_again = Deadline(_TICK_S)
        found = []
        for slot, worker in list(self._workers.items()):
            if (
                worker.deadline
                and worker.paused_at is None
                and worker.asked_at is None
                and worker.deadline.expired
            ):
                seconds, task = worker.deadline.seconds, worker.task
                self._dismiss(slot)
                error = DeadlineError(
                    f"{task}: no end after {seconds:.0f} s",
                    "the device or the work on it hangs, or is slower than the deadline allows",
                    (
                        "give it longer with --deadline SECONDS, or look at the device with: farm "
                        "devices -v"
                    ),
                )
                found.append(Message(slot, MessageKind.FAILED, error))
        return found

    def _hand_out_answers(self) -> None:
        """Pass the user's answers to the workers; extend their deadlines by the waiting time."""
        for slot, answer in terminal.answers():
            worker = self._workers[slot]
            if worker.deadline and worker.asked_at is not None:
                worker.deadline.extend(time.monotonic() - worker.asked_at)
            worker.asked_at = None
            with contextlib.suppress(OSError):  # the worker has just died
                worker.connection.send(answer)

    def _set_quiet(self, slot: str, wanted: bool) -> None:
        """Queue a slot that requests exclusive use of the CPU, or end its exclusive use."""
        if wanted:
            self._wants_quiet.append(slot)
        elif self._quiet == slot:
            self._end_quiet()
        self._grant_quiet()

    def _grant_quiet(self) -> None:
        """Let the next slot run alone: one slot at a time, in the order of asking."""
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
        for slot, worker in self._workers.items():
            if worker.paused_at is not None:
                if worker.deadline:
                    worker.deadline.extend(time.monotonic() - worker.paused_at)
                worker.paused_at = None
                worker.signal(signal.SIGCONT)
                self._selector.register(worker.connection, selectors.EVENT_READ, slot)

    def _pause(self, worker: _Worker) -> None:
        """Stop the process group of a worker on this machine; it is not heard until it goes on."""
        if worker.here and worker.paused_at is None:
            worker.paused_at = time.monotonic()
            worker.signal(signal.SIGSTOP)
            self._selector.unregister(worker.connection)


def _allow_many_files() -> None:
    """Raise the soft limit of open files: a thread has about four, and there may be a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def thread_map(
    function: Callable[[Item], Answer], items: Sequence[Item], most: int = 32
) -> list[Answer]:
    """Apply `function` to all items in parallel threads; return the results in order.

    It is for short network requests, never for TVM.
    """
    if not items:
        return []
    with ThreadPoolExecutor(min(most, len(items))) as pool:
        return list(pool.map(function, items))


def prefetch(items: Iterable[Item], most: int) -> Iterator[Item]:
    """Yield the items in order; a thread produces up to `most` parts of them in advance.

    It reads data while a device computes. A part is one item, or as many as take next to no time:
    to pass an item from thread to thread costs more than to read a small one.
    """
    iterator = iter(items)
    pool = ThreadPoolExecutor(1)
    try:
        waiting = deque(pool.submit(_part, iterator) for _ in range(most))
        while True:
            found, failure = waiting.popleft().result()
            waiting.append(pool.submit(_part, iterator))
            yield from found
            if failure:
                raise failure
            if not found:
                return
    finally:
        pool.shutdown(cancel_futures=True)


def _part(iterator: Iterator[Item]) -> tuple[list[Item], Exception | None]:
    """Return the next items, none at the end, and what was raised instead of a further one."""
    found: list[Item] = []
    begin = time.thread_time()
    try:
        for item in iterator:
            found.append(item)
            if len(found) == _PART or time.thread_time() - begin > _PART_S:
                break
    except Exception as error:
        return found, error
    return found, None
