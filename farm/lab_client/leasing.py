"""A lease that a thread of its own keeps: it asks, waits, tells the lab that one lives, gives back.

The thread has the connection to the lab; others wait for the boards, and open sessions.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from farm.errors import (
    DeadlineError,
    DeviceError,
    FarmError,
    InternalError,
    LinkError,
    UnavailableError,
    UsageError,
    did_you_mean,
)
from farm.lab_client.control_client import LabClient
from farm.processes.cancellation import register_wait_breaker
from farm.processes.deadline import Deadline
from farm.rpc.stream_protocols import StreamBeforeGreeting

HEARTBEAT_S = 60.0  # a lease without any for so long is given to others
AWAY_S = 60.0  # for a server that is started again
_BEAT_S = 10.0
_QUEUE_S = 1.0  # between two looks at the place in the queue
_END_S = 5.0  # to give a lease back
_STEP_S = 0.2
_GIVES_WAY = "batch"  # the class of work that gives way between two sessions

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WantedBoards:
    """The boards that are wanted: of a kind, with tags, or one by its name; and for how long.

    `wait_s` limits the time in the queue. With a `reservation` they are the boards of that one,
    which is the caller's: its lease goes on when they are no longer used.
    """

    kind: str = ""
    board: str = ""
    tags: tuple[str, ...] = ()
    for_s: float = 3600.0
    rank: str = "interactive"
    wait_s: float = 600.0
    labels: Mapping[str, str] = field(default_factory=dict)
    reservation: int = 0

    @property
    def words(self) -> str:
        """Describe the boards that are wanted, for messages."""
        tagged = "".join(f" tagged {tag}" for tag in self.tags)
        return (f"the board {self.board}" if self.board else f"a {self.kind or 'board'}") + tagged

    def fits(self, board: Mapping[str, Any]) -> bool:
        """Return whether a board, as the lab shows it, is one that is wanted."""
        return (
            self.kind in ("", board["kind"])
            and self.board in ("", board["name"])
            and set(self.tags) <= set(board["tags"])
        )

    def kind_among(self, boards: Sequence[Mapping[str, Any]]) -> str:
        """Return the kind to ask for, which a name or tags may tell. Raises UsageError."""
        if self.kind:
            return self.kind
        kinds = sorted({str(board["kind"]) for board in boards if self.fits(board)})
        if len(kinds) == 1:
            return kinds[0]
        if kinds:
            why = f"there are some of the kinds {', '.join(kinds)}"
            raise UsageError(
                f"{self.words} may be of several kinds", why, "lab://HOST/KIND/tag=TAG"
            )
        known = [board["name"] for board in boards] if self.board else []
        known += [tag for board in boards for tag in board["tags"]] if self.tags else []
        why = did_you_mean((self.board, *self.tags)[-1] or self.board, set(known))
        raise UsageError(
            f"the lab has not {self.words}", why or "it has no boards", "farm lab boards"
        )


def ask_for_reserved(client: LabClient, wanted: WantedBoards) -> dict[str, Any]:
    """Return the lease of a reservation. Raises UsageError unless it is the caller's and has begun.

    Or if it is of another kind, or has boards that are not wanted.
    """
    number, kind = wanted.reservation, wanted.kind
    if not kind:
        listed = client.ask("reservations")["reservations"]
        kind = next((one["kind"] for one in listed if one["reservation"] == number), "")
    lease: dict[str, Any] = client.ask("request", kind=kind, for_s=1.0, reservation=number)["lease"]
    _ensure_wanted(client, wanted, lease)
    return lease


def _ensure_wanted(client: LabClient, wanted: WantedBoards, lease: Mapping[str, Any]) -> None:
    """Raise UsageError if the lease of a reservation has boards that are not wanted."""
    if not (wanted.board or wanted.tags):
        return
    boards = [one for one in client.boards() if one["name"] in lease["boards"]]
    if not all(wanted.fits(board) for board in boards):
        kind = lease["kind"]
        raise UsageError(
            f"reservation {wanted.reservation} is not of {wanted.words} only",
            f"it has {', '.join(lease['boards'])}",
            f"use a device whose url names the kind alone: lab:{kind}, or lab://HOST/{kind}",
        )


class BoardSocketLike(Protocol):
    """Some of a connected socket, for who passes on its bytes."""

    def settimeout(self, seconds: float | None, /) -> None:
        """Limit each wait."""
        ...

    def recv(self, count: int, /) -> bytes:
        """Return the next bytes; none at the end."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""
        ...

    def shutdown(self, how: int, /) -> None:
        """End one direction, or both: then what waits for it in another thread sees its end."""
        ...


