"""The lab server's process: its lock, its journal, two sockets, an event loop, signals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farm import ownership, sanitize
from farm.config.profiles import built_in_profile_tables
from farm.errors import DeviceError, FarmError, NoSpaceError, UsageError
from farm.lab.board_records import BoardRecords
from farm.lab.care import health_controller
from farm.lab.care.health_controller import BoardHealthController
from farm.lab.care.notices import Notifier
from farm.lab.change_budget import ChangeBudget
from farm.lab.control_socket import MOST_LINE_BYTES, ControlSocket
from farm.lab.durations import format_duration
from farm.lab.entities import Event, Lease
from farm.lab.lab_toml import SOCKET_MODES, LabSettings
from farm.lab.lender import LabLender
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.storage.lab_database import LabDatabase
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.lab_client.control_client import SOCKET
from farm.processes import signals
from farm.tracker import TrackerServerSettings, listen_on_first_free_port
from farm.tracker.admission import limits_within_open_files
from farm.tracker.listening import BACKLOG
from farm.tracker.metrics_page import MetricsPage, serve_metrics
from farm.tracker.server import TrackerServer

_TICK_S = 1.0
_DRAIN_S = 5.0
_DOWN_S = 30.0  # without a server, that people are told of
_PRUNE_S = 600.0
_ALIVE = "alive"  # a file that is touched as long as a server runs
_BESIDE = 1024  # connections to the control socket and to the page


@dataclass(frozen=True, slots=True)
class LabServerOptions:
    """The folder of the lab's files, and where to listen for TVM's clients; port 0 is any.

    A client of TVM's that asks for a kind that no board has had is refused after `unknown_key_s`.
    With `metrics_port`, metrics are served on http://HOST:PORT/metrics, too.
    """

    folder: Path
    host: str
    port: int
    unknown_key_s: float = TrackerServerSettings().unknown_key_s
    metrics_port: int | None = None


class LabServer:
    """A lab in an event loop. `failed` is called once if it cannot keep what changes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: LabSettings,
        journal: LabDatabase,
        place: LabServerOptions,
        say: Callable[[str], None],
        failed: Callable[[FarmError], None],
    ) -> None:
        past, now = journal.open(), time.time()
        self.journal = journal
        self._loop, self._say, self._said = loop, say, set[str]()
        self._writer = LabDatabaseWriter(loop, journal, failed)
        self._writer.told_full = self._note_space
        scheduler = LeaseScheduler(settings.rules, settings.boards, past, now)
        self.lender = LabLender(
            scheduler,
            self._writer,
            settings.rules,
            settings.boards,
            time.time,
            self._tell,
            BoardRecords(past.boards, [board.name for board in settings.boards]),
            settings.heartbeat_s,
        )
        self.tracker = TrackerServer(
            loop,
            TrackerServerSettings(
                place.unknown_key_s,
                settings.heartbeat_s,
                limits_within_open_files(TrackerServerSettings().limits, _BESIDE),
            ),
            say,
            self.lender,
            self.lender,
        )
        self.lender.hang_up = self.tracker.hang_up
        self.lender.connection_of = self.tracker.connection_of
        self.lender.deliver = self.tracker.deliver
        self.control = ControlSocket(
            self.lender,
            journal,
            self._writer,
            time.time,
            (place.host, place.port),
            past.next_event - 1,
            ChangeBudget(settings.changes),
        )
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.host, place.host)
        self.keeper = BoardHealthController(
            self.lender,
            settings.health,
            settings.boards,
            place.folder,
            lambda key: f"tracker://{f'[{host}]' if ':' in host else host}:{place.port}/{key}",
            time.time,
            lambda kind: kind if kind in built_in_profile_tables() else "",
        )
        health_controller.remove_old_check_folders(place.folder)
        self.lender.keeper = self.control.keeper = self.keeper
        self.notifier = Notifier(scheduler, settings.notify, settings.boards, time.time, say)
        self.control.watch(self.notifier.note)
        self._keep_s, self._prune_at = settings.keep_s, now
        self._alive = place.folder / _ALIVE
        self._note_start(now)
        self._tick()

    async def end(self) -> None:
        """End all connections, and keep what has changed."""
        self._ticking.cancel()
        self.keeper.close()
        self.notifier.close()
        self.tracker.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._writer.drain()

    def close(self) -> None:
        """End the thread that keeps."""
        self._writer.close()

    def _tell(self, leases: list[Lease], events: list[Event]) -> None:
        self.control.tell(leases, events)

    def _note_space(self, error: NoSpaceError | None) -> None:
        """Lend nothing while the disk is full: it could not be kept. Tell people of it."""
        self.lender.scheduler.paused = error is not None
        self.notifier.disk_full(error is not None)
        if error:
            self.control.give_up_waiting()
            self._say(f"{error.why}: nothing is lent until there is space; {error.fix}")
        else:
            self._say("there is space on the disk again, and all that has changed is kept")

    def _note_start(self, now: float) -> None:
        """Note that the server has started, and for how long there was none."""
        before = self._alive.stat().st_mtime if self._alive.exists() else None
        away_s = 0.0 if before is None else max(0.0, now - before)
        detail = "" if before is None else f"after {format_duration(away_s)} without a server"
        self.lender.scheduler.note("server-started", now, "", None, "farm", detail)
        if away_s >= _DOWN_S:
            self.notifier.down(away_s)
        self._touch_alive()

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(_TICK_S, self._tick)
        for step in (self._lend, self.keeper.tick, self.notifier.tick, self._prune):
            try:
                step()
            except Exception as exc:  # the rest goes on: leases end, silent boards are noticed
                words = f"a bug of farm's own: {step.__qualname__}: {type(exc).__name__}"
                if words not in self._said:
                    self._said.add(words)
                    self._say(f"{words}: {sanitize.sanitized_line(str(exc))}")
        self._touch_alive()

    def _lend(self) -> None:
        self.lender.tick(self._loop.time())

    def _prune(self) -> None:
        now = time.time()
        if now >= self._prune_at:
            self._prune_at = now + _PRUNE_S
            self._writer.prune(now - self._keep_s)

    def _touch_alive(self) -> None:
        with contextlib.suppress(OSError):  # it only tells the next server how long there was none
            self._alive.touch(mode=0o600)


