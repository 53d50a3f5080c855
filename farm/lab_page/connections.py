"""The connections to the page on loopback, where any user of the machine can connect.

Each user has places of their own. Who has not sent a request in time is hung up on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farm.lab.shared_places import SharedPlaces

MOST_CONNECTIONS = 512
MOST_CONNECTIONS_OF_ONE = 64
HEAD_S = 5.0  # that the head of a request may take
BODY_S = 10.0
IDLE_S = 60.0  # that a connection lasts between two requests, or while nothing of an answer is read


class PageConnections:
    """The connections that are open. `user` says whose one is."""

    def __init__(self, user: Callable[[asyncio.BaseTransport], str]) -> None:
        self._user = user
        self._places = SharedPlaces[asyncio.Transport](
            MOST_CONNECTIONS, MOST_CONNECTIONS_OF_ONE, self._hang_up
        )
        self._ends: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        self._idle: set[asyncio.BaseTransport] = set()  # that have sent nothing since an answer

    def open(self, transport: asyncio.Transport) -> bool:
        """Take a connection in; return whether there is a place for it."""
        if not self._places.take(transport, self._user(transport)):
            return False
        transport.set_write_buffer_limits(0)  # who has written all waits until it is handed over
        self._end_in(HEAD_S, transport)
        return True

    def heard(self, transport: asyncio.Transport) -> None:
        """Note that something was sent: if it begins a request, its head has to come soon."""
        if transport in self._idle:
            self._idle.remove(transport)
            self._end_in(HEAD_S, transport)

    def request_began(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the head of a request has come."""
        if isinstance(transport, asyncio.Transport) and transport in self._places:
            self._idle.discard(transport)
            self._no_end(transport)
            self._places.mark(transport, busy=True)

    def answer_began(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that an answer is written from now on, for a reader who may be slow."""
        if isinstance(transport, asyncio.Transport) and transport in self._places:
            self._watch_reader(transport)

    def request_ended(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the answer to a request is written, or none will be."""
        if isinstance(transport, asyncio.Transport) and transport in self._places:
            self._places.mark(transport, busy=False)
            self._idle.add(transport)
            self._end_in(IDLE_S, transport)

    def close(self, transport: asyncio.Transport) -> None:
        """Forget a connection."""
        self._places.leave(transport)
        self._idle.discard(transport)
        self._no_end(transport)

    def _watch_reader(self, transport: asyncio.Transport, before: int = 0) -> None:
        """Hang up if of what was left of an answer `before` nothing has been taken since."""
        left = transport.get_write_buffer_size()
        if before and left >= before:
            self._hang_up(transport)
            return
        self._no_end(transport)
        loop = asyncio.get_running_loop()
        self._ends[transport] = loop.call_later(IDLE_S, self._watch_reader, transport, left)

    def _end_in(self, seconds: float, transport: asyncio.Transport) -> None:
        self._no_end(transport)
        loop = asyncio.get_running_loop()
        self._ends[transport] = loop.call_later(seconds, self._hang_up, transport)

    def _no_end(self, transport: asyncio.Transport) -> None:
        if (end := self._ends.pop(transport, None)) is not None:
            end.cancel()

    def _hang_up(self, transport: asyncio.Transport) -> None:
        self.close(transport)
        transport.abort()
