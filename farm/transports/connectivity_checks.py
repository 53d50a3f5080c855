"""Check a connection layer by layer, for `farm doctor`, which reports the first that fails."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.prompts import Ask, answer_nothing
from farm.transports import connection_layer, rpc, shell_transports
from farm.transports.agent import version as agent_version
from farm.transports.connection_layer import LayerCheck
from farm.transports.local import agent_command_prefix
from farm.types import Device


def connection_layers(
    device: Device, stack: contextlib.ExitStack, deadline: Deadline, ask: Ask = answer_nothing
) -> Iterator[LayerCheck]:
    """Yield the layers below the agent, the lowest first.

    Connections that a check opens are closed by `stack`.
    """
    if device.on_this_machine:
        yield LayerCheck("this machine", partial(connection_layer.check_device_usable, device))
    elif shell_transports.has_shell(device):
        yield from shell_transports.connection_layers(device, stack, deadline, ask)
    elif device.scheme == "lab":
        from farm.transports.lab.connectivity_checks import LabChecks

        yield from LabChecks(device, stack, deadline, ask).layers()
    else:
        host, port = rpc.device_address(device)
        yield LayerCheck("name", partial(connection_layer.check_host_resolves, host, port))
        yield LayerCheck("TCP", partial(connection_layer.check_address_answers, device, host, port))


def agent_layers(
    device: Device,
    agent: Path | None,
    deadline: Deadline,
    ask: Ask = answer_nothing,
) -> Iterator[LayerCheck]:
    """Yield the layers of the agent: its executable on the board, and its version.

    `agent` is its executable, which is installed on a board that does not have it. Yields nothing
    for devices whose agent is started by somebody else.
    """
    if agent is not None and device.gets_agent:
        checks = _AgentChecks(device, agent, deadline, ask)
        yield LayerCheck("agent binary", checks.binary)
        yield LayerCheck("agent version", checks.version)


class _AgentChecks:
    """The checks of an agent; `version` needs that `binary` has passed."""

    def __init__(self, device: Device, agent: Path, deadline: Deadline, ask: Ask) -> None:
        self.device, self.agent = device, agent
        self._deadline, self._ask = deadline, ask
        self._version_line = ""

    def binary(self) -> str:
        """Install the executable if it is not there, and have it print its version."""
        size = f"{self.agent.stat().st_size / 1e6:.1f} MB"
        if self.device.on_this_machine:
            command: list[str | Path] = [
                *agent_command_prefix(self.device),
                self.agent,
                "--version",
            ]
            self._version_line = subprocesses.run_program(
                command, deadline=self._deadline, what="starting the agent", fix="farm doctor"
            ).strip()
            return f"{self.agent}, {size}"
        with shell_transports.reach_board(self.device, self._deadline, self._ask) as board:
            description, sent = board.place(self.agent, proven=True)
        self._version_line = description["version"]
        return f"{description['agent']}, {f'{size} sent' if sent else 'it was there already'}"

    def version(self) -> str:
        """Compare the version that the executable printed with this farm's."""
        return _same_version(self.device, self._version_line)


def _same_version(device: Device, line: str) -> str:
    """Check the version line that the agent prints, and return it."""
    found = re.search(r"farm-agent (\S+) \(TVM ([^,]+),", line)
    agent_version.check_versions(
        device,
        {
            **agent_version.expected_facts(),
            "agent": found[1] if found else line[:100],
            "tvm": found[2] if found else "",
        },
    )
    return line
