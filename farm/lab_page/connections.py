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
IDLE_S = 60.0  # that a connection lasts between two requests


class PageConnections:
    """The connections that are open. `user` says whose one is."""

    def __init__(self, user: Callable[[asyncio.BaseTransport], str]) -> None:
        self._user = user
        self._places = SharedPlaces[asyncio.Transport](
            MOST_CONNECTIONS, MOST_CONNECTIONS_OF_ONE, self._hang_up
        )
        self._ends: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        self._awaited: set[asyncio.BaseTransport] = set()  # that have sent a part of a head

    def open(self, transport: asyncio.Transport) -> bool:
        """Take a connection in; return whether there is a place for it."""
        if not self._places.take(transport, self._user(transport)):
            return False
        self._awaited.add(transport)
        self._end_in(HEAD_S, transport)
        return True

    def heard(self, transport: asyncio.Transport) -> None:
        """Note that something was sent: if it begins a request, its head has to come soon."""
        if transport in self._ends and transport not in self._awaited:
            self._awaited.add(transport)
            self._end_in(HEAD_S, transport)

    def request_began(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the head of a request has come."""
        if isinstance(transport, asyncio.Transport) and transport in self._ends:
            self._ends[transport].cancel()
            del self._ends[transport]
            self._awaited.discard(transport)
            self._places.mark(transport, busy=True)

    def request_ended(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request was answered."""
        if isinstance(transport, asyncio.Transport) and not transport.is_closing():
            self._places.mark(transport, busy=False)
            self._end_in(IDLE_S, transport)

    def close(self, transport: asyncio.Transport) -> None:
        """Forget a connection."""
        self._places.leave(transport)
        self._awaited.discard(transport)
        if (end := self._ends.pop(transport, None)) is not None:
            end.cancel()

    def _end_in(self, seconds: float, transport: asyncio.Transport) -> None:
        if (before := self._ends.get(transport)) is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        self._ends[transport] = loop.call_later(seconds, self._hang_up, transport)

    def _hang_up(self, transport: asyncio.Transport) -> None:
        self.close(transport)
        transport.abort()
