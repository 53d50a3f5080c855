"""One connection: bytes to messages, and answers back, at a pace that leaves the others theirs.

Latency: TVM's clients send a length and its message in two writes, so the second waits (Nagle)
until the first is acknowledged; a kernel that delays that acknowledgement costs 40 ms a request.
So TCP_QUICKACK acknowledges each incomplete message, and an answer is one write without delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Protocol

from farm.tracker.errors import ProtocolError
from farm.tracker.framing import FrameBuffer
from farm.tracker.protocol import MAGIC, Message, parse_message
from farm.tracker.scheduler import TooManyError

_TURN_S = 0.002  # for the messages of one peer, before the others have theirs
# a board without power or cable is noticed after 25 s, and its processes are not woken
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class PeerEventHandler(Protocol):
    """Who owns the connections and carries out what they ask."""

    def admit(self, peer: PeerConnection) -> bool:
        """Return whether a new connection may stay."""

    def handle(self, peer: PeerConnection, message: Message) -> None:
        """Carry out a message."""

    def hold(self, peer: PeerConnection, held: int) -> None:
        """Note how many bytes of an incomplete message a connection holds."""

    def complain(self, peer: PeerConnection, why: str) -> None:
        """Tell the operator why a connection is closed."""

    def lose(self, peer: PeerConnection) -> None:
        """Note that a connection is gone."""


class PeerConnection(asyncio.Protocol):
    """A connection of a board or a client."""

    def __init__(
        self, tracker: PeerEventHandler, number: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.number = number
        self.address = ""
        self._tracker = tracker
        self._loop = loop
        self._frames = FrameBuffer()
        self._open = False
        self._writable = True
        self._scheduled = False
        self._transport: asyncio.Transport
        self.socket: socket.socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.socket = transport.get_extra_info("socket")
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if name else ""
        if not self._tracker.admit(self):
            transport.abort()
            return
        self._open = True
        for level, option, value in _KEEPALIVE:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(level, option, value)

    @property
    def greeted(self) -> bool:
        """Whether the peer has sent the protocol's magic number."""
        return self._frames.greeted

    def data_received(self, data: bytes) -> None:
        """Handle what has come."""
        if self._open:
            self._frames.feed(data)
            self._take_turn()

    def pause_writing(self) -> None:
        """Read no more from a peer that does not read its answers."""
        self._writable = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on with a peer that reads its answers again."""
        self._writable = True
        self._continue_later()

    def connection_lost(self, _: Exception | None) -> None:
        """Forget the connection."""
        self._close()

    def send(self, answer: bytes) -> None:
        """Send an answer; nothing to one that has gone."""
        if self._open:
            self._transport.write(answer)

    def abort(self) -> None:
        """Close the connection at once."""
        self._close()
        self._transport.abort()

    def fail(self, why: str) -> None:
        """Close the connection and say why, to the operator."""
        if self._open:
            self._tracker.complain(self, why)
            self._close()
            self._transport.close()  # what it has been answered still goes out

    def _take_turn(self) -> None:
        try:
            done = self._handle_messages(self._loop.time() + _TURN_S)
        except (ProtocolError, TooManyError) as exc:
            self.fail(f"it sent {exc}")
            return
        if not self._open:
            return
        if not done:
            self._transport.pause_reading()
            if self._writable:
                self._continue_later()
        held = len(self._frames)
        self._tracker.hold(self, held if self._writable else max(held, 1))
        if done and held and self._open:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _handle_messages(self, until: float) -> bool:
        """Handle messages until there are no more; return False if there may be more."""
        if not self._frames.greeted:
            if not self._frames.greet():
                return True
            self.send(MAGIC)
        while self._open and (content := self._frames.next()) is not None:
            self._tracker.handle(self, parse_message(content))
            if not self._writable or self._loop.time() > until:
                return False
        return True

    def _continue_later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._scheduled = False
        if self._open and self._writable:
            self._transport.resume_reading()
            self._take_turn()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._tracker.lose(self)
