"""The connection of a session over an SSH channel: the standard streams of an agent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.rpc.blocking_connection import wait_excluding_stopped_time

_PIECE_BYTES = 1 << 18
_PACKET_BYTES = (1 << 15) - 64  # paramiko's payload in one packet of OpenSSH's largest size
_MOST_LOG_BYTES = 1 << 16
_MOST_PIECES = 16  # of standard error, before the streams and the deadline are looked at again


class ChannelConnection:
    """A `farm.rpc.stream_protocols.Stream` whose methods block the calling thread.

    Keeps the end of what the agent writes to its standard error.
    """

    def __init__(self, channel: Any, break_it: Callable[[], object]) -> None:
        self.turn = contextlib.nullcontext()  # it belongs to one thread
        self._channel, self._break = channel, break_it
        self._log = b""
        self._piece = b""
        self._rest = b""  # received, and not yet asked for
        self._lost = False
        self._ended = False  # by the other side

    async def send(self, parts: Iterable[bytes | memoryview], deadline: Deadline) -> None:
        """Send all parts. Raises TimeoutError at the deadline.

        A connection that breaks meanwhile is noticed by `receive`, after what has arrived.
        """
        for part in parts:
            view = memoryview(part)
            while view and not self._lost:
                piece, view = bytes(view[:_PACKET_BYTES]), view[_PACKET_BYTES:]
                self._send(piece, deadline)

    async def receive(self, deadline: Deadline) -> bytes:
        """Return the next piece; empty at the end. Raises TimeoutError at the deadline."""
        if self._rest:
            piece, self._rest = self._rest, b""
            return piece
        wait_excluding_stopped_time(self._received, deadline)
        return self._piece

    async def exactly(self, count: int, deadline: Deadline) -> bytes:
        """Return `count` bytes. Raises EOFError if the stream ends before."""
        data = b""
        while len(data) < count:
            if not (piece := await self.receive(deadline)):
                raise EOFError
            data, self._rest = data + piece[: count - len(data)], piece[count - len(data) :]
        return data

    async def close(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def cut(self) -> None:
        """Break the connection now, with all other channels of the board. Does not block.

        If the agent has ended the stream, nothing waits for it any more, and how the agent ended
        is still to come: then the connection stays.
        """
        if not self._ended:
            self._break()

    def last_words(self) -> str:
        """Return the last lines that the agent wrote to its standard error."""
        self._keep_log()
        return subprocesses.last_lines(self._log.decode(errors="replace"))

    def _send(self, piece: bytes, deadline: Deadline) -> None:
        rest = piece

        def sent(step_s: float) -> bool:
            nonlocal rest
            self._keep_log()
            self._channel.settimeout(step_s)
            try:
                rest = rest[self._channel.send(rest) :]
            except TimeoutError:
                return False
            except (OSError, EOFError):
                self._lost = True
            return True

        while rest and not self._lost:
            wait_excluding_stopped_time(sent, deadline)

    def _received(self, step_s: float) -> bool:
        self._keep_log()
        self._channel.settimeout(step_s)
        try:
            self._piece = self._channel.recv(_PIECE_BYTES)
        except TimeoutError:
            return False
        self._ended = not self._piece
        return True

    def _keep_log(self) -> None:
        """Read standard error: what nobody reads would fill the channel's window.

        It may come faster than it is read, without an end.
        """
        for _ in range(_MOST_PIECES):
            if not self._channel.recv_stderr_ready():
                break
            self._log = (self._log + self._channel.recv_stderr(_PIECE_BYTES))[-_MOST_LOG_BYTES:]
