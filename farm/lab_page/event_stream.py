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
from farm.lab_page.live_parts import LiveParts
from farm.lab_page.rest import parse_whole_number

MOST_STREAMS = 256
_ALIVE_S = 15.0  # after which a comment says that the connection lives
_RETRY_MS = 1000


class EventStreamHandlers:
    """The streams that are open."""

    def __init__(self, control: ControlSocket, live: LiveParts) -> None:
        self._control = control
        self._live = live
        self._open: set[asyncio.Task[None]] = set()

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
        if len(self._open) >= MOST_STREAMS:
            raise LinkError(
                "too many streams are open",
                f"there can be {MOST_STREAMS}",
                "close some pages of the lab",
            )
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
        try:
            while not (await asyncio.wait({sending}, timeout=_ALIVE_S))[0]:
                await response.write(b":\n\n")
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
