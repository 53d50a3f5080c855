"""The ways to a lab: its Unix socket on this machine, or its door, by SSH."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from farm import store
from farm.config.urls import parse_lab_door_url
from farm.errors import LinkError, UsageError
from farm.lab_client.control_client import SOCKET, LabClient, connect_unix_socket
from farm.lab_client.leasing import BoardConnection, LabAccess
from farm.processes.cancellation import register_wait_breaker
from farm.prompts import Ask, answer_nothing
from farm.rpc.blocking_connection import BlockingConnection
from farm.transports.lab.board_handover import MOST_LINE_BYTES, parse_board_head
from farm.transports.lab.door import HEAD_S, SshLab
from farm.types import Device

LOGIN_S = 60.0


def is_local(device: Device) -> bool:
    """Return whether a device's lab is that of this machine."""
    return not device.url.startswith("lab://")


def ssh_url(device: Device) -> str:
    """Return the url of the SSH server that is the door of a device's lab."""
    return f"ssh://{device.url.removeprefix('lab://').partition('/')[0]}"


def reach_lab(
    device: Device, ask: Ask = answer_nothing, limit_s: float = LOGIN_S
) -> AbstractContextManager[LabAccess]:
    """Reach the lab of a device. Raises FarmError."""
    if is_local(device):
        return contextlib.nullcontext(LocalLab(socket_path()))
    return SshLab(device.name, ssh_url(device), ask, limit_s)


def reach_lab_at_door(url: str, ask: Ask = answer_nothing) -> AbstractContextManager[LabAccess]:
    """Reach the lab behind a door, lab://[user@]host[:port]. Raises UsageError."""
    try:
        parse_lab_door_url(url)
    except ValueError as exc:
        raise UsageError(f"{url} is no door of a lab", str(exc), "lab://farm@HOST") from exc
    return SshLab("the lab", f"ssh://{url.removeprefix('lab://').rstrip('/')}", ask, LOGIN_S)


def socket_path() -> Path:
    """Return the control socket of this machine's lab: $FARM_LAB, or that of this user's server."""
    named = os.environ.get("FARM_LAB")
    return Path(named) if named else store.user_data_dir() / "lab" / SOCKET


class LocalLab:
    """The lab of this machine, by its Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def client(self) -> LabClient:
        """Open a connection for questions. Raises LinkError."""
        return LabClient(self._path)

    @contextlib.contextmanager
    def session(self, lease: int, wait_s: float) -> Iterator[BoardConnection]:
        """Open a session with an idle board of a lease. Raises FarmError."""
        with contextlib.closing(connect_unix_socket(self._path)) as control:
            control.settimeout(wait_s + HEAD_S)
            with register_wait_breaker(partial(control.shutdown, socket.SHUT_RDWR)):
                control.sendall(_line({"do": "board", "lease": lease, "wait_s": wait_s}))
                data, descriptors = b"", []
                while not data.endswith(b"\n"):
                    piece, found, _, _ = socket.recv_fds(control, MOST_LINE_BYTES, 1)
                    if not piece or len(data) > MOST_LINE_BYTES:
                        raise LinkError("the lab server hung up", f"at {self._path}", "try again")
                    data += piece
                    descriptors += found
            head = parse_board_head(data)
            with socket.socket(fileno=descriptors[0]) as board:
                yield BoardConnection(head.board, head.match_key, board, BlockingConnection(board))


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode() + b"\n"
