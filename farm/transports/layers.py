"""What a device is reached through, layer by layer, each with a check: for the doctor, who names the first that does not hold.

A check returns what it found, in words, and raises a FarmError, or any error of a socket, where the layer does not hold.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

from farm import transports
from farm.asking import Ask, nobody
from farm.deadline import Deadline
from farm.errors import DeviceError
from farm.transports import direct
from farm.types import Device

Layer = tuple[str, Callable[[], str]]


def layers(device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask = nobody) -> Iterator[Layer]:
    """The layers below a session, the lowest first. What a check opens is closed by the stack."""
    if device.on_this_machine:
        yield "this machine", lambda: _usable(device)
    elif device.scheme == "ssh":
        yield from _ssh(device, stack, deadline, ask)
    else:
        host, port = direct.address(device)
        yield "name", lambda: _resolved(host, port)
        yield "port", lambda: _usable(device)


def _ssh(device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask) -> Iterator[Layer]:
    from farm.transports.ssh_board import Board
    from farm.transports.ssh_config import route
    from farm.transports.ssh_login import logged_in

    found = []

    def logs_in() -> str:
        found.append(stack.enter_context(logged_in(device.name, hops, deadline, ask)))
        key = found[0].get_transport().get_remote_server_key()
        return f"as {hops[-1].user}, the host key is known ({key.fingerprint})"

    def looks() -> str:
        seen = Board(found[0], device, deadline).look()
        free = f", {int(seen['free_kib']) / 2**20:.1f} GiB free in {seen['store']}" if seen.get("free_kib", "").isdigit() else ""
        return f"{seen['machine']}, {seen['bits'] or '?'}-bit programs{free}"

    hops = route(device.url)
    yield "name", lambda: _resolved(hops[0].host, hops[0].port)
    yield "port", lambda: _usable(device)
    yield "host key, login", logs_in
    yield "board", looks


def _resolved(host: str, port: int) -> str:
    addresses = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return f"{host} is {', '.join(addresses)}"


def _usable(device: Device) -> str:
    there = transports.state(device)
    if not there.usable:
        raise DeviceError(f"{device.name} is {there.word}", there.why, there.fix)
    return there.word