@dataclass(frozen=True, slots=True)
class BoardConnection:
    """An open connection to a board of a lease, and the key that the board expects.

    `stream` is the connection for a session in this process; one may use either.
    """

    board: str
    match_key: str
    connection: BoardSocketLike
    stream: StreamBeforeGreeting


class LabAccess(Protocol):
    """A way to a lab: by its Unix socket, or by the door."""

    def client(self) -> LabClient:
        """Open a connection for questions. Raises LinkError."""
        ...

    def session(self, lease: int, wait_s: float) -> AbstractContextManager[BoardConnection]:
        """Open a session with an idle board of a lease. Raises FarmError."""
        ...


class HeldLease:
    """A lease of one board. `reach` is entered in the thread that keeps it, and yields the lab."""

    def __init__(
        self, reach: Callable[[], AbstractContextManager[LabAccess]], wanted: WantedBoards, say: Say
    ) -> None:
        self.number = 0
        self._cuts: dict[str, Callable[[], None]] = {}  # of open sessions, by board
        self._lost: Mapping[str, str] = {}  # boards that the lab has given up, as last heard
        self._reach, self._wanted, self._say = reach, wanted, say
        self._lab: LabAccess | None = None
        self._error: FarmError | None = None
        self._settled, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lab-lease", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Return whether the lease has its board, or waits for it."""
        return self._error is None and not self._stop.is_set() and self.is_alive

    @property
    def is_alive(self) -> bool:
        """Return whether the lease may still have to be given back."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Return once the lease has its board. Raises UnavailableError if the wait ran out."""
        broken = threading.Event()
        with register_wait_breaker(broken.set):
            while not self._settled.wait(_STEP_S):
                if broken.is_set():
                    raise LinkError("the wait for a board was ended", "", "")
        self.check()

    def check(self) -> None:
        """Raise the error by which the lease has ended, if it has."""
        if self._error:
            raise self._error

    def wait_for_board(self, say: Say) -> None:
        """Return once a board of the lease is fit: one that is lost gets another in its place.

        `say` is told what it waits for. Raises UnavailableError if there was none in time.
        """
        patience, said = Deadline(self._wanted.wait_s), ""
        while lost := self._all_lost():
            board, why = next(iter(lost.items()))
            words = f"waiting for another board in the place of {board}: {why}"
            if words != said:
                say(said := words)
            if patience.expired:
                raise UnavailableError(
                    f"the board {board} of lease {self.number} failed, and no other became free",
                    f"{why}; waited {self._wanted.wait_s:.0f} s for another",
                    "run the command again, or see what there is: farm lab boards",
                )
            self._pause(_QUEUE_S)

    @contextlib.contextmanager
    def session(self, wait_s: float) -> Iterator[BoardConnection]:
        """Open a session with a board of the lease; it is cut if the lab says that it is lost."""
        self.check()
        assert self._lab, "a lease is waited for before"
        with contextlib.ExitStack() as stack:
            try:
                opened = stack.enter_context(self._lab.session(self.number, wait_s))
            except DeadlineError as error:
                if not self._wanted.reservation:
                    raise
                raise UnavailableError(
                    f"all boards of reservation {self._wanted.reservation} are in use",
                    error.why,
                    "run the command again when the one that has them has ended: farm lab boards",
                ) from error
            self._cuts[opened.board] = opened.stream.cut
            try:
                yield opened
            finally:
                self._cuts.pop(opened.board, None)

    def end(self) -> None:
        """Have the lease given back; `join` waits until it is."""
        self._stop.set()

    def join(self) -> None:
        """Wait until the lease is given back, as long as that may take."""
        self._thread.join(_END_S)

    def blame(self, session: BoardConnection | None) -> None:
        """Find out why a session failed; with None, no session could be opened.

        Raises UnavailableError if the lease has ended, or the board was at fault; returns if
        neither explains it.
        """
        self.check()
        with contextlib.suppress(LinkError, OSError):
            assert self._lab
            with self._lab.client() as client, register_wait_breaker(client.cut):
                lease = client.ask("lease", lease=self.number)["lease"]
                self._ensure_active(lease)
                lost = {**lease["lost"]}
                if session and session.board not in lost:
                    told = client.ask(
                        "session-end",
                        lease=self.number,
                        match_key=session.match_key,
                    )["session"]
                    if told and told["fault"]:
                        lost[session.board] = told["fault"]
                        lease = client.ask("lease", lease=self.number)["lease"]
                self._lost = lease["lost"]
                failed = session.board if session else next(iter(lost), "")
                if failed in lost:
                    others = [one for one in lease["boards"] if one not in lost]
                    now = f"the lease has {', '.join(others)} now" if others else ""
                    raise UnavailableError(
                        f"the board {failed} failed",
                        f"{lost[failed]}{'; ' if now else ''}{now}",
                        "the model is not to blame: run the command again",
                    )

    def _all_lost(self) -> dict[str, str]:
        """Return the boards of the lease, with the reasons, if all of them are lost."""
        self.check()
        if not self._lost:
            return {}
        assert self._lab
        try:
            with self._lab.client() as client:
                lease = client.ask("lease", lease=self.number)["lease"]
        except LinkError:  # a server that is started again does not end the lease
            return {}
        self._ensure_active(lease)
        self._lost = lease["lost"]
        lost = {one: lease["lost"][one] for one in lease["boards"] if one in lease["lost"]}
        return lost if len(lost) == len(lease["boards"]) else {}

    def _pause(self, seconds: float) -> None:
        """Wait. Raises LinkError if the work of this thread is ended meanwhile."""
        broken = threading.Event()
        with register_wait_breaker(broken.set):
            if broken.wait(seconds):
                raise LinkError("the wait for a board was ended", "", "")

    def is_due(self) -> bool:
        """Return whether it is time to let others have the board, between two sessions."""
        assert self._lab
        try:
            with self._lab.client() as client:
                lease = client.ask("lease", lease=self.number)["lease"]
                if lease["ends_at"] - time.time() < self._wanted.for_s / 2:
                    return True
                if self._wanted.rank != _GIVES_WAY:
                    return False
                others = client.ask("leases")["leases"]
        except (FarmError, OSError):  # whoever opens the next session is told
            return False
        return any(
            one["state"] == "queued" and one["kind"] == lease["kind"]
            for one in others
            if one["owner"] != lease["owner"]
        )

    def _run(self) -> None:
        try:
            with self._reach() as lab:
                self._lab = lab
                self._keep(lab)
        except FarmError as error:
            self._error = error
        except Exception as exc:  # it would be lost in this thread
            self._error = InternalError(f"{type(exc).__name__}: {exc}", "in a lease's thread")
        finally:
            self._settled.set()

    def _keep(self, lab: LabAccess) -> None:
        client = lab.client()
        try:
            lease = self._granted(client)
            if lease is None:
                return
            self._settled.set()
            client = self._beat(lab, client)
        finally:
            client.close()
            self._give_back(lab)

    def _give_back(self, lab: LabAccess) -> None:
        """End the lease, by a connection of its own: the server may have been started again.

        That of a reservation is there for other commands, too.
        """
        if self.number and not self._wanted.reservation:
            with contextlib.suppress(DeviceError, UsageError, OSError), lab.client() as client:
                client.ask("end", lease=self.number)

    def _granted(self, client: LabClient) -> dict[str, Any] | None:
        """Return the lease once it has its board; None if it is no longer wanted."""
        wanted = self._wanted
        if wanted.reservation:
            return self._granted_reserved(client)
        request = {
            "kind": wanted.kind or wanted.kind_among(client.boards()),
            "board": wanted.board,
            "tags": list(wanted.tags),
            "for_s": wanted.for_s,
            "class": wanted.rank,
            "wait_s": wanted.wait_s,
            "heartbeat_s": HEARTBEAT_S,
            "labels": dict(wanted.labels),
            "nonce": secrets.token_hex(8),
        }
        lease: dict[str, Any] = client.ask("request", **request)["lease"]
        self.number, said = int(lease["lease"]), ""
        while lease["state"] == "queued" and not self._stop.is_set():
            queue = lease["queue"]
            words = f"{queue['place']}. in the lab's queue: {queue['reason']}"
            if words != said:
                self._say(said := words)
            with contextlib.suppress(DeviceError):  # it has just ended: the next answer tells how
                client.ask("heartbeat", lease=self.number)
            lease = client.ask("wait", lease=self.number, timeout_s=_QUEUE_S)["lease"]
        if self._stop.is_set():
            return None
        self._ensure_active(lease)
        return lease

    def _granted_reserved(self, client: LabClient) -> dict[str, Any] | None:
        """Return the lease of a reservation once it has boards; None if it is no longer wanted."""
        lease, said = ask_for_reserved(client, self._wanted), ""
        self.number, patience = int(lease["lease"]), Deadline(self._wanted.wait_s)
        while lease["state"] == "queued" and not self._stop.is_set():
            words = f"reservation {self._wanted.reservation}: {lease['queue']['reason']}"
            if words != said:
                self._say(said := words)
            if patience.expired:
                raise UnavailableError(
                    f"reservation {self._wanted.reservation} had no board within "
                    f"{self._wanted.wait_s:.0f} s",
                    lease["queue"]["reason"],
                    "wait longer with the option wait_s, or see: farm lab reservations",
                )
            lease = client.ask("wait", lease=self.number, timeout_s=_QUEUE_S)["lease"]
        if self._stop.is_set():
            return None
        self._ensure_active(lease)
        _ensure_wanted(client, self._wanted, lease)
        return lease

    def _ensure_active(self, lease: Mapping[str, Any]) -> None:
        if lease["state"] == "timed out" and not self._wanted.reservation:
            raise UnavailableError(
                f"the lab had no board within {self._wanted.wait_s:.0f} s",
                lease["why"],
                "wait longer with the option wait_s, or see who has the boards: farm lab leases",
            )
        if lease["state"] != "active":
            why = f"{lease['state']}{': ' if lease['why'] else ''}{lease['why']}"
            raise UnavailableError(f"lease {self.number} has ended", why, "run the command again")

    def _beat(self, lab: LabAccess, client: LabClient) -> LabClient:
        """Tell the lab that one lives, until the lease is no longer wanted, or has ended.

        A server that is started again is asked again. Returns the last connection to it.
        """
        away = Deadline(AWAY_S)
        while not self._stop.wait(_BEAT_S if away.remaining > AWAY_S / 2 else _QUEUE_S):
            try:
                self._cut_lost(client.ask("heartbeat", lease=self.number)["lease"])
                away = Deadline(AWAY_S)
            except LinkError:
                client.close()
                if away.expired:
                    raise
                with contextlib.suppress(LinkError):
                    client = lab.client()
            except DeviceError as error:
                raise UnavailableError(error.what, error.why, "run the command again") from error
        return client

    def _cut_lost(self, lease: Mapping[str, Any]) -> None:
        """End the sessions with boards that the lab has given up: nothing would come any more."""
        self._lost = lease["lost"]
        for board, cut in list(self._cuts.items()):
            if board in self._lost:
                cut()


