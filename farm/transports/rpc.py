"""`rpc://host:port`: an agent, or TVM's own RPC server, at an address."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.prompts import Ask
from farm.transports.agent.keys import find_local_agent, read_key
from farm.transports.agent.version import agent_start_command
from farm.transports.device_availability import DeviceAvailability
from farm.transports.rpc_client import session_with_server
from farm.types import Device

# A lossy network may drop the first two packets, which are sent again after 1 and 3 s (RFC 6298).
PROBE_S = 3.5


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,  # noqa: ARG001
    scratch: Path,  # noqa: ARG001
    timeout_s: float,
    ask: Ask,  # noqa: ARG001
    greeting_s: float | None,
) -> Iterator[Any]:
    """Connect to the server at the device's address.

    If the server requires a key, it is the device's option `key`, or is read from the file in its
    option `key_file`. An agent that this user has started on this machine with `farm agent` needs
    neither.
    """
    host, port = device_address(device)
    check_port_listens(host, port)
    host, key = resolve_host_and_key(device, host, port)
    with session_with_server(device, host, port, key, timeout_s, greeting_s) as opened:
        yield opened, None


def resolve_host_and_key(device: Device, host: str, port: int) -> tuple[str, str]:
    """Return the host to connect to and the key to present there."""
    if "key_file" in device.options:
        return host, read_key(Path(str(device.options["key_file"])))
    if "key" in device.options:
        return host, str(device.options["key"])
    agent = find_local_agent(host, port)
    return (agent.address, agent.key) if agent else (host, "")


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` if a server listens at the address, else `offline_state`."""
    host, port = device_address(device)
    try:
        check_port_listens(host, port)
    except OSError as exc:
        return offline_state(device, exc)
    return DeviceAvailability("ready", True)


def offline_state(device: Device, exc: OSError) -> DeviceAvailability:
    """Return the state of a device to which no connection can be made."""
    host, port = device_address(device)
    why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
    return DeviceAvailability(
        "offline",
        False,
        f"{host}:{port}: {why or 'timed out'}",
        f"start the agent on the board: {agent_start_command(device)}",
    )


def device_address(device: Device) -> tuple[str, int]:
    """Return the host and port of the device's url."""
    parts = urlsplit(device.url)
    return parts.hostname or "", parts.port or 9090


def check_port_listens(host: str, port: int) -> None:
    """Raise OSError within a few seconds if nothing listens; TVM's client would retry for 60 s."""
    with socket.create_connection((host, port), timeout=PROBE_S):
        pass
