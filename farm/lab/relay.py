"""The tracker of one lease, on loopback: unchanged clients of TVM find its boards, and no others.

It passes requests on to the lab under the lease's key, which it tells nobody, and answers the rest
by itself. It outlives the lab's server: a request while that is away is refused by hanging up, and
TVM's clients ask again. Whoever reaches it has the lease's boards, and every user of this machine
reaches loopback: so it hangs up on connections of other users.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from farm import ownership
from farm.tracker.errors import ProtocolError
from farm.tracker.framing import MOST_MESSAGE_BYTES, Frames
from farm.tracker.protocol import (
    FAIL,
    MAGIC,
    SUCCESS,
    AskPending,
    AskSummary,
    Code,
    Message,
    Ping,
    Request,
    frame,
    parse,
    pending,
    refused,
    summarized,
)
from farm.tracker.scheduler import Queue, Server, Summary

HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16
_LENGTH = struct.Struct("<i")
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease as its clients see it: its kind, its key, and where its boards serve."""

    kind: str
    key: str
    addresses: Sequence[str]
    tracker: tuple[str, int]

    def summary(self) -> Summary:
        """Return the tracker's summary: the boards of the lease."""
        places = [address.rpartition(":") for address in self.addresses]
        servers = [
            Server(f"server:{self.kind}", host, int(port) if port.isdigit() else port)
            for host, _, port in places
        ]
        return Summary({self.kind: Queue(len(servers), 0)}, servers)


class Relay:
    """A tracker in a thread of its own, for as long as the block lasts."""

    def __init__(self, leased: Leased) -> None:
        self.port = 0
        self._leased = leased
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-tracker", daemon=True)

    def __enter__(self) -> Relay:
        """Listen."""
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up on all clients."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(_end_tasks())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self._leased, writer)
        try:
            if _is_ours(writer.get_extra_info("socket")):
                await client.serve(reader)
        except (
            OSError,
            TimeoutError,
            ProtocolError,
            asyncio.IncompleteReadError,
            asyncio.CancelledError,
        ):
            pass  # it hung up, or the lab is away: TVM's client connects anew
        finally:
            client.close()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Client:
    """One client, and its connection to the lab once it has asked for a board."""

    def __init__(self, leased: Leased, writer: asyncio.StreamWriter) -> None:
        self._leased = leased
        self._writer = writer
        self._lab: asyncio.StreamWriter | None = None
        self._answers: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answer the client until it hangs up."""
        frames = Frames()
        while data := await reader.read(_PIECE_BYTES):
            frames.feed(data)
            if not frames.greeted:
                if not frames.greet():
                    continue
                self._writer.write(MAGIC)
            while (content := frames.next()) is not None:
                await self._handle(parse(content))
            await self._writer.drain()

    def close(self) -> None:
        """Hang up on the lab."""
        if self._answers:
            self._answers.cancel()
        if self._lab:
            self._lab.close()

    async def _handle(self, message: Message) -> None:
        match message:
            case Request(key=key) if key != self._leased.kind:
                self._writer.write(refused(f"the lease is for the kind {self._leased.kind!r}"))
            case Request():
                lab = await self._connected()
                lab.write(frame([Code.REQUEST, self._leased.key, "", message.priority]))
            case Ping():
                self._writer.write(frame(SUCCESS))
            case AskSummary():
                self._writer.write(summarized(self._leased.summary()))
            case AskPending():
                self._writer.write(pending([]))
            case _:
                self._writer.write(frame(FAIL))

    async def _connected(self) -> asyncio.StreamWriter:
        if self._lab is None:
            async with asyncio.timeout(_CONNECT_S):
                reader, self._lab = await asyncio.open_connection(*self._leased.tracker)
                self._lab.write(MAGIC)
                await reader.readexactly(len(MAGIC))
            self._answers = asyncio.ensure_future(self._pass_on(reader))
        return self._lab

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        """Pass the lab's answers on, each as a whole; hang up when the lab does."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(_LENGTH.size)
                (length,) = _LENGTH.unpack(head)
                if not 0 < length <= MOST_MESSAGE_BYTES:
                    break
                self._writer.write(head + await reader.readexactly(length))
        self._writer.close()


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the other end of a connection is this user's, or root's."""
    return ownership.peer_of(connection) in (0, os.geteuid())


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
