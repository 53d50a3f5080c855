"""`exec:[name]`: what a command runs a shell in, such as the container of `docker exec -i NAME`.

The device's option `command` is put in front of `sh -c SCRIPT`. farm installs its agent by such
shells, and the agent communicates on the standard streams of one: no port is opened.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import DeadlineError, DeviceError, FarmError, LinkError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline
from farm.processes.output_end import OutputEnd
from farm.prompts import Ask
from farm.rpc.blocking_connection import BlockingConnection
from farm.transports import board_scripts
from farm.transports.device_availability import DeviceAvailability
from farm.transports.rpc_client import session_over_streams
from farm.transports.rpc_errors import (
    agent_exit_in_words,
    session_deadline_error,
    session_ended_error,
    translate_error,
)
from farm.transports.shell_board import ShellBoard, communicate_with_script
from farm.types import Device

if TYPE_CHECKING:
    from subprocess import Popen

_STATE_S = 10.0
_QUICK_S = 30.0
_END_S = 1.5  # time for the agent, and so for the command, to end by itself
# The first line of a script's input comes back if a shell runs, has that input, and has no terminal
_WORD = "hello"
_HEAR = 'IFS= read -r heard; tell heard "$heard"\n'
_HEARD = "farm:heard="


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,
    scratch: Path,  # noqa: ARG001
    timeout_s: float,
    ask: Ask,  # noqa: ARG001
    greeting_s: float | None,  # noqa: ARG001
) -> Iterator[Any]:
    """Start the agent by the command, connect, and end it when the block ends.

    If the session breaks, the error says whether what the command reaches or the agent has gone.
    """
    if agent is None:
        there = probe_state(device)
        raise DeviceError(
            f"{device.name} is {there.word}", there.why or "it has no agent", there.fix
        )
    deadline, log = Deadline(timeout_s), OutputEnd()
    arguments, _ = (board := CommandBoard(device, deadline)).start_arguments(agent)
    with board.channel(board_scripts.START, arguments, log) as (sock, child):
        try:
            with session_over_streams(device, BlockingConnection(sock), timeout_s) as session:
                yield session, None
        except FarmError:
            raise
        except Exception as exc:
            if isinstance(translate_error(device, exc), (LinkError, DeadlineError)):
                raise _cause(device, child, log, deadline) from exc
            raise


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` if the command runs a shell now."""
    if device.profile.agent is None:
        return DeviceAvailability(
            "unavailable",
            False,
            f"profile {device.profile.name} has no native agent",
            "reach the board by rpc:// or tracker://",
        )
    try:
        CommandBoard(device, Deadline(_STATE_S)).ask("", [])
    except DeviceError as error:
        return DeviceAvailability(
            error.what.removeprefix(f"{device.name} is "), False, error.why, error.fix
        )
    return DeviceAvailability("emulated" if device.emulated else "ready", True)


@contextlib.contextmanager
def reach_board(device: Device, deadline: Deadline, ask: Ask) -> Iterator[CommandBoard]:  # noqa: ARG001
    """Yield the board of a device with an exec: url."""
    yield CommandBoard(device, deadline)


