"""Boards of a relay whose sessions go through this process: from outside, by the door of a lab.

A client of TVM asks the relay's tracker for a board, is told a port of loopback and a match key,
connects there and greets with the key. The session with the board is opened when the client asks,
and waits some seconds for it; from then on bytes are passed on, the greeting first. Of what a board
sends, only answers pass: TVM's client would execute anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from farm.errors import DeadlineError, DeviceError, FarmError, LinkError, UsageError
from farm.lab.relay.tracker import HOST, is_same_user_or_root
from farm.lab_client.leasing import (
    BoardConnection,
    BoardSocketLike,
    HeldLease,
    LabAccess,
    WantedBoards,
)
from farm.processes.cancellation import Cancellation, Cancelled, register_wait_breaker
from farm.rpc.answer_filter import AnswerError
from farm.rpc.filtered_session import FilteredSession
from farm.rpc.handshake import MAGIC, MISMATCH, MOST_KEY_BYTES
from farm.tracker.listening import listen_on_first_free_port
from farm.tracker.protocol import Request, granted_answer, refused_answer
from farm.tracker.scheduler import KeyQueue, ServerInfo, Summary

_PICKUP_S = 10.0  # from the answer to a request until the client connects
_GREETING_S = 10.0
_BOARD_S = 60.0  # for a board of a lease that is in another session
_PIECE_BYTES = 1 << 17
_HEAD = struct.Struct("<ii")
_CODE = struct.Struct("<i")
_CLIENT = b"client:"

Say = Callable[[str], None]


class SessionSource(Protocol):
    """The boards behind a relay. Its methods block; another thread may break their waits."""

    def summary(self) -> Mapping[str, KeyQueue]:
        """Return the boards, by their kind. Raises FarmError."""
        ...

    def session(self, kind: str) -> AbstractContextManager[BoardConnection]:
        """Open a session with a board of a kind, as soon as there is one. Raises FarmError."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseSessionSource:
    """The boards of one lease, which somebody else keeps."""

    lab: LabAccess
    number: int
    kind: str
    count: int

    def summary(self) -> Mapping[str, KeyQueue]:
        """Return the boards of the lease."""
        return {self.kind: KeyQueue(self.count, 0)}

    @contextlib.contextmanager
    def session(self, kind: str) -> Iterator[BoardConnection]:
        """Open a session with a board of the lease; wait for one that is in another session."""
        if kind != self.kind:
            raise UsageError(f"the lease is for the kind {self.kind!r}", "", "")
        with contextlib.ExitStack() as stack:
            yield self._opened(stack)

    def _opened(self, stack: contextlib.ExitStack) -> BoardConnection:
        while True:
            with contextlib.suppress(DeadlineError):
                return stack.enter_context(self.lab.session(self.number, _BOARD_S))


@dataclass(frozen=True, slots=True)
class LeasePerSessionSource:
    """All boards of a lab: each session has a lease of its own, made from a pattern."""

    lab: LabAccess
    pattern: Callable[[str], WantedBoards]  # from the kind
    say: Say

    def summary(self) -> Mapping[str, KeyQueue]:
        """Return the lab's boards that are not away."""
        with self.lab.client() as client:
            boards = [one for one in client.boards() if one["use"] != "away"]
            leases = client.ask("leases")["leases"]
        waiting = [one["kind"] for one in leases if one["state"] == "queued"]
        kinds = [one["kind"] for one in boards]
        return {
            kind: KeyQueue(kinds.count(kind), waiting.count(kind)) for kind in dict.fromkeys(kinds)
        }

    @contextlib.contextmanager
    def session(self, kind: str) -> Iterator[BoardConnection]:
        """Lease a board for one session, and open it."""
        held = HeldLease(lambda: nullcontext(self.lab), self.pattern(kind), self.say)
        try:
            held.wait()
            with held.session(_BOARD_S) as board:
                yield board
        finally:
            held.end()
            held.join()


@dataclass(frozen=True, slots=True)
class _Greeted:
    """A client that has connected, and the bytes with which it greeted."""

    connection: socket.socket
    greeting: bytes


@dataclass(slots=True, eq=False)
class _Session:
    """A session that is asked for: its work, and the client that connects for it.

    `opened` is the answer to the request, in the loop of the relay.
    """

    opened: asyncio.Future[bytes]
    work: Cancellation = field(default_factory=Cancellation)
    client: queue.Queue[_Greeted | None] = field(default_factory=queue.Queue)

    def answer(self, answer: bytes | Exception) -> None:
        """Answer the request from another thread, if it is still asked."""

        def set_it() -> None:
            if self.opened.done():
                return
            if isinstance(answer, bytes):
                self.opened.set_result(answer)
            else:
                self.opened.set_exception(answer)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.opened.get_loop().call_soon_threadsafe(set_it)


