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
from farm.lab_page.event_stream import MOST_STREAMS, EventStreamHandlers
from farm.lab_page.json_responses import NotFound, error_response
from farm.lab_page.lab_metrics import LabMetrics
from farm.lab_page.live_parts import LiveParts
from farm.lab_page.pages import PageHandlers
from farm.lab_page.rest import RestHandlers
from farm.tracker import listen_on_first_free_port
from farm.tracker.listening import BACKLOG

HOST = "127.0.0.1"
SOCKET = "http.sock"  # in the lab's folder
_MOST_BODY_BYTES = 1 << 16
MOST_CONNECTIONS = 2 * MOST_STREAMS  # on loopback, where anyone can connect
_IDLE_S = 60.0  # that a connection without a request lasts
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
        stream = EventStreamHandlers(lab.control, live)
        pages = PageHandlers(lab.control, access, live)
        numbers = LabMetrics(lab.control)
        parts = (RestHandlers(lab.control, access), stream, pages, numbers)
        routes = [
            *(route for part in parts for route in part.routes()),
            web.get("/healthz", _healthz),
        ]
        application = _application(routes, pages)
        runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            handle_signals=False,
            keepalive_timeout=_IDLE_S,
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
                await loop.create_server(lambda: _Door(server), sock=loopback, backlog=BACKLOG),
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
    """Let a connection in to the server, or hang up if it has enough of them."""

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection on; only here is it known how many others were let in before it."""
        assert isinstance(transport, asyncio.Transport)
        if len(self._server.connections) >= MOST_CONNECTIONS:
            transport.close()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


def _application(routes: list[web.RouteDef], pages: PageHandlers) -> web.Application:
    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse what a page of elsewhere has a browser ask for.

        Answer errors as they are read there.
        """
        try:
            check_origin(request)
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


def _is_for_people(request: web.Request) -> bool:
    return not request.path.startswith("/api/") and "text/html" in request.headers.get("Accept", "")


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if "Cache-Control" not in response.headers:
        response.headers["Cache-Control"] = "no-store"
