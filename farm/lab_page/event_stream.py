"""Events as they happen: server-sent events with numbers, so that a reader resumes without a gap.

/api/1/stream has the events of the journal, as `event: lease` or `event: board`, under their
numbers. /stream tells a page, as `event: page`, that it has changed; its number is the page's
version.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator

from aiohttp import web

from farm.errors import LinkError
from farm.lab.control_socket import ControlSocket
from farm.lab.shared_places import SharedPlaces
from farm.lab_page.access import BrowserLogins
from farm.lab_page.live_parts import LiveParts
from farm.lab_page.rest import parse_whole_number

_MOST_STREAMS = 256
MOST_STREAMS_OF_ONE = 32
_LOOK_S = 1.0  # whether the reader is there
_ALIVE_LOOKS = 15  # after which a comment says that the connection lives
_RETRY_MS = 1000


class EventStreamHandlers:
    """The streams that are open."""

    def __init__(self, control: ControlSocket, live: LiveParts, access: BrowserLogins) -> None:
        self._control = control
        self._live = live
        self._access = access
        self._open: set[asyncio.Task[None]] = set()
        self._places = SharedPlaces[asyncio.Future[None]](
            _MOST_STREAMS, MOST_STREAMS_OF_ONE, lambda ended: ended.set_result(None)
        )

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered where."""
        return [web.get("/api/1/stream", self.of_events), web.get("/stream", self.of_page)]

    async def of_events(self, request: web.Request) -> web.StreamResponse:
        """Send the events after Last-Event-ID or ?since=; without these, those to come."""
        since = _resumed(request.headers.get("Last-Event-ID", ""))
        if since is None:
            since = parse_whole_number(request, "since", self._control.last_event)
        lost = since > self._control.last_event  # its numbers are those of another record
        if lost or 0 < since < await self._control.oldest_event() - 1:  # or it was away for long
            return await self._send(request, _once("reload", "", str(self._control.last_event)))
        return await self._send(request, self._events(since))

    async def of_page(self, request: web.Request) -> web.StreamResponse:
        """Tell a page of each change after the version that it has."""
        version = request.headers.get("Last-Event-ID") or request.query.get("version", "")
        return await self._send(request, self._versions(version))

    def close(self) -> None:
        """End all streams."""
        for task in self._open:
            task.cancel()

    async def _events(self, since: int) -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(self._control.follow(since)) as events:
            async for event in events:
                yield _message(
                    event.what.partition("-")[0],
                    json.dumps(dataclasses.asdict(event)),
                    str(event.number),
                )

    async def _versions(self, version: str) -> AsyncGenerator[bytes]:
        while True:
            version = await self._live.changed(version)
            yield _message("page", version, version)

    async def _send(
        self, request: web.Request, messages: AsyncGenerator[bytes]
    ) -> web.StreamResponse:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._places.take(ended, self._access.user(request), busy=True):
            raise LinkError(
                "too many streams are open",
                f"each person has {MOST_STREAMS_OF_ONE}",
                "close some pages of the lab",
            )
        try:
            return await self._send_until(ended, request, messages)
        finally:
            self._places.leave(ended)

    async def _send_until(
        self,
        ended: asyncio.Future[None],
        request: web.Request,
        messages: AsyncGenerator[bytes],
    ) -> web.StreamResponse:
        """Send a stream until its reader has gone, or it loses its place."""
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(f"retry: {_RETRY_MS}\n\n".encode())
        sending = asyncio.ensure_future(_write(response, messages))
        self._open.add(sending)
        ways, looks = asyncio.FIRST_COMPLETED, 0
        try:
            while not (await asyncio.wait({sending, ended}, timeout=_LOOK_S, return_when=ways))[0]:
                looks += 1
                if request.transport is None:
                    break  # or its place would be kept until something is written
                if looks % _ALIVE_LOOKS == 0:
                    await response.write(b":\n\n")
            if sending.done():
                sending.result()
        except (OSError, asyncio.CancelledError):
            pass  # the reader has gone, or the server ends
        finally:
            sending.cancel()
            self._open.discard(sending)
        return response


async def _write(response: web.StreamResponse, messages: AsyncGenerator[bytes]) -> None:
    async with contextlib.aclosing(messages):
        async for message in messages:
            await response.write(message)


async def _once(event: str, data: str, number: str) -> AsyncGenerator[bytes]:
    yield _message(event, data, number)


def _message(event: str, data: str, number: str) -> bytes:
    """Return a message; its data is of one line."""
    return f"id: {number}\nevent: {event}\ndata: {data}\n\n".encode()


def _resumed(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