@dataclass(frozen=True, slots=True)
class CommandBoard(ShellBoard):
    """A board on which a command of this machine runs a shell."""

    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        """Run a script to its end; return the values it reported, and all its output under "".

        Raises DeviceError if the command runs no shell, or one that does not get its input as it
        is. The words of the error begin with "NAME is".
        """
        deadline = self.deadline if content else Deadline(min(_QUICK_S, self.deadline.remaining))
        with self.channel(_HEAR + script, arguments, None) as (sock, child):
            try:
                printed = communicate_with_script(sock, f"{_WORD}\n".encode() + content, deadline)
            except TimeoutError as exc:
                raise DeadlineError(
                    f"{self.device.name} is without an answer",
                    f"no end after {deadline.seconds:.0f} s: {self._tried}",
                    f"see whether this ends: {self._tried}; or use --deadline SECONDS",
                ) from exc
            status = subprocesses.wait_for_shell_exit_code(child, _END_S)
        text = printed.decode(errors="replace")
        line = next((one for one in text.splitlines(True) if one.startswith(_HEARD)), None)
        self._check_heard(line, text, status)
        return board_scripts.parse_report(text.replace(line or "", "", 1))

    def channel(
        self, script: str, arguments: Sequence[str], log: OutputEnd | None
    ) -> AbstractContextManager[tuple[socket.socket, Popen[bytes]]]:
        """Return a context in which a script runs, with its streams and the command's process.

        What the script and the command write to stderr goes to `log`. Without one it goes to the
        same socket as the output, and the command ends with all that it has started here.
        """
        words = [*self._command, "sh", "-c", self.command(script, arguments)]
        return _started(
            self.device,
            subprocesses.program_over_socketpair(
                words, stderr=log, both=True, grace_s=_END_S if log else 0.0, own_group=log is None
            ),
        )

    @property
    def _command(self) -> tuple[str, ...]:
        """The device's own command. Raises DeviceError if it is not there."""
        words, name = self.device.command, self.device.name
        if not words:
            raise DeviceError(
                f"{name} is unavailable",
                f"its url {self.device.url} needs a command in its options",
                'for example: options = { command = ["docker", "exec", "-i", "NAME"] }',
            )
        if not subprocesses.first_installed_program(words[0]):
            raise DeviceError(
                f"{name} is unavailable",
                f"there is no program {words[0]!r}, with which its command begins",
                f"install it, or correct `command` of {name}",
            )
        return words

    @property
    def _tried(self) -> str:
        return shlex.join([*self.device.command, "sh", "-c", "echo works"])

    def _check_heard(self, line: str | None, text: str, status: int | None) -> None:
        """Raise DeviceError if a script did not report its first line of input."""
        name = self.device.name
        if line is None:
            how = "did not end" if status is None else f"ended with exit code {status}"
            said = subprocesses.last_lines(text)
            raise DeviceError(
                f"{name} is offline",
                f"its command runs no shell, it {how}{f': {said}' if said else ''}",
                f"see what this does: {self._tried}",
            )
        if "\r" in line:
            raise DeviceError(
                f"{name} is behind a terminal",
                "its command gives the shell a terminal, which changes the bytes that pass",
                f"leave out -t (--tty) in `command` of {name}",
            )
        if line != f"{_HEARD}{_WORD}\n":
            raise DeviceError(
                f"{name} is without input",
                "its command runs a shell, but does not pass its standard input on",
                f"correct `command` of {name}: docker, podman and kubectl exec need -i",
            )


@contextlib.contextmanager
def _started(
    device: Device, process: AbstractContextManager[tuple[socket.socket, Popen[bytes]]]
) -> Iterator[tuple[socket.socket, Popen[bytes]]]:
    """Run the command for the duration of the block. Raises DeviceError if it does not start."""
    with contextlib.ExitStack() as stack:
        try:
            streams = stack.enter_context(process)
        except OSError as exc:
            raise DeviceError(
                f"{device.name} is unavailable",
                f"its command cannot be started: {exc.strerror or exc}",
                f"correct `command` of {device.name}: {shlex.join(device.command)}",
            ) from exc
        yield streams


def _cause(device: Device, child: Popen[bytes], log: OutputEnd, deadline: Deadline) -> FarmError:
    """Return the error that explains why the session is over."""
    name = device.name
    if deadline.expired:
        return session_deadline_error(device, deadline)
    status = subprocesses.wait_for_shell_exit_code(child, _END_S)
    said = subprocesses.last_lines(log.text())
    there = probe_state(device)
    if not there.usable:
        return LinkError(
            f"{name} is {there.word}, in the middle of a session", there.why, there.fix
        )
    return session_ended_error(
        device,
        agent_exit_in_words(device, status),
        said,
        "check the memory that it has (farm devices -v), then run the command again",
    )
