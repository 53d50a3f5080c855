"""The server's part of a session through the door: a board's connection, and its end.

The board is asked for as any client of TVM's asks, with the lease's key, at the server's own
tracker. The connected socket goes to the caller by SCM_RIGHTS. The server keeps a copy as long as
the caller's control connection lasts: with it, it ends the session when the lease ends.

The address is what a board says, which is a stranger: it must not become a way into the network of
the lab. So it is the board's own (see `board_address_check`), or one that lab.toml says; and what
serves there has to answer a wrong key as a server of TVM's RPC does before anybody gets a
connection to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from farm import ownership
from farm.errors import DeadlineError, DeviceError, LinkError, UsageError
from farm.lab import refusals
from farm.lab.door import board_address_check
from farm.lab.entities import Caller, Lease, LeaseState
from farm.rpc import handshake
from farm.tracker.protocol import MAGIC, SUCCESS, Code, frame_message
from farm.transports.rpc_client import set_tcp_keepalive_and_user_timeout

WAIT_S = 60.0  # for a board of the lease that is in another session
_CONNECT_S = 10.0
_LENGTH = struct.Struct("<i")
_MOST_ANSWER_BYTES = 1 << 16
_WRONG_KEY = b"client:a-lab-that-looks"
_RPC_ANSWERS = (handshake.MAGIC, handshake.DUPLICATE, handshake.MISMATCH)


@dataclass(frozen=True, slots=True)
class LabCallbacks:
    """The functions of the lab that a broker calls.

    `lease` returns a lease by its number; `changed` a future that is done when one changes;
    `address` where a board serves, `is_listed` whether lab.toml says so, and `connection` the one
    that it has to the tracker; `tracker` where clients of TVM's find the lab.
    """

    lease: Callable[[int], Lease]
    changed: Callable[[int], asyncio.Future[None]]
    address: Callable[[str], str]
    is_listed: Callable[[str], bool]
    connection: Callable[[str], ownership.SocketLike | None]
    tracker: Callable[[], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class _Offered:
    """A board that waits for one session: its name, where it serves, and the key it expects."""

    name: str
    host: str
    port: int
    match_key: str


class BoardSocketBroker:
    """Hands boards of leases to their owners, and ends their sessions."""

    def __init__(self, lab: LabCallbacks) -> None:
        self._lab = lab

    async def board(
        self,
        number: int,
        wait_s: float,
        caller: Caller,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Give the caller a connection to an idle board of a lease; then watch the lease.

        Returns when the caller hangs up or the lease ends. Raises FarmError before that.
        """
        lease = self._owned(number, caller)
        gone = asyncio.ensure_future(reader.read(1))
        try:
            offered = await _unless_gone(self._offered(lease, min(wait_s, WAIT_S)), gone)
            if offered is None:
                return
            with contextlib.closing(await _connected(offered, lease)) as board:
                body = {
                    "lease": number,
                    "board": offered.name,
                    "match_key": offered.match_key,
                    "ends_at": lease.ends_at,
                }
                writer.transport.set_write_buffer_limits(high=0)
                await writer.drain()  # until the buffer is empty
                _send(writer, {"ok": body}, board)
                await self._watch(lease, gone, writer, board)
        finally:
            gone.cancel()

    async def watch(
        self,
        number: int,
        caller: Caller,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Tell the caller when a lease ends, and when its end moves.

        A lease that has ended lately is answered with its end. Raises FarmError.
        """
        lease = self._granted(number, caller)
        gone = asyncio.ensure_future(reader.read(1))
        try:
            _say(writer, {"ok": {"lease": number, "ends_at": lease.ends_at}})
            await self._watch(lease, gone, writer, None)
        finally:
            gone.cancel()

    def _owned(self, number: int, caller: Caller) -> Lease:
        """Return a lease in force of the caller's. Raises FarmError."""
        lease = self._granted(number, caller)
        if lease.state.ended:
            raise refusals.lease_ended_error(lease)
        return lease

    def _granted(self, number: int, caller: Caller) -> Lease:
        """Return a lease of the caller's that is in force, or was. Raises FarmError."""
        lease = self._lab.lease(number)
        if lease.request.owner != caller.name:
            raise refusals.lease_of_another_error(lease)
        if lease.state is LeaseState.QUEUED:
            raise refusals.lease_without_boards_error(lease)
        return lease

    async def _watch(
        self,
        lease: Lease,
        gone: asyncio.Future[bytes],
        writer: asyncio.StreamWriter,
        board: socket.socket | None,
    ) -> None:
        ends_at = lease.ends_at
        while not gone.done():
            changed = self._lab.changed(lease.number)
            try:
                lease = self._lab.lease(lease.number)
            except UsageError:  # it ended long ago
                return
            if lease.state.ended:
                _say(
                    writer, {"end": f"{lease.state.value}{f' ({lease.why})' if lease.why else ''}"}
                )
                with contextlib.suppress(OSError):
                    await writer.drain()
                if board:
                    with contextlib.suppress(OSError):
                        board.shutdown(socket.SHUT_RDWR)
                return
            if lease.ends_at != ends_at:
                ends_at = lease.ends_at
                _say(writer, {"ok": {"lease": lease.number, "ends_at": ends_at}})
            both: set[asyncio.Future[Any]] = {gone, changed}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def _offered(self, lease: Lease, wait_s: float) -> _Offered:
        """Return a board of the lease, as soon as one is idle. Raises FarmError."""
        try:
            async with asyncio.timeout(wait_s):
                code, answer = await _ask_tracker(self._lab.tracker(), lease.key)
        except TimeoutError as exc:
            raise DeadlineError(
                f"no board of lease {lease.number} became idle",
                f"{', '.join(lease.boards)} had a session for {wait_s:.0f} s",
                "end the other session of the lease, or lease more boards with --count",
            ) from exc
        except (OSError, asyncio.IncompleteReadError, ValueError) as exc:
            raise LinkError("the lab's tracker does not answer", str(exc), "try again") from exc
        lease = self._lab.lease(lease.number)  # another board may be its by now
        match code, answer:
            case int(), [str(host), int() | str() as port, str(match_key)] if code == SUCCESS:
                place = f"{host}:{port}"
                named = (one for one in lease.boards if self._lab.address(one) == place)
                name = next(named, "")
                offered = _Offered(name or lease.boards[0], host, int(port), match_key)
                if why := await self._objection(name, offered):
                    raise _not_its_own(offered, lease, why)
                return offered
        if lease.state.ended:
            raise refusals.lease_ended_error(lease)
        raise DeviceError(
            f"lease {lease.number} gets no board", str(answer)[:200], "farm lab leases"
        )

    async def _objection(self, name: str, offered: _Offered) -> str:
        """Return why the address of an offer is not that of a board; "" if it is."""
        if name and self._lab.is_listed(name):
            return ""
        connection = self._lab.connection(name) if name else None
        if connection is None:
            return "the board has left the lab"
        return await asyncio.to_thread(
            board_address_check.foreign_address_reason, offered.host, offered.port, connection
        )


def _not_its_own(offered: _Offered, lease: Lease, why: str) -> DeviceError:
    """Return the error for a board that offers an address which is not its own."""
    place = f"{offered.host}:{offered.port}"
    return DeviceError(
        f"the board {offered.name} of lease {lease.number} cannot be reached",
        f"{place} is not its own address: {why}",
        "lease another one, and tell the lab's administrator: "
        f'if the address is right, lab.toml has to say it: address = "{place}"',
    )


async def _ask_tracker(place: tuple[str, int], key: str) -> tuple[Any, Any]:
    """Return the tracker's answer to a request for a board of a key."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(MAGIC + frame_message([Code.REQUEST, key, "", 1]))
        await reader.readexactly(len(MAGIC))
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if not 0 < length <= _MOST_ANSWER_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        code, answer = json.loads(await reader.readexactly(length))
        return code, answer
    finally:
        writer.close()


async def _connected(offered: _Offered, lease: Lease) -> socket.socket:
    """Return a connection to a board. Raises DeviceError, also if no RPC server is there."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            with contextlib.closing(await _connection(offered)) as first:
                await _check_rpc(first)
            board = await _connection(offered)
            set_tcp_keepalive_and_user_timeout(board)
            board.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return board
    except (OSError, ValueError) as exc:  # TimeoutError, too
        reason = getattr(exc, "strerror", None) or exc or "it does not answer"
        raise DeviceError(
            f"the board {offered.name} of lease {lease.number} cannot be reached",
            f"{offered.host}:{offered.port}: {reason}",
            "give it back (farm lab end), lease another one, and tell the lab's administrator",
        ) from exc


async def _connection(offered: _Offered) -> socket.socket:
    """Return a connection to the address of an offer. Raises OSError, ValueError."""
    address = ipaddress.ip_address(offered.host)
    if address.is_unspecified or address.is_link_local or address.is_multicast:
        raise ValueError("a board cannot be there")
    board = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
    try:
        board.setblocking(False)
        place = (offered.host, offered.port)
        await asyncio.get_running_loop().sock_connect(board, place)
    except BaseException:
        board.close()
        raise
    return board


async def _check_rpc(connection: socket.socket) -> None:
    """Raise ValueError if what answers at a connection is no server of TVM's RPC."""
    loop = asyncio.get_running_loop()
    greeting = _LENGTH.pack(handshake.MAGIC) + _LENGTH.pack(len(_WRONG_KEY)) + _WRONG_KEY
    await loop.sock_sendall(connection, greeting)
    answer = b""
    while len(answer) < _LENGTH.size:
        data = await loop.sock_recv(connection, _LENGTH.size - len(answer))
        if not data:
            raise ValueError("what is there is no server of TVM's RPC")
        answer += data
    if _LENGTH.unpack(answer)[0] not in _RPC_ANSWERS:
        raise ValueError("what is there is no server of TVM's RPC")


async def _unless_gone(
    work: Coroutine[Any, Any, _Offered], gone: asyncio.Future[bytes]
) -> _Offered | None:
    """Return what a coroutine returns; None as soon as the caller has hung up."""
    task = asyncio.ensure_future(work)
    both: set[asyncio.Future[Any]] = {task, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()


def _send(writer: asyncio.StreamWriter, body: dict[str, Any], passed: socket.socket) -> None:
    """Send a line with a socket beside it: past the writer, whose buffer is empty."""
    own = os.dup(writer.get_extra_info("socket").fileno())
    with socket.socket(fileno=own) as connection:
        line = json.dumps(body).encode() + b"\n"
        try:
            sent = socket.send_fds(connection, [line], [passed.fileno()])
        except OSError as exc:
            raise ConnectionError(str(exc)) from exc
    writer.write(line[sent:])


def _say(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    writer.write(json.dumps(body).encode() + b"\n")
