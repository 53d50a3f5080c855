"""Sessions of farm's own RPC client for tests, and servers that say what a test has them say."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

from timeouts import LIMIT_S

from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.rpc.connection import connect
from farm.rpc.handshake import MAGIC
from farm.rpc.session import Session
from farm.rpc.session_opening import open_session

HOST = "127.0.0.1"
OPENED = struct.pack("<Qiii", 12, 4, 1, 0)
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


@dataclass
class ServingAgent:
    """An agent that requires the key "board"."""

    child: Popen[bytes]
    port: int

    def end(self) -> None:
        subprocesses.end_program(self.child, grace_s=5)


def soon() -> Deadline:
    """A deadline for what is sure to come."""
    return Deadline(LIMIT_S)


@contextlib.asynccontextmanager
async def session(port: int, key: str, most_return_bytes: int = 1 << 26) -> AsyncIterator[Session]:
    """A session with a server, which is closed after the block."""
    connection = await connect(HOST, port, soon())
    one = await open_session(connection, "the server", key, soon(), LIMIT_S, most_return_bytes)
    try:
        yield one
    finally:
        await one.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns."""
    return asyncio.run(work)


@contextlib.asynccontextmanager
async def served(script: Script) -> AsyncIterator[int]:
    """A server in the loop of the test that treats each connection by a script; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await script(reader, writer)
        writer.close()

    listener = await asyncio.start_server(serve, HOST, 0)
    async with listener:
        yield int(listener.sockets[0].getsockname()[1])


async def greet(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    name: bytes = b"server:",
    opened: bytes = OPENED,
) -> None:
    """Greet a client, and open the session that it asks for."""
    _, length = struct.unpack("<ii", await reader.readexactly(8))
    await reader.readexactly(length)
    writer.write(struct.pack("<ii", MAGIC, len(name)) + name)
    await request(reader)
    writer.write(opened)


async def request(reader: asyncio.StreamReader) -> bytes:
    """The next request of the client."""
    (length,) = struct.unpack("<Q", await reader.readexactly(8))
    return await reader.readexactly(length)