class LeasePool:
    """The leases of this process: one that is no longer used is kept for a moment for the next."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._lock = threading.RLock()  # a signal may end all leases in the middle of `take`
        self._idle: dict[Any, list[tuple[HeldLease, float]]] = {}
        self._all: set[HeldLease] = set()

    def take(self, key: Any, made: Callable[[], HeldLease]) -> HeldLease:
        """Return a lease under a key that is not in use, or else a new one."""
        with self._lock:
            waiting = self._idle.get(key, [])
            while waiting:
                held, _ = waiting.pop()
                if held.usable:
                    return held
            held = made()
            self._all = {one for one in self._all if one.is_alive} | {held}
            return held

    def put(self, key: Any, held: HeldLease) -> None:
        """Put a lease back: it is given back to the lab unless it is taken again soon."""
        if not held.usable:
            held.end()
            return
        with self._lock:
            self._idle.setdefault(key, []).append((held, time.monotonic()))
        timer = threading.Timer(self._linger_s, self._sweep, [key, held])
        timer.daemon = True
        timer.start()

    def give_way(self, key: Any) -> None:
        """Give back the leases under a key that are not in use, where others should have them."""
        with self._lock:
            waiting = [held for held, _ in self._idle.get(key, []) if held.usable]
        for held in waiting:
            if held.is_due():
                held.end()
                held.join()

    def end_all(self) -> None:
        """Give all leases back, those in use, too."""
        with self._lock:
            ending, self._all = self._all, set()
            self._idle.clear()
        for held in ending:
            held.end()
        for held in ending:
            held.join()

    def _sweep(self, key: Any, held: HeldLease) -> None:
        """Give a lease back that has been idle for long enough."""
        with self._lock:
            waiting = self._idle.get(key, [])
            due = time.monotonic() - self._linger_s + _STEP_S
            if not any(one is held and since <= due for one, since in waiting):
                return
            self._idle[key] = [(one, since) for one, since in waiting if one is not held]
        held.end()
