"""A lane's process: takes a task, does it, hands over the answer, and takes the next. The other end is `parallel.Crew`.

A worker may stand still at any moment: paused, frozen, or swapped out. So that nobody has to wait for it, tasks and answers, which may
be large, go through files in its scratch folder; through the connection go only words, which fit into its buffer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path

from farm.asking import Question
from farm.errors import BuildError, FarmError, InternalError
from farm.lightly import leave_torch_out

TASK, ANSWER = "task.pickle", "answer.pickle"


class Kind(str, Enum):
    NOTE = "note"
    DONE = "done"
    FAILED = "failed"
    QUIET = "quiet"  # between worker and crew only, like:
    ASK = "ask"


class Desk:
    """What a task has from its worker: somewhere to write, someone to tell, and silence on demand."""

    def __init__(self, scratch: Path, connection: Connection | None = None) -> None:
        self.scratch = scratch
        self._connection = connection

    def note(self, value: object) -> None:
        """Tell the crew of progress. `value` must be picklable."""
        if self._connection:
            self._connection.send((Kind.NOTE, value))

    def ask(self, question: Question) -> str | None:
        """The user's answer, or None where there is none to be had. The task's deadline waits for it, as long as the user thinks."""
        if not self._connection:
            return None
        self._connection.send((Kind.ASK, question))
        answer: str | None = self._connection.recv()
        return answer

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Run the block while every other lane on this machine stands still."""
        if not self._connection:
            yield
            return
        self._connection.send((Kind.QUIET, True))
        self._connection.recv()
        try:
            yield
        finally:
            self._connection.send((Kind.QUIET, False))


def _work(connection: Connection, desk: Desk) -> None:
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        try:
            function, arguments = pickle.loads((desk.scratch / TASK).read_bytes())
            (desk.scratch / ANSWER).write_bytes(pickle.dumps(function(desk, *arguments)))
            answer: tuple[Kind, FarmError | None] = (Kind.DONE, None)
        except FarmError as error:
            answer = (Kind.FAILED, error)
        except Exception as error:
            traceback.print_exc()
            answer = (Kind.FAILED, _unexpected(error))
        connection.send(answer)


def _unexpected(error: Exception) -> FarmError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or tempfile.gettempdir()
        return BuildError(
            "the disk is full", f"{error.strerror}: {where}", "free space there, or keep the cache elsewhere: export FARM_CACHE=/path"
        )
    return InternalError(f"{type(error).__name__}: {error}", traceback.format_exc())


def main() -> None:
    """The worker's process, its arguments a descriptor and a scratch folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_torch_out()
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError):
        _work(connection, Desk(Path(sys.argv[2]), connection))
    os._exit(0)  # TVM's and torch's threads have nothing left to say
