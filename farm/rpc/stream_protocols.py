"""Protocol of a session's connection; `blocking_connection.BlockingConnection` implements it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from farm.processes.deadline import Deadline


class Stream(Protocol):
    """A connection whose server has greeted already.

    `turn` is held from a request to its answer. A connection of one thread needs no lock.
    """

    @property
    def turn(self) -> AbstractAsyncContextManager[Any]:
        """The lock of a request."""
        ...

    async def send(self, parts: Iterable[bytes | memoryview], deadline: Deadline) -> None:
        """Send all parts."""
        ...

    async def receive(self, deadline: Deadline) -> bytes:
        """Return the next piece; empty at the end."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...

    def cut(self) -> None:
        """Break the connection now."""
        ...


class StreamBeforeGreeting(Stream, Protocol):
    """A connection whose server is still to greet."""

    async def exactly(self, count: int, deadline: Deadline) -> bytes:
        """Return `count` bytes."""
        ...
