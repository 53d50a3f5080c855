"""The ways to a lab: its Unix socket on this machine, or its door, by SSH."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from farm import store
from farm.config.urls import parse_door
from farm.errors import DeviceError, LinkError, UsageError
from farm.lab_client.client import SOCKET, LabClient, connected, error_of
from farm.lab_client.leasing import BoardSession, Lab
from farm.processes.deadline import Deadline
from farm.prompts import Ask, nobody
from farm.rpc.blocking_connection import BlockingConnection
from farm.types import Device

LOGIN_S = 60.0
_CHANNEL_S = 10.0
_HEAD_S = 30.0  # beyond the wait for a board, for the line about it
_MOST_LINE_BYTES = 1 << 16


def is_local(device: Device) -> bool:
    """Return whether a device's lab is that of this machine."""
    return not device.url.startswith("lab://")


def ssh_url(device: Device) -> str:
    """Return the url of the SSH server that is the door of a device's lab."""
    return f"ssh://{device.url.removeprefix('lab://').partition('/')[0]}"


def reach(
    device: Device, ask: Ask = nobody, limit_s: float = LOGIN_S
) -> AbstractContextManager[Lab]:
    """Reach the lab of a device. Raises FarmError."""
    if is_local(device):
        return contextlib.nullcontext(LocalLab(socket_path()))
    return _by_ssh(device.name, ssh_url(device), ask, limit_s)


def at_door(url: str, ask: Ask = nobody) -> AbstractContextManager[Lab]:
    """Reach the lab behind a door, lab://[user@]host[:port]. Raises UsageError."""
    try:
        parse_door(url)
    except ValueError as exc:
        raise UsageError(f"{url} is no door of a lab", str(exc), "lab://farm@HOST") from exc
    return _by_ssh("the lab", f"ssh://{url.removeprefix('lab://').rstrip('/')}", ask, LOGIN_S)


def socket_path() -> Path:
    """Return the control socket of this machine's lab: $FARM_LAB, or that of this user's server."""
    named = os.environ.get("FARM_LAB")
    return Path(named) if named else store.data_root() / "lab" / SOCKET


class LocalLab:
    """The lab of this machine, by its Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def client(self) -> LabClient:
        """Open a connection for questions. Raises LinkError."""
        return LabClient(self._path)

    @contextlib.contextmanager
    def session(self, lease: int, wait_s: float) -> Iterator[BoardSession]:
        """Open a session with an idle board of a lease. Raises FarmError."""
        with contextlib.closing(connected(self._path)) as control:
            control.settimeout(wait_s + _HEAD_S)
            control.sendall(_line({"do": "board", "lease": lease, "wait_s": wait_s}))
            data, descriptors = b"", []
            while not data.endswith(b"\n"):
                piece, found, _, _ = socket.recv_fds(control, _MOST_LINE_BYTES, 1)
                if not piece or len(data) > _MOST_LINE_BYTES:
                    raise LinkError("the lab server hung up", f"at {self._path}", "try again")
                data += piece
                descriptors += found
            head = _head(data)
            with socket.socket(fileno=descriptors[0]) as board:
                connection = BlockingConnection(board)
                yield BoardSession(head["board"], head["match_key"], connection)


class SshLab:
    """A lab behind its door. `client` is a paramiko.SSHClient that is logged in."""

    def __init__(self, url: str, client: Any) -> None:
        self._url, self._ssh = url, client

    def client(self) -> LabClient:
        """Open a connection for questions. Raises LinkError."""
        return LabClient(Path(self._url), self._channel("api"))

    @contextlib.contextmanager
    def session(self, lease: int, wait_s: float) -> Iterator[BoardSession]:
        """Open a session with an idle board of a lease. Raises FarmError."""
        from farm.transports.ssh.channel_connection import ChannelConnection

        channel = self._channel(f"board {lease}")
        try:
            channel.settimeout(wait_s + _HEAD_S)
            head = _head(_read_line(channel))
            connection = ChannelConnection(channel, channel.close)
            yield BoardSession(head["board"], head["match_key"], connection)
        finally:
            with contextlib.suppress(OSError, EOFError):
                channel.close()

    def _channel(self, command: str) -> Any:
        """Open a channel that runs a command of the door's. Raises LinkError."""
        import paramiko

        transport = self._ssh.get_transport()
        try:
            if transport is None:
                raise EOFError("it is closed")
            channel = transport.open_session(timeout=_CHANNEL_S)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as exc:
            raise LinkError(
                "the connection to the lab broke",
                f"{self._url}: {exc}",
                "run the command again",
            ) from exc
        return channel


@contextlib.contextmanager
def _by_ssh(name: str, url: str, ask: Ask, limit_s: float) -> Iterator[Lab]:
    from farm.transports.ssh.config import route
    from farm.transports.ssh.connect import logged_in

    with logged_in(name, route(url), Deadline(limit_s), ask) as client:
        yield SshLab(url, client)


def _read_line(channel: Any) -> bytes:
    """Return the first line of a channel, and not a byte more. Raises LinkError."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= _MOST_LINE_BYTES:
        try:
            piece = channel.recv(1)
        except TimeoutError as exc:
            raise LinkError("the lab's door does not answer", "", "run the command again") from exc
        if not piece:
            said = channel.recv_stderr(_MOST_LINE_BYTES).decode(errors="replace").strip()
            raise LinkError("the lab's door hung up", said, "run the command again")
        line += piece
    return line


def _head(line: bytes) -> dict[str, str]:
    """Return what the lab says of a board. Raises the error that it has put there instead."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = {}
    if isinstance(body, dict) and "error" in body:
        raise error_of(body["error"])
    match body:
        case {"ok": {"board": str(board), "match_key": str(key)}}:
            return {"board": board, "match_key": key}
    raise DeviceError("the lab's answer is not understood", "", "use the farm of its version")


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode() + b"\n"
