"""How many connections there may be, and which one gives way when there are too many.

A stranger is a connection that has not sent a whole message. When there is no room, the oldest
stranger gives way, first one of the same address; so connections that say nothing, however many,
keep nobody out. Where all have spoken, the new one is turned away.
"""

from __future__ import annotations

import resource
from collections import Counter, OrderedDict
from dataclasses import dataclass

_OTHER_FILES = 64  # of the process, beside connections


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The most connections, of all and of one address. A tunnel makes all clients one address."""

    connections: int = 8192
    of_address: int = 4096


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """Whether a new connection is let in, and which one gives way to it."""

    admitted: bool
    gives_way: int | None = None


class ConnectionAdmission:
    """The connections that there are, by number."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._addresses: dict[int, str] = {}
        self._of_address: Counter[str] = Counter()
        self._strangers: OrderedDict[int, None] = OrderedDict()
        self._strangers_of: dict[str, OrderedDict[int, None]] = {}

    def enter(self, number: int, address: str) -> AdmissionDecision:
        """Decide on a new connection. Who gives way is no longer counted."""
        gives_way = None
        crowded = self._of_address[address] >= self._limits.of_address
        if crowded or len(self._addresses) >= self._limits.connections:
            gives_way = next(iter(self._strangers_of.get(address, ())), None)
            if gives_way is None and not crowded:
                gives_way = next(iter(self._strangers), None)
            if gives_way is None:
                return AdmissionDecision(False)
            self.leave(gives_way)
        self._addresses[number] = address
        self._of_address[address] += 1
        self._strangers[number] = None
        self._strangers_of.setdefault(address, OrderedDict())[number] = None
        return AdmissionDecision(True, gives_way)

    def trust(self, number: int) -> None:
        """Note that a connection has sent a whole message."""
        if number in self._strangers:
            del self._strangers[number]
            self._forget_stranger(number)

    def leave(self, number: int) -> None:
        """Note that a connection is gone."""
        if number not in self._addresses:
            return
        self.trust(number)
        address = self._addresses.pop(number)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def _forget_stranger(self, number: int) -> None:
        address = self._addresses[number]
        same = self._strangers_of[address]
        del same[number]
        if not same:
            del self._strangers_of[address]


def limits_within_open_files(limits: ConnectionLimits, beside: int = 0) -> ConnectionLimits:
    """Return limits that the process can hold, after raising its own limit of open files.

    `beside` is the number of other files that may be open, apart from a few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + beside + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    others = _OTHER_FILES + min(beside, most // 4)
    if soft not in (resource.RLIM_INFINITY,) and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    held = (
        limits.connections
        if soft == resource.RLIM_INFINITY
        else min(limits.connections, max(1, soft - others))
    )
    return ConnectionLimits(held, min(limits.of_address, max(1, held // 2)))
