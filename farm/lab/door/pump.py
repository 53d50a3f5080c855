"""Pass bytes between the standard streams of an SSH channel and a socket, without the lab's server.

What a side does not take yet is kept, up to a limit, and then the other side is not read: neither
waits for the other. The pump of a board's session watches its lease, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

_PIECE_BYTES = 1 << 18
_MOST_HELD_BYTES = 1 << 20


class AdditionalEventSource(Protocol):
    """Whatever else a pump waits for."""

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 if there is none now."""
        ...

    def ready(self) -> None:
        """Read what has come at the descriptor."""
        ...

    def due_s(self) -> float | None:
        """Return in how many seconds to look again, or None if time changes nothing."""
        ...

    def ended(self) -> bool:
        """Return whether the pump is to end now."""
        ...


class _Way:
    """One direction: what was read from a source and is still to be written to a sink."""

    def __init__(self, source: int, sink: int, close_sink: Callable[[], None]) -> None:
        self.source, self.sink, self._close_sink = source, sink, close_sink
        self.held = bytearray()
        self.at_end = False  # nothing more comes from the source
        self.closed = False  # and the sink knows

    @property
    def wants_input(self) -> bool:
        return not self.at_end and len(self.held) < _MOST_HELD_BYTES

    def read(self) -> None:
        """Take what the source has. Raises BrokenPipeError if it is lost."""
        piece = _io(lambda: os.read(self.source, _PIECE_BYTES))
        if piece is not None:
            self.held += piece
            self.at_end = not piece

    def write(self) -> None:
        """Give the sink what it takes, and then the end. Raises BrokenPipeError if it is lost."""
        if self.held:
            taken = _io(lambda: os.write(self.sink, self.held[:_PIECE_BYTES]))
            del self.held[: taken or 0]
        if self.at_end and not self.held and not self.closed:
            self.closed = True
            self._close_sink()


def pump_bytes(
    peer: socket.socket, watch: AdditionalEventSource | None = None, source: int = 0, sink: int = 1
) -> None:
    """Pass bytes between a socket and two descriptors until the socket's side ends.

    It ends, too, if the descriptors' side is gone, or the watch says so. Neither blocks from then
    on.
    """
    peer.setblocking(False)
    for descriptor in (source, sink):
        os.set_blocking(descriptor, False)
    out = _Way(source, peer.fileno(), lambda: _shut(peer))
    back = _Way(peer.fileno(), sink, lambda: None)
    with contextlib.suppress(BrokenPipeError):
        while not back.closed and not (watch and watch.ended()):
            _step(out, back, watch)


def _step(out: _Way, back: _Way, watch: AdditionalEventSource | None) -> None:
    """Wait for something to happen, and pass on what has come."""
    poll = select.poll()
    wanted: dict[int, int] = {back.sink: 0}  # that the client is gone is told without asking
    for way in (out, back):
        if way.wants_input:
            wanted[way.source] = wanted.get(way.source, 0) | select.POLLIN
        if way.held:
            wanted[way.sink] = wanted.get(way.sink, 0) | select.POLLOUT
    for descriptor, events in wanted.items():
        poll.register(descriptor, events)
    due_s = None
    if watch:
        due_s = watch.due_s()
        if watch.fileno() >= 0:
            poll.register(watch.fileno(), select.POLLIN)
    ready = dict(poll.poll(None if due_s is None else max(0.0, 1000 * due_s)))
    if watch and watch.fileno() in ready:
        watch.ready()
    if ready.get(back.sink, 0) & (select.POLLERR | select.POLLNVAL):
        raise BrokenPipeError
    for way in (out, back):
        if way.wants_input and way.source in ready:
            way.read()
        way.write()


def _io(do: Callable[[], Result]) -> Result | None:
    """Return what a read or write returns; None if it would wait. Raises BrokenPipeError."""
    try:
        return do()
    except BlockingIOError:
        return None
    except OSError as exc:
        raise BrokenPipeError(exc.errno, exc.strerror) from exc


def _shut(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_WR)
