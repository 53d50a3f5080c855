"""The tracker's process: sockets, an event loop, signals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from farm.processes import signals
from farm.tracker.admission import limits_within_open_files
from farm.tracker.listening import BACKLOG, listen_on_first_free_port
from farm.tracker.metrics_page import MetricsPage, serve_metrics
from farm.tracker.server import TrackerServer, TrackerServerSettings


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """Where to listen. With `metrics_port`, metrics are served on http://HOST:PORT/metrics, too."""

    host: str
    ports: Iterable[int]
    metrics_port: int | None = None


def serve(
    where: ListenAddresses,
    settings: TrackerServerSettings,
    announce: Callable[[int], None],
    say: Callable[[str], None],
) -> None:
    """Serve on the first free port until interrupted.

    `announce` is called with the port, and `say` with each line for the operator. Raises
    DeviceError if no port is free.
    """
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_on_first_free_port(where.host, where.ports))
        beside = (
            None
            if where.metrics_port is None
            else held.enter_context(listen_on_first_free_port(where.host, [where.metrics_port]))
        )
        loop = held.enter_context(contextlib.closing(asyncio.new_event_loop()))
        signals.stop_loop_on_signal(loop)
        tracker = TrackerServer(
            loop,
            TrackerServerSettings(
                settings.unknown_key_s, limits=limits_within_open_files(settings.limits)
            ),
            say,
        )
        servers = [
            loop.run_until_complete(
                loop.create_server(tracker.connection, sock=listener, backlog=BACKLOG)
            )
        ]
        if beside:
            servers.append(
                loop.run_until_complete(serve_metrics(MetricsPage(tracker.summary), beside))
            )
        announce(listener.getsockname()[1])
        try:
            signals.raise_if_stopped()
            loop.run_forever()
            signals.raise_if_stopped()
        finally:
            for server in servers:
                server.close()
            tracker.close()
            loop.run_until_complete(_end())


async def _end() -> None:
    """End the tasks that are left, and let what was closed be gone."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