class ProxiedBoards:
    """`RelayedBoards` for a relay whose sessions go through this process, within a block.

    `say` is told how a session has failed.
    """

    def __init__(self, source: SessionSource, say: Say) -> None:
        self._source, self._say = source, say
        self._listener = listen_on_first_free_port(HOST, [0])
        self._listener.setblocking(True)
        self._waiting: dict[str, _Session] = {}  # by match key, until the client connects
        self._running: dict[_Session, threading.Thread] = {}
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, name="lab-data", daemon=True)

    @property
    def port(self) -> int:
        """Return the port on which sessions are."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> ProxiedBoards:
        """Listen."""
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all sessions, and wait until their boards are given back."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # before: a descriptor that it is about to use is another's then
        self._listener.close()
        with self._lock:
            running = dict(self._running)
        for session in running:
            session.work.cancel()
        for thread in running.values():
            thread.join()

    async def summary(self) -> Summary:
        """Return the boards, all of which are at the port of the sessions."""
        loop = asyncio.get_running_loop()
        try:
            queues = await loop.run_in_executor(None, self._source.summary)
        except FarmError as error:
            raise LinkError(error.what, error.why, error.fix) from error
        servers = [
            ServerInfo(f"server:{kind}", HOST, self.port)
            for kind, found in queues.items()
            for _ in range(found.free)
        ]
        return Summary(queues, servers)

    async def ask(self, request: Request) -> bytes:
        """Open a session with a board of a kind, and say where the client finds it."""
        session = _Session(asyncio.get_running_loop().create_future())
        thread = threading.Thread(
            target=self._run, args=(session, request.key), name="lab-session", daemon=True
        )
        with self._lock:
            self._running[session] = thread
        thread.start()
        try:
            return await session.opened
        except asyncio.CancelledError:
            session.work.cancel()
            raise

    def _run(self, session: _Session, kind: str) -> None:
        """Open a session, wait for its client, and pass bytes on until it ends."""
        try:
            with session.work.in_this_thread(), self._source.session(kind) as board:
                self._serve(session, board)
        except Cancelled:
            pass
        except LinkError as error:
            session.answer(error)
        except FarmError as error:
            session.answer(refused_answer(": ".join(filter(None, (error.what, error.why)))))
            self._say(f"{kind}: {error.what}: {error.why}")
        except Exception as exc:  # it would be lost in this thread
            session.answer(LinkError("a session failed", "", ""))
            self._say(f"{kind}: {type(exc).__name__}: {exc}")
        finally:
            with self._lock:
                self._running.pop(session, None)

    def _serve(self, session: _Session, board: BoardConnection) -> None:
        with self._lock:
            self._waiting[board.match_key] = session
        try:
            session.answer(granted_answer(HOST, self.port, board.match_key))
            with register_wait_breaker(partial(session.client.put, None)):
                client = session.client.get(timeout=_PICKUP_S)
        except queue.Empty:  # it asked, and did not come
            return
        finally:
            with self._lock:
                self._waiting.pop(board.match_key, None)
        if client is None:
            return
        with (
            client.connection as peer,
            register_wait_breaker(partial(_break, peer, board.connection)),
        ):
            try:
                pump_session(peer, board.connection, client.greeting)
            except AnswerError as exc:
                what = f"the board {board.board} sent what no server of TVM's RPC sends"
                fix = "lease another one, and tell the lab's administrator"
                raise DeviceError(what, str(exc), fix) from exc

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(client,), daemon=True).start()

    def _greet(self, client: socket.socket) -> None:
        """Read the greeting of a client, and give it to the session that its key names."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(client)
            client.settimeout(_GREETING_S)
            with contextlib.suppress(OSError, ValueError):
                if not is_same_user_or_root(client):
                    return
                greeting = _greeting(client)
                key = greeting[_HEAD.size :].removeprefix(_CLIENT).split(b" ")[0]
                with self._lock:
                    session = self._waiting.pop(key.decode("utf-8", "replace"), None)
                if session is None:
                    client.sendall(_CODE.pack(MISMATCH))
                    return
                session.client.put(_Greeted(client, greeting))
                stack.pop_all()  # the session closes it


def pump_session(client: socket.socket, board: BoardSocketLike, first: bytes) -> None:
    """Pass bytes between a client and a board until either ends; `first` goes to the board.

    Raises AnswerError, after the end of both, if the board sends what is no answer.
    """
    client.settimeout(None)
    board.settimeout(None)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    board.sendall(first)
    passage = FilteredSession()

    def ask() -> None:
        with contextlib.suppress(AnswerError):
            _pass_on(client, board, lambda data: (passage.from_client(data),))

    up = threading.Thread(target=ask, name="lab-pump", daemon=True)
    up.start()
    try:
        _pass_on(board, client, passage.from_board)
    finally:
        _break(client, board)
        up.join()


def _pass_on(
    source: BoardSocketLike, sink: BoardSocketLike, passing: Callable[[bytes], Iterable[bytes]]
) -> None:
    """Pass bytes on until their source ends."""
    try:
        with contextlib.suppress(OSError, EOFError):
            while data := source.recv(_PIECE_BYTES):
                for part in passing(data):
                    sink.sendall(part)
    finally:
        with contextlib.suppress(OSError, EOFError):
            sink.shutdown(socket.SHUT_WR)


def _break(*connections: BoardSocketLike) -> None:
    """End connections in both directions: what waits for them sees their end. Does not block."""
    for connection in connections:
        with contextlib.suppress(OSError, EOFError):
            connection.shutdown(socket.SHUT_RDWR)


def _greeting(client: socket.socket) -> bytes:
    """Return the greeting of a client of TVM's RPC. Raises ValueError for anything else."""
    head = _exactly(client, _HEAD.size)
    magic, length = _HEAD.unpack(head)
    if magic != MAGIC or not len(_CLIENT) < length <= MOST_KEY_BYTES:
        raise ValueError("what connects is no client of TVM's RPC")
    return head + _exactly(client, length)


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (piece := client.recv(count - len(data))):
            raise ValueError("it hung up")
        data += piece
    return data
