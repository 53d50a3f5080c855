"""An Android board, on which farm installs and starts the agent by commands of the adb program.

farm's folder there is farm below /data/local/tmp (TMPDIR of adb's shell), or the one that the
device's options name.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.errors import DeadlineError, DeviceError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd
from farm.prompts import Ask
from farm.transports import board_scripts
from farm.transports.adb import adb_program, devices
from farm.transports.adb.devices import UsableDevice
from farm.transports.shell_board import ShellBoard, communicate_with_script
from farm.types import Device

if TYPE_CHECKING:
    from subprocess import Popen

_QUICK_S = 30.0
_END_S = 1.5  # time for the agent, and so for adb, to end by itself
# adbd hangs up when its stream ends. The agent ends with its input, and its shell cleans up after
# it.
_PREAMBLE = 'export XDG_DATA_HOME="${TMPDIR:-/data/local/tmp}"; trap "" HUP; '


@contextlib.contextmanager
def reach_board(device: Device, deadline: Deadline, ask: Ask) -> Iterator[AdbBoard]:  # noqa: ARG001
    """Yield the board of a device with an adb: url."""
    yield AdbBoard(device, deadline, devices.find_device(device))


@dataclass(frozen=True, slots=True)
class AdbBoard(ShellBoard):
    """A board that adb lists as one that runs commands."""

    found: UsableDevice

    @property
    def preamble(self) -> str:
        """The command's own folder, and what it does when the connection ends."""
        return _PREAMBLE

    def start_agent(
        self, executable: Path, log: OutputEnd
    ) -> tuple[AbstractContextManager[tuple[socket.socket, Popen[bytes]]], str]:
        """Return a context with the agent's streams and adb's process, and the agent's store.

        The agent is installed on the board if necessary. What it and adb say goes to `log`.
        """
        arguments, store = self.start_arguments(executable, 0)
        return self.channel(board_scripts.START, arguments, log), store

    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        """Run a script to its end; return the values it reported, and all its output under ""."""
        deadline = self.deadline if content else Deadline(min(_QUICK_S, self.deadline.remaining))
        try:
            with self.channel(script, arguments, None) as (sock, child):
                printed = communicate_with_script(sock, content, deadline)
                status = subprocesses.wait_for_shell_exit_code(child, _END_S)
        except TimeoutError as exc:
            what = f"{self.device.name} does not get done with what it was asked"
            fix = "look what keeps it busy, or use --deadline SECONDS"
            raise DeadlineError(what, f"no end after {deadline.seconds:.0f} s", fix) from exc
        seen = board_scripts.parse_report(printed.decode(errors="replace"))
        if len(seen) == 1 and status:
            devices.find_device(self.device)  # the reason, where the server knows it
            if seen[""].startswith(("error:", "adb:")):
                raise DeviceError(
                    f"adb runs no command on {self.device.name}",
                    seen[""].strip()[-500:],
                    f"farm doctor --device {self.device.name}",
                )
        return seen

    def channel(
        self, script: str, arguments: Sequence[str], log: OutputEnd | None
    ) -> AbstractContextManager[tuple[socket.socket, Popen[bytes]]]:
        """Return a context in which a script runs, with its standard streams and adb's process.

        What the script and adb write to stderr goes to `log`, or to the same socket as the output.
        """
        adb_program.ensure_server()
        words = [
            adb_program.adb_program(),
            "-s",
            self.found.serial,
            "shell",
            "-T",
            self.command(script, arguments),
        ]
        return subprocesses.program_over_socketpair(words, stderr=log, both=True, grace_s=_END_S)
