"""The numbers of the tracker for Prometheus, at http://HOST:PORT/metrics."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable

from farm import metrics
from farm.tracker.scheduler import KeyQueue, Summary

_MOST_HEAD_BYTES = 1 << 13
_HEAD_S = 5.0
_MOST_READERS = 16
_NOBODY = KeyQueue(0, 0)


def format_summary_metrics(summary: Summary) -> str:
    """Return the tracker's summary as metrics for Prometheus."""
    boards = metrics.Metric("farm_tracker_boards", "Boards that are registered, free or lent.")
    free = metrics.Metric("farm_tracker_boards_free", "Boards that nobody has.")
    waiting = metrics.Metric(
        "farm_tracker_requests_waiting", "Requests for a board that wait for one."
    )
    registered = Counter(server.key for server in summary.servers)
    for key in sorted({*registered, *summary.queues}):
        queue = summary.queues.get(key, _NOBODY)
        boards.values.append(({"key": key}, registered[key]))
        free.values.append(({"key": key}, queue.free))
        waiting.values.append(({"key": key}, queue.waiting))
    return metrics.format_metrics([boards, free, waiting])


class MetricsPage:
    """A page of HTTP/1, whose readers are few and get one answer each."""

    def __init__(self, summary: Callable[[], Summary]) -> None:
        self._summary = summary
        self._readers = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close."""
        self._readers += 1
        try:
            if self._readers <= _MOST_READERS:
                async with asyncio.timeout(_HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._page(head))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it is no reader of metrics
        except asyncio.CancelledError:  # the server ends; asyncio of Python 3.11 would report it
            writer.transport.abort()
        finally:
            self._readers -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _page(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if path != b"/metrics":
            return _response("404 Not Found", "text/plain", "the numbers are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", "only GET\n")
        return _response(
            "200 OK",
            metrics.CONTENT_TYPE,
            format_summary_metrics(self._summary()),
            method == b"GET",
        )


async def serve_metrics(page: MetricsPage, listener: socket.socket) -> asyncio.Server:
    """Serve the page on a socket that listens."""
    return await asyncio.start_server(page.answer, sock=listener, limit=_MOST_HEAD_BYTES)


def _response(status: str, kind: str, text: str, body: bool = True) -> bytes:
    content = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: "
        f"{len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content * body
