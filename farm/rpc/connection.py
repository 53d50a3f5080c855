"""A TCP connection on asyncio whose every wait has a deadline and whose buffers are bounded."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterable

from farm.processes.deadline import Deadline

_STEP_S = 1.0  # a longer wait is made in steps, so that a stop of this process is noticed
_STOPPED_S = 1.0
_MOST_WAITING_BYTES = 1 << 20  # received and not yet read: then the kernel holds back the rest
_CLOSE_S = 1.0


async def connect(address: str, port: int, deadline: Deadline) -> Connection:
    """Return a connection to a server.

    Raises OSError if there is none, TimeoutError at the deadline.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(deadline.remaining):
        _, opened = await loop.create_connection(Connection, address, port)
    return opened


class Connection(asyncio.Protocol):
    """What has arrived, in pieces, and what is sent.

    The time in which this process is stopped (SIGSTOP) does not count for a deadline.
    """

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._reading = self._writable = True
        self._over = False
        self._lost: Exception | None = None
        self._changed = asyncio.Event()
        self.turn = asyncio.Lock()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @property
    def socket(self) -> socket.socket:
        """Return the socket, to set its options."""
        assert self._transport
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def data_received(self, data: bytes) -> None:
        """Keep a piece; asyncio calls this."""
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _MOST_WAITING_BYTES and self._reading and self._transport:
            self._transport.pause_reading()
            self._reading = False
        self._changed.set()

    def eof_received(self) -> bool:
        """Note that the server sends no more; asyncio calls this."""
        self._over = True
        self._changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone; asyncio calls this."""
        self._over = self._writable = True
        self._lost = exc or ConnectionResetError("the connection is closed")
        self._changed.set()

    def pause_writing(self) -> None:
        """Note that the server takes no more for now; asyncio calls this."""
        self._writable = False

    def resume_writing(self) -> None:
        """Note that the server takes more; asyncio calls this."""
        self._writable = True
        self._changed.set()

    async def send(self, parts: Iterable[bytes | memoryview], deadline: Deadline) -> None:
        """Send all parts; wait while the server takes none.

        Raises TimeoutError at the deadline. A connection that breaks meanwhile is noticed by
        `receive`, after what has arrived.
        """
        for part in parts:
            if self._lost or not self._transport:
                return
            self._transport.write(part)
            while not self._writable:
                await self._change(deadline)

    async def receive(self, deadline: Deadline) -> bytes:
        """Return the next piece; empty if the server has closed the connection.

        Raises TimeoutError at the deadline, and OSError if the connection has broken.
        """
        while not self._pieces:
            if self._lost and not isinstance(self._lost, ConnectionResetError):
                raise self._lost
            if self._over:
                return b""
            await self._change(deadline)
        piece = self._pieces.popleft()
        self._waiting_bytes -= len(piece)
        if not self._reading and not self._over and self._transport:
            self._transport.resume_reading()
            self._reading = True
        return piece

    async def exactly(self, count: int, deadline: Deadline) -> bytes:
        """Return `count` bytes. Raises EOFError if the server closes the connection before."""
        data = b""
        while len(data) < count:
            if not (piece := await self.receive(deadline)):
                raise EOFError
            rest = piece[count - len(data) :]
            data += piece[: count - len(data)]
            if rest:
                self._pieces.appendleft(rest)
                self._waiting_bytes += len(rest)
        return data

    async def _change(self, deadline: Deadline) -> None:
        """Wait for anything to happen to the connection."""
        step = min(deadline.remaining, _STEP_S)
        if not step:
            raise TimeoutError
        begin = time.monotonic()
        self._changed.clear()
        try:
            async with asyncio.timeout(step):
                await self._changed.wait()
        except TimeoutError:
            late = time.monotonic() - begin - step
            if late > _STOPPED_S:
                deadline.extend(late)

    async def close(self) -> None:
        """Close the connection after what is still to be sent, for which the server has 1 s."""
        if self._transport and not self._lost:
            self._transport.close()
            deadline = Deadline(_CLOSE_S)
            try:
                while not self._lost:
                    await self._change(deadline)
            except TimeoutError:
                self._transport.abort()

    def cut(self) -> None:
        """Break the connection now."""
        self._over = True
        if self._transport:
            self._transport.abort()
