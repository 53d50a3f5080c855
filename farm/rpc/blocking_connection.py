"""A connection for a thread that waits.

`run_nonsuspending_coroutine` runs its coroutines, none of which suspends.

`Session` so needs no event loop, which would take most of the time of a short request.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from farm.processes.deadline import Deadline

Answer = TypeVar("Answer")

_STEP_S = 1.0  # a longer wait is made in steps, so that a stop of this process is noticed
_STOPPED_S = 1.0
_PIECE_BYTES = 1 << 18
_JOINED_BYTES = 1 << 16  # smaller requests are sent in one piece


def run_nonsuspending_coroutine(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine that never suspends to its end and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: Answer = end.value
        return result
    work.close()
    raise RuntimeError("a coroutine of a blocking connection has suspended")


class BlockingConnection:
    """A connection with the methods of `connection.Connection`, which block the calling thread.

    Only `cut` may be called by another thread. The time in which this process is stopped (SIGSTOP)
    does not count for a deadline.
    """

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        if opened.family != socket.AF_UNIX:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = opened
        self.turn = contextlib.nullcontext()  # it belongs to one thread
        self._rest = b""
        self._lost = False

    async def send(self, parts: Iterable[bytes | memoryview], deadline: Deadline) -> None:
        """Send all parts. Raises TimeoutError at the deadline.

        A connection that breaks meanwhile is noticed by `receive`, after what has arrived.
        """
        for part in _joined(parts):
            view = memoryview(part)
            while view and not self._lost:
                try:
                    view = view[self.socket.send(view) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT, deadline)
                except OSError:
                    self._lost = True

    async def receive(self, deadline: Deadline) -> bytes:
        """Return the next piece; empty if the server has closed the connection.

        Raises TimeoutError at the deadline, and OSError if the connection has broken.
        """
        if self._rest:
            piece, self._rest = self._rest, b""
            return piece
        while True:
            try:
                return self.socket.recv(_PIECE_BYTES)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
            except ConnectionResetError:
                return b""

    async def exactly(self, count: int, deadline: Deadline) -> bytes:
        """Return `count` bytes. Raises EOFError if the server closes the connection before."""
        data = b""
        while len(data) < count:
            if not (piece := await self.receive(deadline)):
                raise EOFError
            data, self._rest = data + piece[: count - len(data)], piece[count - len(data) :]
        return data

    async def close(self) -> None:
        """Say that nothing more comes. The kernel sends what the server has not taken yet.

        Whoever opened the socket closes it.
        """
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Break the connection now: what waits for it sees its end."""
        with contextlib.suppress(OSError):  # it is closed already
            self.socket.shutdown(socket.SHUT_RDWR)

    def _wait(self, event: int, deadline: Deadline) -> None:
        """Wait until the socket is ready for reading or writing."""
        poll = select.poll()
        poll.register(self.socket, event)
        wait_excluding_stopped_time(lambda step_s: bool(poll.poll(1000 * step_s)), deadline)


def wait_excluding_stopped_time(happens: Callable[[float], bool], deadline: Deadline) -> None:
    """Return once `happens(seconds)`, which waits at most that long, returns True.

    The time in which this process is stopped does not count. Raises TimeoutError at the deadline.
    """
    while step_s := min(deadline.remaining, _STEP_S):
        begin = time.monotonic()
        if happens(step_s):
            return
        late_s = time.monotonic() - begin - step_s
        if late_s > _STOPPED_S:
            deadline.extend(late_s)
    raise TimeoutError


def _joined(parts: Iterable[bytes | memoryview]) -> Iterable[bytes | memoryview]:
    """Yield the parts, short ones joined: each is sent by itself."""
    held: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        if size + len(part) > _JOINED_BYTES:
            yield from held
            held, size = [], 0
        held.append(part)
        size += len(part)
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)