CompanionServer = Callable[
    [LabServer], contextlib.AbstractAsyncContextManager[None]
]  # what else serves, such as the page


@dataclass(slots=True)
class _Ending:
    """Why the loop was stopped, if it was not a signal."""

    errors: list[FarmError] = field(default_factory=list)


def serve(
    settings: LabSettings,
    place: LabServerOptions,
    announce: Callable[[str, int, Path], None],
    say: Callable[[str], None],
    beside: CompanionServer | None = None,
) -> None:
    """Serve until interrupted.

    `announce` is called with the address, the port and the control socket; `say` with each line for
    the operator. What serves `beside` the lab is entered in its loop. Raises FarmError if another
    server runs, nothing can be kept, or a socket is taken.
    """
    ending = _Ending()
    with contextlib.ExitStack() as held:
        ownership.make_private_folder(place.folder)
        held.enter_context(_only_one(place.folder))
        listener = held.enter_context(listen_on_first_free_port(place.host, [place.port]))
        numbers = (
            None
            if place.metrics_port is None
            else held.enter_context(listen_on_first_free_port(place.host, [place.metrics_port]))
        )
        path = place.folder / SOCKET
        people = held.enter_context(listen_unix(path, SOCKET_MODES[settings.people]))
        loop = held.enter_context(contextlib.closing(asyncio.new_event_loop()))
        signals.stop_loop_on_signal(loop)

        def failed(error: FarmError) -> None:
            ending.errors.append(error)
            loop.stop()

        port = int(listener.getsockname()[1])
        journal = LabDatabase(settings.store or place.folder / "lab.sqlite")
        lab = LabServer(loop, settings, journal, dataclasses.replace(place, port=port), say, failed)
        held.callback(lab.close)
        servers: list[asyncio.Server] = [
            loop.run_until_complete(
                loop.create_server(lab.tracker.connection, sock=listener, backlog=BACKLOG)
            ),
            loop.run_until_complete(
                asyncio.start_unix_server(lab.control.serve, sock=people, limit=MOST_LINE_BYTES)
            ),
        ]
        if numbers:
            servers.append(
                loop.run_until_complete(serve_metrics(MetricsPage(lab.tracker.summary), numbers))
            )
        around = contextlib.AsyncExitStack()
        if beside:
            loop.run_until_complete(around.enter_async_context(beside(lab)))
        announce(place.host, port, path)
        try:
            signals.raise_if_stopped()
            loop.run_forever()
            if ending.errors:
                raise ending.errors[0]
            signals.raise_if_stopped()
        finally:
            loop.run_until_complete(around.aclose())
            for server in servers:
                server.close()
            loop.run_until_complete(lab.end())
            loop.run_until_complete(_end_tasks())


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder. Raises UsageError if another server has it."""
    descriptor = ownership.open_private(folder / "lab.lock")
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            why = f"its lock is {folder / 'lab.lock'}"
            raise UsageError(
                "a lab server runs already", why, "use it: farm lab boards; or stop it first"
            ) from exc
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def listen_unix(path: Path, mode: int) -> Iterator[socket.socket]:
    """Listen on a Unix socket, in the place of one that an earlier server has left behind."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        contextlib.suppress(FileNotFoundError),
    ):
        path.unlink(missing_ok=True)
        before = os.umask(0o777 & ~mode)
        try:
            listener.bind(str(path))
        except OSError as exc:
            why = f"{path}: {exc.strerror or exc}"
            raise DeviceError(
                "the lab cannot listen", why, "use a shorter path: export FARM_DATA=/path"
            ) from exc
        finally:
            os.umask(before)
        try:
            listener.listen(BACKLOG)
            listener.setblocking(False)
            yield listener
        finally:
            path.unlink(missing_ok=True)


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
