"""End the work of a thread from another thread: break what it waits for.

work = Cancellation()
with work.in_this_thread(): ...   the thread's work; it waits inside `register_wait_breaker` blocks
work.cancel()                     in another thread: the waits fail, and no further one begins
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_local = threading.local()


class Cancelled(Exception):
    """The work of this thread is to end. Nobody waits for its result."""


class Cancellation:
    """Whether the work of a thread is to end, and what it waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._breaks: list[Callable[[], object]] = []
        self._cancelled = False

    @contextlib.contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Let this object cancel what the calling thread does within the block."""
        _local.cancellation = self
        try:
            yield
        finally:
            _local.cancellation = None

    def cancel(self) -> None:
        """Break what the thread waits for, and refuse its further waits. Does not block."""
        with self._lock:
            self._cancelled, breaks = True, list(self._breaks)
        for each in breaks:
            with contextlib.suppress(Exception):  # it has just ended by itself
                each()

    @contextlib.contextmanager
    def _waiting(self, break_it: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._breaks.append(break_it)
        try:
            yield
        finally:
            with self._lock:
                self._breaks.remove(break_it)


@contextlib.contextmanager
def register_wait_breaker(break_it: Callable[[], object]) -> Iterator[None]:
    """Register how another thread ends the waits of this one within the block.

    `break_it` must not block, and makes them raise. Raises Cancelled if the work of this thread is
    to end already. In a thread without a Cancellation nothing is registered.
    """
    cancellation: Cancellation | None = getattr(_local, "cancellation", None)
    with cancellation._waiting(break_it) if cancellation else contextlib.nullcontext():
        yield
