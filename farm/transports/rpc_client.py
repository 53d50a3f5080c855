"""Open sessions with servers of TVM's RPC, by farm's own client (see farm/rpc).

A session waits in the thread that opened it; that thread's `Cancellation` breaks it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from farm.errors import DeadlineError, DeviceError, LinkError
from farm.processes.cancellation import register_wait_breaker
from farm.processes.deadline import Deadline
from farm.rpc.answer_filter import MOST_RETURN_BYTES
from farm.rpc.blocking_connection import BlockingConnection, run_nonsuspending_coroutine
from farm.rpc.blocking_session import BlockingSession
from farm.rpc.errors import ProtocolError, RemoteError
from farm.rpc.handshake import HandshakeError
from farm.rpc.session import Session
from farm.rpc.session_opening import open_session
from farm.rpc.stream_protocols import Stream, StreamBeforeGreeting
from farm.types import Device

OPENING_S = 15.0  # for a server's first answer after its greeting: that the session is open
STARTING_S = 30.0  # for the first answer of an agent that a board's shell has been told to start
_PROBE_S, _PROBES = 5, 4  # TCP keep-alive: a connection ends after 20 s of silence
_CONNECT_S = 20.0
_OVERDUE_S = 10.0  # after a session's deadline, at which the server itself ends it


class RPCError(Exception):
    """The text of an error of a board, under the name that TVM's client gives it."""


@contextlib.contextmanager
def session_with_server(
    device: Device,
    host: str,
    port: int,
    key: str,
    timeout_s: float,
    greeting_s: float | None,
) -> Iterator[BlockingSession]:
    """Yield a session with the server at an address, which ends it after `timeout_s` seconds.

    A server that serves another client greets only after that session has ended. `greeting_s`
    limits this wait; None allows as long as the session itself may last.

    Raises DeviceError if the server's handshake is wrong or the board sends anything but answers,
    DeadlineError if the server does not greet in time, and RPCError for what the board reports and
    for a connection that ends.
    """
    with socket.create_connection((host, port), timeout=_CONNECT_S) as board:
        set_tcp_keepalive_and_user_timeout(board)
        connection = BlockingConnection(board)
        with session_over_connection(device, connection, key, timeout_s, greeting_s) as opened:
            yield opened


@contextlib.contextmanager
def session_over_connection(
    device: Device,
    connection: StreamBeforeGreeting,
    key: str,
    timeout_s: float,
    greeting_s: float | None,
) -> Iterator[BlockingSession]:
    """Yield a session by an open connection to a server, as `session_with_server` does.

    No method of `connection` suspends.
    """
    deadline = Deadline(timeout_s + _OVERDUE_S)
    greeting = Deadline(deadline.seconds if greeting_s is None else greeting_s)
    with register_wait_breaker(connection.cut), _translated(device):
        with translate_greeting_errors(device, greeting_s):
            opening = open_session(
                connection,
                device.name,
                f"{key} -timeout={timeout_s}",
                greeting=greeting,
                opening_s=OPENING_S,
            )
            try:
                opened = run_nonsuspending_coroutine(opening)
            except DeadlineError as exc:
                raise session_aborted_error(
                    device, f"nothing for {OPENING_S:.0f} s after its greeting"
                ) from exc
        with _blocking(device, opened, deadline) as blocking:
            yield blocking


@contextlib.contextmanager
def session_over_streams(
    device: Device,
    connection: Stream,
    timeout_s: float,
) -> Iterator[BlockingSession]:
    """Yield a session with an agent by its standard streams, without a handshake.

    No method of `connection` suspends. Raises as `session_with_server` does.
    """
    with register_wait_breaker(connection.cut), _translated(device):
        opened = run_nonsuspending_coroutine(_over(connection, device.name))
        with _blocking(device, opened, Deadline(timeout_s + _OVERDUE_S)) as blocking:
            yield blocking


async def _over(connection: Stream, name: str) -> Session:
    opened = Session(connection, name, MOST_RETURN_BYTES)
    try:
        await opened.open(Deadline(STARTING_S))
    except DeadlineError as exc:
        raise DeadlineError(
            f"the agent on {name} does not answer",
            f"nothing came for {STARTING_S:.0f} s after the board's shell was told to start it",
            "look what keeps the board busy, or what its shell does when it starts",
        ) from exc
    return opened


@contextlib.contextmanager
def _blocking(device: Device, opened: Session, deadline: Deadline) -> Iterator[BlockingSession]:
    blocking = BlockingSession(opened, device.name, deadline)
    try:
        yield blocking
    finally:
        blocking.close()


@contextlib.contextmanager
def _translated(device: Device) -> Iterator[None]:
    """Give the errors of a session the form that `rpc_errors` and the transports expect."""
    try:
        yield
    except ProtocolError as exc:
        raise session_aborted_error(device, exc.reason) from exc
    except RemoteError as exc:
        raise RPCError(exc.message) from exc
    except LinkError as exc:
        raise RPCError(f"Connection closed: {exc.why or exc.what}") from exc
    except DeadlineError as exc:
        raise DeadlineError(
            exc.what, exc.why, exc.fix or "give it longer with --deadline SECONDS"
        ) from exc


def set_tcp_keepalive_and_user_timeout(sock: socket.socket) -> None:
    """Make a connection fail after 20 s without acknowledgement; by default that takes hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_S),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _PROBE_S * _PROBES * 1000),
    ):
        if hasattr(socket, option):  # not available on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def session_aborted_error(device: Device, reason: str) -> DeviceError:
    """Return the error for a session that was ended because the board sent `reason`."""
    return DeviceError(
        f"{device.name} sent what no agent sends: {reason}",
        "a board may only answer; none of this reached the RPC client, and the session is over",
        f"what answers at {device.url} is faulty or hostile: see what runs there before you go on",
    )


@contextlib.contextmanager
def translate_greeting_errors(device: Device, greeting_s: float | None) -> Iterator[None]:
    """Translate the errors of a handshake that a block performs within `greeting_s` seconds."""
    try:
        yield
    except HandshakeError as exc:
        raise DeviceError(
            f"what listens at {device.url} is no server for {device.name}",
            str(exc),
            f"correct `url` of {device.name}, or its option `key` or `key_file`",
        ) from exc
    except TimeoutError as exc:
        within = "" if greeting_s is None else f" within {greeting_s:.0f} s"
        raise DeadlineError(
            f"{device.name} accepted the connection but did not greet{within}",
            "a server of TVM's RPC greets at once, unless it serves another client",
            f"wait for the other session to end, or see what listens there: {device.url}",
        ) from exc
