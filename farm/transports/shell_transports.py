"""Reach a device by its shell: what the transports that install an agent have in common.

For such a scheme, `_SHELLS` names a module with
    reach_board(device, deadline, ask)
             a context manager that yields the device's ShellBoard, with all errors translated
and `_CHECKS`, if the doctor has checks of its own for what lies below the shell, one with
    connection_layers(device, stack, deadline, ask)
             yield the layers, the lowest first; `stack` closes what they open
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports.connection_layer import LayerCheck
from farm.transports.shell_board import ShellBoard
from farm.types import Device

_SHELLS = {
    "ssh": "farm.transports.ssh.board",
    "adb": "farm.transports.adb.board",
    "exec": "farm.transports.command",
}
_CHECKS = {
    "ssh": "farm.transports.ssh.connectivity_checks",
    "adb": "farm.transports.adb.connectivity_checks",
}


def has_shell(device: Device) -> bool:
    """Return whether the device's scheme is one of those with a shell."""
    return device.scheme in _SHELLS


def reach_board(device: Device, deadline: Deadline, ask: Ask) -> AbstractContextManager[ShellBoard]:
    """Return a context with the board of a device for which `has_shell` is true."""
    board: AbstractContextManager[ShellBoard] = importlib.import_module(
        _SHELLS[device.scheme]
    ).reach_board(device, deadline, ask)
    return board


def connection_layers(
    device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask
) -> Iterator[LayerCheck]:
    """Yield the layers below the agent of a device for which `has_shell` is true."""
    if device.scheme in _CHECKS:
        yield from importlib.import_module(_CHECKS[device.scheme]).connection_layers(
            device, stack, deadline, ask
        )
        return

    def runs_commands() -> str:
        with reach_board(device, deadline, ask) as board:
            free = board.check_room(seen := board.look())
        return f"it runs commands, {free} free in {seen['store']}"

    yield LayerCheck("shell", runs_commands)
