"""The lab server: TVM's tracker in this process, so that it ends with this process.

TVM's own starter leaves an orphan process that holds the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from farm import metrics, signals
from farm.errors import DeviceError
from farm.tvm_import import tvm_rpc


def serve(host: str, ports: Iterable[int], announce: Callable[[int], None], metrics_port: int | None = None) -> None:
    """Serve on the first free port until interrupted.

    With `metrics_port`, metrics for Prometheus are served on http://HOST:PORT/metrics, too.
    `announce` is called with the port. Raises DeviceError if no port is free.
    """
    with contextlib.ExitStack() as held:
        listener = held.enter_context(_listen(host, list(ports)))
        beside = None if metrics_port is None else held.enter_context(_listen(host, [metrics_port]))
        tvm_rpc()
        from tvm.rpc.tracker import TrackerServerHandler

        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        signals.stop(loop)
        handler = TrackerServerHandler(listener, "")
        if beside:
            _serve_metrics(beside, handler.summary)
        announce(listener.getsockname()[1])
        try:
            handler.run()
            signals.check()
        finally:
            handler.stop()


def of_summary(summary: Mapping[str, Any]) -> str:
    """Return the tracker's summary (`queue_info`, `server_info`) as metrics for Prometheus."""
    boards = metrics.Metric("farm_tracker_boards", "Boards that are registered, free or lent.")
    free = metrics.Metric("farm_tracker_boards_free", "Boards that nobody has.")
    waiting = metrics.Metric("farm_tracker_requests_waiting", "Requests for a board that wait for one.")
    registered = Counter(str(server["key"]).partition(":")[2] for server in summary["server_info"])
    for key in sorted({*registered, *summary["queue_info"]}):
        queue = summary["queue_info"].get(key, {})
        boards.values.append(({"key": key}, registered[key]))
        free.values.append(({"key": key}, queue.get("free", 0)))
        waiting.values.append(({"key": key}, queue.get("pending", 0)))
    return metrics.text([boards, free, waiting])


def _serve_metrics(listener: socket.socket, summary: Callable[[], Mapping[str, Any]]) -> None:
    """Serve metrics in the event loop that the tracker runs in."""
    from tornado.httpserver import HTTPServer
    from tornado.web import Application, RequestHandler

    class Metrics(RequestHandler):  # type: ignore[misc]
        def get(self) -> None:
            self.set_header("Content-Type", metrics.CONTENT_TYPE)
            self.write(of_summary(summary()))

    listener.setblocking(False)
    server = HTTPServer(Application([("/metrics", Metrics)], log_function=lambda _: None))
    server.add_socket(listener)


def _listen(host: str, ports: list[int]) -> socket.socket:
    family = socket.getaddrinfo(host, None)[0][0]
    why = ""
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as exc:
            listener.close()
            why = f"{host}:{port}: {exc.strerror}"
            continue
        listener.listen(64)
        return listener
    raise DeviceError("the tracker cannot listen", why or "no port was given", "name another port with --port")
