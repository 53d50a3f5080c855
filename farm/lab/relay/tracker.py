"""A tracker on loopback for unchanged clients of TVM, of whom it knows what the lab allows.

It answers requests with the boards of a lab, which the lab knows as those of a lease, and the rest
by itself. It outlives the lab's server: a request while that is away is refused by hanging up, and
TVM's clients ask again. Whoever reaches it has the boards, and every user of this machine reaches
loopback: so it hangs up on connections of other users.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from typing import Protocol

from farm import ownership
from farm.errors import LinkError
from farm.tracker.errors import ProtocolError
from farm.tracker.framing import FrameBuffer
from farm.tracker.listening import listen_on_first_free_port
from farm.tracker.protocol import (
    FAIL,
    MAGIC,
    SUCCESS,
    AskPendingMatchKeys,
    AskSummary,
    Message,
    Ping,
    Request,
    frame_message,
    parse_message,
    pending_match_keys_answer,
    summary_answer,
)
from farm.tracker.scheduler import Summary

HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16
_US = os.geteuid()
_MOST_MESSAGES = 256  # of one client that wait for an answer


class RelayedBoards(Protocol):
    """The boards that a relay lends. Its coroutines run in the relay's loop."""

    async def summary(self) -> Summary:
        """Return what the tracker's summary tells. Raises LinkError."""
        ...

    async def ask(self, request: Request) -> bytes:
        """Return the tracker's answer to a request; it is cancelled if the client hangs up.

        Raises LinkError, on which the relay hangs up, too.
        """
        ...


class RelayTracker:
    """A tracker in a thread of its own, for as long as the block lasts; port 0 is any.

    Raises DeviceError if the port is taken.
    """

    def __init__(self, boards: RelayedBoards, port: int = 0) -> None:
        self._listener = listen_on_first_free_port(HOST, [port])
        self.port = int(self._listener.getsockname()[1])
        self._boards = boards
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-tracker", daemon=True)

    def __enter__(self) -> RelayTracker:
        """Listen."""
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up on all clients."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=self._listener)
        )
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(_end_tasks())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self._boards, reader, writer)
        try:
            if is_same_user_or_root(writer.get_extra_info("socket")):
                await client.serve()
        except (OSError, ProtocolError, LinkError, asyncio.CancelledError):
            pass  # it hung up, or the lab is away: TVM's client connects anew
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Client:
    """One client. It may send more while it waits for a board; that it hangs up is noticed."""

    def __init__(
        self, boards: RelayedBoards, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._boards, self._reader, self._writer = boards, reader, writer
        self._messages: asyncio.Queue[Message] = asyncio.Queue()

    async def serve(self) -> None:
        """Answer the client until it hangs up."""
        tasks = {asyncio.ensure_future(self._read()), asyncio.ensure_future(self._answer_all())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        """Take what the client sends, until it hangs up."""
        frames = FrameBuffer()
        while data := await self._reader.read(_PIECE_BYTES):
            frames.feed(data)
            if not frames.greeted:
                if not frames.greet():
                    continue
                self._writer.write(MAGIC)
            while (content := frames.next()) is not None:
                self._messages.put_nowait(parse_message(content))
            if self._messages.qsize() > _MOST_MESSAGES:
                raise ProtocolError("more than a client has to ask")

    async def _answer_all(self) -> None:
        """Answer the messages in their order."""
        while True:
            self._writer.write(await self._answer(await self._messages.get()))
            await self._writer.drain()

    async def _answer(self, message: Message) -> bytes:
        match message:
            case Request():
                return await self._boards.ask(message)
            case Ping():
                return frame_message(SUCCESS)
            case AskSummary():
                return summary_answer(await self._boards.summary())
            case AskPendingMatchKeys():
                return pending_match_keys_answer([])
            case _:
                return frame_message(FAIL)


def is_same_user_or_root(connection: socket.socket) -> bool:
    """Return whether the other end of a connection is this user's, or root's."""
    return ownership.user_of_peer(connection) in (0, _US)


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
