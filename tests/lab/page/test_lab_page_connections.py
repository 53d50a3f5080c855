"""The connections to a lab's page: whose answer is being sent is not idle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest
from aiohttp import web

from farm.lab_page import connections as page_connections
from farm.lab_page.connections import PageConnections
from farm.lab_page.pages import PageHandlers
from farm.lab_page.server import _application, _Door

IDLE_S = 0.6
BODY = b"x" * (16 << 20)  # more than the kernel takes at once
ASK = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_connections, "IDLE_S", IDLE_S)
    monkeypatch.setattr(page_connections, "MOST_CONNECTIONS_OF_ONE", 1)


@contextlib.asynccontextmanager
async def serving(own_places: bool = True) -> AsyncIterator[int]:
    """A server with a large page, on loopback; its connections have places, or are of others."""

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=BODY)

    connections = PageConnections(lambda _: "ann")
    application = _application([web.get("/large", large)], cast(PageHandlers, None), connections)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    server = runner.server
    assert server
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        (lambda: _Door(server, connections)) if own_places else server, "127.0.0.1", 0
    )
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await runner.cleanup()


@contextlib.contextmanager
def asking(port: int) -> Iterator[socket.socket]:
    """A connection that has asked for the large page, and takes little at once."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        one.connect(("127.0.0.1", port))
        one.sendall(ASK)
        one.setblocking(False)
        yield one


async def received(one: socket.socket, most: int = 1 << 30) -> int:
    """How many bytes come until the end, or until there are so many."""
    loop, found = asyncio.get_running_loop(), 0
    with contextlib.suppress(ConnectionError):
        while found < most and (piece := await loop.sock_recv(one, 1 << 20)):
            found += len(piece)
    return found


def test_a_slow_reader_gets_the_whole_answer_and_keeps_the_place_meanwhile() -> None:
    async def run() -> None:
        async with serving() as port:
            with asking(port) as slow:
                found = 0
                for _ in range(8):
                    await asyncio.sleep(IDLE_S / 4)
                    found += await received(slow, 1 << 20)
                with asking(port) as other:
                    assert await received(other) == 0, "the only place is taken"
                found += await received(slow, len(BODY) - found)
                assert found >= len(BODY)
                await asyncio.sleep(IDLE_S / 3)
                with asking(port) as other:
                    assert await received(other, len(BODY)) >= len(BODY)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_who_reads_nothing_of_an_answer_is_hung_up_on() -> None:
    async def run() -> None:
        async with serving() as port:
            with asking(port) as deaf:
                await asyncio.sleep(2.5 * IDLE_S)
                assert await received(deaf) < len(BODY)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_connection_without_a_place_is_left_alone() -> None:
    async def run() -> None:
        async with serving(own_places=False) as port:
            with asking(port) as one:
                answer = await received(one, len(BODY))
                await asyncio.sleep(2.5 * IDLE_S)
                await asyncio.get_running_loop().sock_sendall(one, ASK)
                assert answer + await received(one, len(BODY)) >= 2 * len(BODY)

    asyncio.run(asyncio.wait_for(run(), 60))
