"""Check a connection layer by layer, for `farm doctor`, which reports the first layer that fails.

A check returns its finding as a text. If the layer does not work it raises a FarmError or any
socket error.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from farm import subprocesses, transports
from farm.deadline import Deadline
from farm.errors import DeviceError
from farm.prompts import Ask, nobody
from farm.transports import agent_version, board_architecture, rpc
from farm.transports.local import launcher_of
from farm.transports.shell_board import ShellBoard
from farm.types import Device

Layer = tuple[str, Callable[[], str]]


def layers(
    device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask = nobody
) -> Iterator[Layer]:
    """Yield the layers below the agent, the lowest first.

    Connections that a check opens are closed by `stack`.
    """
    if device.on_this_machine:
        yield "this machine", lambda: _usable(device)
    elif device.scheme == "ssh":
        yield from _ssh(device, stack, deadline, ask)
    elif device.scheme == "adb":
        from farm.transports.adb import checks

        yield from checks.layers(device, deadline)
    else:
        host, port = rpc.address(device)
        yield "name", lambda: _resolved(host, port)
        yield "TCP", lambda: _answers(device, host, port)


def agent_layers(
    device: Device,
    agent: Path | None,
    stack: contextlib.ExitStack,
    deadline: Deadline,
    ask: Ask = nobody,
) -> Iterator[Layer]:
    """Yield the layers of the agent: its executable on the board, and its version.

    `agent` is its executable, which is installed on a board that does not have it. Yields nothing
    for devices whose agent is started by somebody else.
    """
    if agent is None or not device.gets_agent:
        return
    version: list[str] = []

    def is_there() -> str:
        size = f"{agent.stat().st_size / 1e6:.1f} MB"
        if device.on_this_machine:
            command: list[str | Path] = [*launcher_of(device), agent, "--version"]
            version.append(
                subprocesses.run(
                    command, deadline=deadline, what="starting the agent", fix="farm doctor"
                ).strip()
            )
            return f"{agent}, {size}"
        with _shell(device, stack, deadline, ask) as board:
            seen, sent = board.place(agent, proven=True)
        version.append(seen["version"])
        return f"{seen['agent']}, {f'{size} sent' if sent else 'it was there already'}"

    yield "agent binary", is_there
    yield "agent version", lambda: _same_version(device, version[0])


@contextlib.contextmanager
def _shell(
    device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask
) -> Iterator[ShellBoard]:
    """Yield the board of a device that is reached by SSH or adb.

    Connections are closed by `stack`.
    """
    if device.scheme == "adb":
        from farm.transports.adb import board as adb_board

        with adb_board.reached(device, deadline) as board:
            yield board
        return
    from farm.transports.ssh.board import Board
    from farm.transports.ssh.config import route
    from farm.transports.ssh.errors import translated

    client = _login(device, stack, deadline, ask)
    with translated(device.name, route(device.url)[-1]):
        yield Board(device, deadline, client)


def _ssh(
    device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask
) -> Iterator[Layer]:
    from farm.transports.ssh.board import Board
    from farm.transports.ssh.config import route
    from farm.transports.ssh.errors import translated

    found: list[Board] = []
    refused: list[DeviceError] = []
    seen: dict[str, str] = {}

    def knows_key() -> str:
        try:
            client = _login(device, stack, deadline, ask)
        except DeviceError as error:
            if not _is_of_login(error):
                raise
            refused.append(error)
            return "it is known"
        found.append(Board(device, deadline, client))
        return f"it is known, {client.get_transport().get_remote_server_key().fingerprint}"

    def logs_in() -> str:
        if refused:
            raise refused[0]
        return f"as {hops[-1].user}"

    def fits() -> str:
        with translated(device.name, hops[-1]):
            seen.update(found[0].describe())
        return board_architecture.kind_of(seen).words

    def has_room() -> str:
        free = found[0].check_room(seen)
        return f"{free} free in {seen['store']}" if free else seen["store"]

    hops = route(device.url)
    if hops[0].command:  # a ProxyCommand of ssh_config(5)
        yield "way", lambda: f"by {hops[0].command}"
    else:
        yield "name", lambda: _resolved(hops[0].host, hops[0].port)
        yield "TCP", lambda: _answers(device, hops[0].host, hops[0].port)
    yield "host key", knows_key
    yield "login", logs_in
    yield "architecture", fits
    yield "space", has_room


def _login(device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask) -> Any:
    """Return a logged-in paramiko.SSHClient, which `stack` closes."""
    from farm.transports.ssh.config import route
    from farm.transports.ssh.connect import logged_in

    return stack.enter_context(logged_in(device.name, route(device.url), deadline, ask))


def _is_of_login(error: DeviceError) -> bool:
    """Return whether an error was raised after the host key had been checked."""
    from paramiko import AuthenticationException

    cause = error.__cause__
    return isinstance(cause, AuthenticationException) or bool(
        re.search("authentication methods|encrypted|passphrase", str(cause))
    )


def _same_version(device: Device, line: str) -> str:
    """Check the version line that the agent prints, and return it."""
    found = re.search(r"farm-agent (\S+) \(TVM ([^,]+),", line)
    agent_version.check(
        device,
        {
            **agent_version.ours(),
            "agent": found[1] if found else line[:100],
            "tvm": found[2] if found else "",
        },
    )
    return line


def _resolved(host: str, port: int) -> str:
    addresses = dict.fromkeys(
        str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    return f"{host} is {', '.join(addresses)}"


def _answers(device: Device, host: str, port: int) -> str:
    _usable(device)
    return f"{host}:{port} answers"


def _usable(device: Device) -> str:
    there = transports.state(device)
    if not there.usable:
        raise DeviceError(f"{device.name} is {there.word}", there.why, there.fix)
    return there.word
