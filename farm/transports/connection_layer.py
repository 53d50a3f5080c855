"""A layer of a connection for `farm doctor`, and the checks that several transports share."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from farm import transports
from farm.errors import DeviceError
from farm.types import Device


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """A layer of a connection, by the name that is shown.

    `check` returns its finding as a text. If the layer does not work it raises a FarmError or any
    socket error.
    """

    name: str
    check: Callable[[], str]


def check_host_resolves(host: str, port: int) -> str:
    """Return the addresses of a host."""
    addresses = dict.fromkeys(
        str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    return f"{host} is {', '.join(addresses)}"


def check_address_answers(device: Device, host: str, port: int) -> str:
    """Return that the device's address answers."""
    check_device_usable(device)
    return f"{host}:{port} answers"


def check_device_usable(device: Device) -> str:
    """Return the state of a device that can be used. Raises DeviceError for any other."""
    there = transports.probe_state(device)
    if not there.usable:
        raise DeviceError(f"{device.name} is {there.word}", there.why, there.fix)
    return there.word
