"""The end of what programs write, kept in memory: however much that is, it takes bounded room."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_KEPT_BYTES = 1 << 16
_WAIT_S = 0.3  # for the rest of what a program that has ended has written


class OutputEnd:
    """Collects what programs write to the descriptors that it gives them."""

    def __init__(self) -> None:
        self._end = b""
        self._threads: list[threading.Thread] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[int]:
        """Yield a descriptor for a program's output; the program has its own once it has begun."""
        reading, writing = os.pipe()
        thread = threading.Thread(target=self._read, args=(reading,), name="output", daemon=True)
        try:
            thread.start()
            self._threads.append(thread)
            yield writing
        finally:
            os.close(writing)

    @property
    def is_open(self) -> bool:
        """Return whether more may come: some process still has the descriptor open."""
        return any(thread.is_alive() for thread in self._threads)

    def text(self, wait_s: float = _WAIT_S) -> str:
        """Return the end of what was written; wait a moment for a program that has just ended."""
        for thread in self._threads:
            thread.join(wait_s)
        return self._end.decode("utf-8", "replace")

    def _read(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as source:
            while piece := source.read(_KEPT_BYTES):
                self._end = (self._end + piece)[-_KEPT_BYTES:]
