"""Who is at the other end of a Unix socket, and how many connections each may have.

A key of the door is one person's, however many sessions it opens. What no person may have stays for
administrators: whoever fills the socket does not keep them from ending that.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter

from farm import ownership
from farm.lab import refusals
from farm.lab.entities import Caller
from farm.lab.shared_places import person_of

MOST = 512
MOST_OF_PEOPLE = 448  # the others are for administrators
MOST_OF_ONE = 192  # a bench on 96 boards at once: a lease has a connection, and each session
_UCRED = struct.Struct("3i")


def identify_caller(connection: socket.socket) -> Caller:
    """Return who is at the other end of a Unix socket, by the kernel's word."""
    _, uid, _ = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    is_server = uid == os.geteuid()
    return Caller(ownership.user_name(uid), is_server or uid == 0, is_server)


class ControlConnections:
    """The connections to the control socket, and whose they are."""

    def __init__(self) -> None:
        self._count = 0
        self._names: dict[asyncio.StreamWriter, str] = {}  # of people
        self._of_one: Counter[str] = Counter()
        self._spoken_for: dict[str, set[asyncio.StreamWriter]] = {}  # by user of the door

    def open(self, writer: asyncio.StreamWriter, caller: Caller) -> None:
        """Take in a connection. Raises DeviceError if there are too many; it is to be closed."""
        self._count += 1
        if self._count > MOST:
            raise refusals.too_many_connections_error()
        if not caller.admin:
            self._enter(writer, caller.name)

    def close(self, writer: asyncio.StreamWriter) -> None:
        """Forget a connection."""
        self._count -= 1
        self._leave(writer)

    def speak_for(self, writer: asyncio.StreamWriter, name: str) -> None:
        """Note that a connection is now a user's of the door. Raises DeviceError."""
        self._leave(writer)
        self._enter(writer, name)
        self._spoken_for.setdefault(name, set()).add(writer)

    def keep(self, writer: asyncio.StreamWriter) -> None:
        """Note that a connection ends by itself when its lease does."""
        for name, writers in list(self._spoken_for.items()):
            writers.discard(writer)
            if not writers:
                del self._spoken_for[name]

    def hang_up_on(self, name: str) -> None:
        """Close the connections of a user of the door, but for those that end by themselves."""
        for writer in self._spoken_for.pop(name, set()):
            writer.close()

    def _enter(self, writer: asyncio.StreamWriter, name: str) -> None:
        person = person_of(name)
        if self._of_one[person] >= MOST_OF_ONE:
            raise refusals.too_many_connections_error(name, self._of_one[person])
        if len(self._names) >= MOST_OF_PEOPLE:
            raise refusals.too_many_connections_error()
        self._names[writer] = person
        self._of_one[person] += 1

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        self.keep(writer)
        name = self._names.pop(writer, None)
        if name is not None:
            self._of_one[name] -= 1
            if not self._of_one[name]:
                del self._of_one[name]
