"""The sockets of the page, and what belongs to which path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web

from farm.errors import FarmError
from farm.lab.lab_toml import SOCKET_MODES
from farm.lab.run import CompanionServer, LabServer, listen_unix
from farm.lab_page.access import BrowserLogins, check_origin
from farm.lab_page.connections import BODY_S, IDLE_S, PageConnections
from farm.lab_page.event_stream import EventStreamHandlers
from farm.lab_page.http_responses import NotFound, error_response
from farm.lab_page.lab_metrics import LabMetrics
from farm.lab_page.live_parts import LiveParts
from farm.lab_page.pages import PageHandlers
from farm.lab_page.rest import RestHandlers
from farm.tracker import listen_on_first_free_port
from farm.tracker.listening import BACKLOG

HOST = "127.0.0.1"
SOCKET = "http.sock"  # in the lab's folder
_MOST_BODY_BYTES = 1 << 16
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; "
)
_HEADERS = {
    "Content-Security-Policy": _POLICY + "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without any, the origin of our own forms would be "null"
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_page_server(port: int, folder: Path, announce: Callable[[str], None]) -> CompanionServer:
    """Return what serves the page of a lab: on loopback, and on a Unix socket in the lab's folder.

    `announce` is called with the page's address.
    """

    @contextlib.asynccontextmanager
    async def serving(lab: LabServer) -> AsyncIterator[None]:
        access = BrowserLogins()
        live = LiveParts(lab)
        connections = PageConnections(access.peer)
        stream = EventStreamHandlers(lab.control, live, access)
        pages = PageHandlers(lab.control, access, live)
        numbers = LabMetrics(lab.control)
        parts = (RestHandlers(lab.control, access), stream, pages, numbers)
        routes = [
            *(route for part in parts for route in part.routes()),
            web.get("/healthz", _healthz),
        ]
        application = _application(routes, pages, connections)
        runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            handle_signals=False,
            keepalive_timeout=IDLE_S,
        )
        await runner.setup()
        assert runner.server, "set up"
        loop, server = asyncio.get_running_loop(), runner.server
        with (
            listen_on_first_free_port(HOST, [port]) as loopback,
            listen_unix(folder / SOCKET, SOCKET_MODES["owner"]) as local,
        ):
            address = f"http://{HOST}:{loopback.getsockname()[1]}"
            lab.control.open_page = lambda caller: f"{address}/enter?link={access.link(caller)}"
            lag = asyncio.ensure_future(numbers.watch_lag())
            servers = [
                await loop.create_server(
                    lambda: _Door(server, connections), sock=loopback, backlog=BACKLOG
                ),
                await loop.create_unix_server(server, sock=local),
            ]
            try:
                announce(address)
                async with live:
                    yield
            finally:
                lag.cancel()
                stream.close()
                for one in servers:
                    one.close()
                await runner.cleanup()

    return serving


class _Door(asyncio.Protocol):
    """Let a connection in to the server, or hang up if there is no place for it."""

    def __init__(self, server: web.Server, connections: PageConnections) -> None:
        self._server, self._connections = server, connections
        self._transport: asyncio.Transport | None = None
        self._handler: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection on; only here is it known how many others were let in before it."""
        assert isinstance(transport, asyncio.Transport)
        if not self._connections.open(transport):
            transport.close()
            return
        self._transport, self._handler = transport, self._server()
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what was sent."""
        if self._transport and self._handler:
            self._connections.heard(self._transport)
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that nothing more is sent."""
        return self._handler.eof_received() if self._handler else None

    def pause_writing(self) -> None:
        """Pass on that the reader is slow."""
        if self._handler:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the reader has caught up."""
        if self._handler:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self._transport and self._handler:
            self._connections.close(self._transport)
            self._handler.connection_lost(exc)


def _application(
    routes: list[web.RouteDef], pages: PageHandlers, connections: PageConnections
) -> web.Application:
    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Answer a request, and write the answer: until then its connection is not idle."""
        transport = request.transport
        connections.request_began(transport)
        try:
            response = await answered(request, handler)
            connections.answer_began(transport)
            with contextlib.suppress(ConnectionError):  # aiohttp finds the same, and ends it
                await response.prepare(request)
                await response.write_eof()
            return response
        finally:
            connections.request_ended(transport)

    async def answered(request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse what a page of elsewhere has a browser ask for.

        Answer errors as they are read there.
        """
        try:
            check_origin(request)
            await _read_body(request)
            return await handler(request)
        except FarmError as exc:
            return pages.error(request, exc) if _is_for_people(request) else error_response(exc)
        except web.HTTPClientError as exc:
            why = f"{request.method} {request.path[:100]}: {exc.reason}"
            return error_response(
                NotFound(
                    "the lab does not answer this",
                    why,
                    "see docs/how-to/lab.md, or ask for /api/1/boards",
                ),
                exc.status,
            )

    application = web.Application(middlewares=[guard], client_max_size=_MOST_BODY_BYTES)
    application.add_routes(routes)
    application.on_response_prepare.append(_add_headers)
    return application


async def _read_body(request: web.Request) -> None:
    """Read what was sent, which is kept for the handler. Raises web.HTTPClientError."""
    try:
        async with asyncio.timeout(BODY_S):
            await request.read()
    except TimeoutError as exc:
        raise web.HTTPRequestTimeout from exc


def _is_for_people(request: web.Request) -> bool:
    return not request.path.startswith("/api/") and "text/html" in request.headers.get("Accept", "")


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if "Cache-Control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
