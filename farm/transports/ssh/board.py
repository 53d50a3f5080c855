"""A board over SSH, on which farm installs and starts the agent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.errors import DeadlineError
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports import board_scripts
from farm.transports.shell_board import ShellBoard
from farm.transports.ssh.config import resolve_hops
from farm.transports.ssh.errors import translate_errors
from farm.types import Device

_PIECE = 1 << 16
_MOST_OUTPUT = 1 << 16
_QUICK_S = 30.0


@contextlib.contextmanager
def reach_board(device: Device, deadline: Deadline, ask: Ask) -> Iterator[SshBoard]:
    """Yield the board of a device with an ssh:// url, logged in.

    Errors of the connection become FarmErrors. `ask` prompts for passwords.
    """
    from farm.transports.ssh.connect import log_in_through_hops

    hops = resolve_hops(device.url)
    with (
        log_in_through_hops(device.name, hops, deadline, ask) as client,
        translate_errors(device.name, hops[-1]),
    ):
        yield SshBoard(device, deadline, client)


@dataclass(frozen=True, slots=True)
class SshBoard(ShellBoard):
    """A logged-in board.

    `client` is a paramiko.SSHClient.
    """

    client: Any

    def start_agent(self, executable: Path) -> tuple[Any, str]:
        """Start the agent on a channel; return the channel and the folder of the agent's store.

        The channel is the agent's standard streams. The agent is installed on the board if
        necessary.
        """
        arguments, store = self.start_arguments(executable)
        return self.channel(board_scripts.START, arguments), store

    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        """Run a script to its end; return the values it reported, and all its output under ""."""
        deadline = self.deadline if content else Deadline(min(_QUICK_S, self.deadline.remaining))
        channel = self.channel(script, arguments)
        try:
            channel.settimeout(deadline.remaining or 0.001)
            try:
                for begin in range(0, len(content), _PIECE):
                    channel.sendall(content[begin : begin + _PIECE])
            except TimeoutError:
                raise
            except OSError:
                pass  # the script has ended early; its output gives the reason
            channel.shutdown_write()
            channel.set_combine_stderr(True)
            printed = b""
            while (piece := channel.recv(_PIECE)) and not deadline.expired:
                printed = (printed + piece)[:_MOST_OUTPUT]
        except TimeoutError as exc:
            what = f"{self.device.name} does not get done with what it was asked"
            raise DeadlineError(
                what,
                f"no end after {deadline.seconds:.0f} s",
                "look what keeps it busy, or use --deadline SECONDS",
            ) from exc
        finally:
            channel.close()
        return board_scripts.parse_report(printed.decode(errors="replace"))

    def channel(self, script: str, arguments: Sequence[str]) -> Any:
        """Start a script and return the channel with its standard streams."""
        transport = self.client.get_transport()
        channel = transport.open_session(timeout=min(_QUICK_S, self.deadline.remaining) or 0.001)
        channel.exec_command(self.command(script, arguments))
        return channel
