"""A lab behind its door: channels of SSH, each with one of the two commands that the door has.

sshd lets a connection have so many channels (MaxSessions, usually 10) that a lab of several boards
needs more than one connection. One that has broken is replaced by the next channel: a laptop that
changes its network finds its leases again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from farm.errors import LinkError
from farm.lab_client.control_client import LabClient
from farm.lab_client.leasing import BoardConnection
from farm.processes.cancellation import register_wait_breaker
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports.lab.board_handover import MOST_LINE_BYTES, parse_board_head

_CHANNEL_S = 10.0
_MOST_CHANNELS = 8  # of one connection
_ASK_FOR_A_WAY_IN = (
    "send your public key, such as ~/.ssh/id_ed25519.pub, to the lab's administrator, who lets you "
    "in: farm lab user add NAME --key FILE"
)
HEAD_S = 30.0  # beyond the wait for a board, for the line about it


@dataclass(slots=True)
class _Connection:
    """A connection that is logged in, and its channels."""

    client: Any
    stack: contextlib.ExitStack
    channels: list[Any] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        transport = self.client.get_transport()
        return transport is not None and transport.is_active()

    @property
    def has_room(self) -> bool:
        self.channels = [channel for channel in self.channels if not channel.closed]
        return self.is_alive and len(self.channels) < _MOST_CHANNELS


class SshLab:
    """A lab behind its door; `url` is that of its SSH server."""

    def __init__(self, name: str, url: str, ask: Ask, limit_s: float) -> None:
        self._name, self._url, self._ask, self._limit_s = name, url, ask, limit_s
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()

    def __enter__(self) -> SshLab:
        """Log in. Raises DeviceError, DeadlineError, LinkError."""
        self._connections.append(self._log_in())
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.stack.close()

    def client(self) -> LabClient:
        """Open a connection for questions. Raises LinkError."""
        door = self._url.replace("ssh://", "lab://", 1)
        return LabClient(Path(self._url), self._channel("api"), f"--lab {door}")

    @contextlib.contextmanager
    def session(self, lease: int, wait_s: float) -> Iterator[BoardConnection]:
        """Open a session with an idle board of a lease. Raises FarmError."""
        from farm.transports.ssh.channel_connection import ChannelConnection

        channel = self._channel(f"board {lease}")
        try:
            with register_wait_breaker(channel.close):
                channel.settimeout(wait_s + HEAD_S)
                head = parse_board_head(_read_line(channel))
            stream = ChannelConnection(channel, channel.close)
            yield BoardConnection(head.board, head.match_key, _ChannelSocket(channel), stream)
        finally:
            with contextlib.suppress(OSError, EOFError):
                channel.close()

    def _channel(self, command: str) -> Any:
        """Open a channel that runs a command of the door's. Raises LinkError."""
        import paramiko

        with self._lock:
            connection = self._with_room()
            try:
                channel = connection.client.get_transport().open_session(timeout=_CHANNEL_S)
                connection.channels.append(channel)
                channel.exec_command(command)
            except (paramiko.SSHException, OSError, EOFError, AttributeError) as exc:
                raise LinkError(
                    "the connection to the lab broke",
                    f"{self._url}: {exc}",
                    "run the command again",
                ) from exc
            return channel

    def _with_room(self) -> _Connection:
        """Return a connection that may have another channel, a new one if there is none."""
        for connection in self._connections:
            if not connection.is_alive:
                connection.stack.close()
        self._connections = [one for one in self._connections if one.is_alive]
        if found := next((one for one in self._connections if one.has_room), None):
            return found
        self._connections.append(_in_own_thread(self._log_in))
        return self._connections[-1]

    def _log_in(self) -> _Connection:
        from farm.transports.ssh.config import resolve_hops
        from farm.transports.ssh.connect import log_in_through_hops

        *jumps, door = resolve_hops(self._url)
        hops = (*jumps, replace(door, keys_remedy=_ASK_FOR_A_WAY_IN))
        with contextlib.ExitStack() as stack:
            log_in = partial(log_in_through_hops, self._name, hops, Deadline(self._limit_s))
            client = stack.enter_context(log_in(self._ask))
            return _Connection(client, stack.pop_all())


class _ChannelSocket:
    """A channel with the methods of a socket that is passed on."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def settimeout(self, seconds: float | None) -> None:
        """Limit each wait."""
        self._channel.settimeout(seconds)

    def recv(self, count: int) -> bytes:
        """Return the next bytes; none at the end."""
        data: bytes = self._channel.recv(count)
        return data

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._channel.sendall(data)

    def shutdown(self, how: int) -> None:
        """End one direction, or both: only a channel that is closed wakes who waits for it."""
        if how == socket.SHUT_WR:
            self._channel.shutdown_write()
        else:
            self._channel.close()


def _in_own_thread(work: Callable[[], _Connection]) -> _Connection:
    """Return what a function returns that is called in a thread of its own.

    Others use the connection, too: it does not break when the work of this thread is cancelled.
    """
    with ThreadPoolExecutor(1, "lab-login") as pool:
        return pool.submit(work).result()


def _read_line(channel: Any) -> bytes:
    """Return the first line of a channel, and not a byte more. Raises LinkError."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= MOST_LINE_BYTES:
        try:
            piece = channel.recv(1)
        except TimeoutError as exc:
            raise LinkError("the lab's door does not answer", "", "run the command again") from exc
        if not piece:
            said = channel.recv_stderr(MOST_LINE_BYTES).decode(errors="replace").strip()
            raise LinkError("the lab's door hung up", said, "run the command again")
        line += piece
    return line
