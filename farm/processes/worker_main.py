"""The main program of a worker process: receive a task, run it, return the answer, repeat.

The other end is `workers.WorkerPool`. A worker may be stopped at any moment: paused, frozen, or
swapped out. To keep others from blocking on it, tasks and answers, which may be large, are passed
as files in its scratch folder; the connection carries only short messages that fit into its buffer.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from farm.errors import BuildError, FarmError, InternalError
from farm.processes import at_exit
from farm.processes.garbage import collect_garbage_less_often
from farm.prompts import Question
from farm.tvm_import_without_torch import hide_torch_from_now_on

TASK, ANSWER = "task.pickle", "answer.pickle"
Helper = Callable[[Any], Any]


class MessageKind(StrEnum):
    """The kind of a message from a worker.

    QUIET, ASK and WARNING are exchanged between worker and pool only.
    """

    NOTE = "note"
    DONE = "done"
    FAILED = "failed"
    QUIET = "quiet"  # between worker and pool only, as are ASK and WARNING
    ASK = "ask"
    WARNING = "warning"


class TaskContext:
    """The worker's interface for its task.

    It has a scratch folder, progress, prompts, exclusive CPU, and a helper for what a sandboxed
    task may not do itself.
    """

    def __init__(self, scratch: Path, connection: Connection | None = None) -> None:
        self.scratch = scratch
        self._connection = connection
        self.helper: Helper | None = None

    def with_helper(self, helper: Helper) -> TaskContext:
        """Return a context whose requests `helper` answers."""
        other = copy.copy(self)
        other.helper = helper
        return other

    def ask_helper(self, request: object) -> Any:
        """Return the helper's answer to a request, or raise its FarmError.

        The helper runs outside of the sandbox, and does not trust the request.
        """
        assert self.helper, "a task that asks has a helper"
        return self.helper(request)

    def note(self, value: object) -> None:
        """Report progress to the pool. `value` must be picklable."""
        if self._connection:
            self._connection.send((MessageKind.NOTE, value))

    def ask(self, question: Question) -> str | None:
        """Return the user's answer, or None if none is available.

        The task's deadline is extended by the time that the user takes.
        """
        if not self._connection:
            return None
        self._connection.send((MessageKind.ASK, question))
        answer: str | None = self._connection.recv()
        return answer

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Run the block while all other local workers are paused."""
        if not self._connection:
            yield
            return
        self._connection.send((MessageKind.QUIET, True))
        self._connection.recv()
        try:
            yield
        finally:
            self._connection.send((MessageKind.QUIET, False))


class _Warnings(logging.Handler):
    """Passes the warnings of farm's log to the pool, which logs them in its own process."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send the text of a record."""
        with contextlib.suppress(OSError):  # the pool is gone
            self._connection.send((MessageKind.WARNING, record.getMessage()))


def run_task(
    context: TaskContext, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[MessageKind, Any]:
    """Run a task; return DONE and its result, or FAILED and its FarmError."""
    try:
        return MessageKind.DONE, function(context, *arguments)
    except FarmError as error:
        return MessageKind.FAILED, error
    except Exception as error:
        return MessageKind.FAILED, _unexpected(error)


def _work(connection: Connection, context: TaskContext) -> None:
    """Run tasks until the pool closes the connection."""
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        kind, value = run_task(context, *pickle.loads((context.scratch / TASK).read_bytes()))
        if kind is MessageKind.DONE:
            try:
                (context.scratch / ANSWER).write_bytes(pickle.dumps(value))
                value = None
            except Exception as error:
                kind, value = MessageKind.FAILED, _unexpected(error)
        connection.send((kind, value))


def disk_full_error(error: BaseException) -> FarmError | None:
    """Return the error for a disk that is full; None for any other exception.

    EFBIG counts too: in the sandbox, the size of files is limited to the free space of the disk.
    """
    if not isinstance(error, OSError) or error.errno not in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
    ):
        return None
    where = error.filename or tempfile.gettempdir()
    return BuildError(
        "the disk is full",
        f"{error.strerror}: {where}",
        "free space there, or keep the cache elsewhere: export FARM_CACHE=/path",
    )


def _unexpected(error: Exception) -> FarmError:
    """Return the FarmError for an exception that is not one."""
    return disk_full_error(error) or InternalError(
        f"{type(error).__name__}: {error}", traceback.format_exc()
    )


def main() -> None:
    """Run the worker process; its arguments are a file descriptor and a scratch folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    at_exit.run_exit_functions_on_sigterm()
    collect_garbage_less_often()
    hide_torch_from_now_on()
    connection = Connection(int(sys.argv[1]))
    logging.getLogger("farm").addHandler(_Warnings(connection))
    with contextlib.suppress(BrokenPipeError):
        _work(connection, TaskContext(Path(sys.argv[2]), connection))
    at_exit.run_exit_functions()
    os._exit(0)  # TVM's and torch's threads need no cleanup
