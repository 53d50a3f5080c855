"""The interface of a cluster: carry out a request on a worker, and report its progress.

Each engine puts tasks into a `concurrent.futures.Executor`. A slot of `workers.WorkerPool` that is
a thread waits for each of them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from threading import Lock
from types import TracebackType
from typing import Any, Protocol, Self

from farm.processes.cancellation import Cancelled, register_wait_breaker
from farm.types import Progress


class ControllerChannel(Protocol):
    """The connection of a task on a worker with the controller; it is pickled with the task."""

    def note(self, progress: Progress) -> None:
        """Report progress to the controller."""

    def wanted(self) -> bool:
        """Return whether the controller still waits for this task."""


Work = Callable[[Any, ControllerChannel], Any]  # a module-level function of a request


class ClusterEngine(ABC):
    """A cluster. Leaving the block cancels its tasks and closes the connection."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = Lock()
        self._waiting: dict[int, tuple[Future[Any], SimpleQueue[Progress | None]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        self.cancel_all()
        self.close()

    @abstractmethod
    def slots(self) -> int:
        """Return how many tasks the cluster can run at once, at least 1. Does not block."""

    @abstractmethod
    def submit(self, number: int, work: Work, request: object, prefer: str) -> Future[Any]:
        """Submit a task to the executor; its result is the worker's name, and what `work` returns.

        `number` identifies the task in `noted`. `prefer` is the worker that best runs it, or "".
        Raises FarmError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def lost(self, number: int, error: BaseException) -> BaseException:
        """Return the error of a task that has no result, in farm's words where they are known."""

    def run(
        self, work: Work, request: object, note: Callable[[Progress], None], prefer: str = ""
    ) -> tuple[str, Any]:
        """Carry out a request on a worker; return the worker's name and what `work` returned.

        It can be called in many threads. Its wait is `register_wait_breaker`. Raises FarmError.
        """
        number = next(self._numbers)
        future = self.submit(number, work, request, prefer)
        notes: SimpleQueue[Progress | None] = SimpleQueue()
        with self._lock:
            self._waiting[number] = future, notes
        cancelled = False

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            future.cancel()

        future.add_done_callback(lambda _: notes.put(None))
        try:
            with register_wait_breaker(cancel):
                while (progress := notes.get()) is not None:
                    note(progress)
            found: tuple[str, Any] = future.result()
            return found
        except Cancelled:
            future.cancel()
            raise
        except (Exception, CancelledError) as error:
            if cancelled:
                raise Cancelled from error
            raise self.lost(number, error) from error
        finally:
            with self._lock:
                del self._waiting[number]

    def noted(self, number: int, progress: Progress) -> None:
        """Pass a task's progress to the thread that waits for it."""
        with self._lock:
            if number in self._waiting:
                self._waiting[number][1].put(progress)

    def waiting(self) -> list[int]:
        """Return the numbers of the tasks for which somebody waits."""
        with self._lock:
            return list(self._waiting)

    def cancel(self, number: int) -> bool:
        """Cancel a task; return whether somebody waits for it."""
        with self._lock:
            found = self._waiting.get(number)
        if found:
            found[0].cancel()
        return found is not None

    def cancel_all(self) -> None:
        """Cancel every task that somebody waits for."""
        with self._lock:
            futures = [future for future, _ in self._waiting.values()]
        for future in futures:
            future.cancel()
