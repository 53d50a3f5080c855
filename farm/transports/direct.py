"""`rpc://host:port`: an agent, or TVM's own RPC server, at an address."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.asking import Ask
from farm.transports import State
from farm.transports.contract import start_command
from farm.transports.rpc_client import connect
from farm.types import Device

_PROBE_S = 3.5  # a lossy network may lose the first two packets, which are sent again after 1 and 3 s (RFC 6298)


@contextlib.contextmanager
def open(device: Device, agent: Path | None, scratch: Path, timeout_s: float, ask: Ask) -> Iterator[Any]:  # noqa: A001, ARG001
    """Connect. The key, where the server wants one, is the device's option `key`."""
    host, port = address(device)
    probe(host, port)
    yield connect(host, port, str(device.options.get("key", "")), timeout_s), None


def state(device: Device) -> State:
    """Ready if something listens at the address."""
    host, port = address(device)
    try:
        probe(host, port)
    except OSError as exc:
        return State("offline", False, f"{host}:{port}: {exc.strerror or exc}", f"start the agent on the board: {start_command(device)}")
    return State("ready", True)


def address(device: Device) -> tuple[str, int]:
    """Host and port of the device's url."""
    parts = urlsplit(device.url)
    return parts.hostname or "", parts.port or 9090


def probe(host: str, port: int) -> None:
    """Raises OSError, within a few seconds, where nobody listens: TVM's client would try for a minute."""
    with socket.create_connection((host, port), timeout=_PROBE_S):
        pass
