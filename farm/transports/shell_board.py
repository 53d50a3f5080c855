"""Operations on a board by a shell.

Inspect it, install the agent under its digest, start the agent.

The board must have sh and the file tools of every Linux. farm uses one folder there, the
transport's own or the one that the device's options name. It contains agents/DIGEST/farm-agent,
store, work, and farm-agent, a script that starts the agent on the board itself.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import math
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.errors import DeviceError
from farm.processes.deadline import Deadline
from farm.transports import board_architecture, board_scripts
from farm.transports.local import agent_arguments
from farm.types import Device

_ROOM_BYTES = 8 << 20  # required for an agent and a small model
_SPARE_BYTES = 1 << 20
_EXTRA_S = 5  # added to the agent's time limit, so that this side ends the session first
_CANNOT_EXECUTE = "126"  # a shell's exit status if it cannot execute a program
_PIECE = 1 << 16
_MOST_OUTPUT = 1 << 16
_PLACES = "set `store` and `work_dir` in its options"


@dataclass(frozen=True, slots=True)
class ShellBoard(abc.ABC):
    """A board whose shell is reached; how, the classes of the transports say.

    All operations end by the deadline. They raise DeviceError and DeadlineError.
    """

    device: Device
    deadline: Deadline

    @abc.abstractmethod
    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        """Run a script to its end; return the values it reported, and all its output under "".

        `content` is the script's standard input.
        """

    @property
    def preamble(self) -> str:
        """What precedes each command: the transport's own folder, for example."""
        return ""

    def command(self, script: str, arguments: Sequence[str]) -> str:
        """Return the command line that runs a script of board_scripts with its arguments."""
        places = [str(self.device.options.get(option, "")) for option in ("store", "work_dir")]
        return (
            f"{self.preamble}exec sh -c {shlex.quote(board_scripts.HEAD + script)} farm "
            f"{shlex.join([*places, *arguments])}"
        )

    def start_arguments(self, executable: Path, extra_s: int = _EXTRA_S) -> tuple[list[str], str]:
        """Install the agent if necessary.

        Return the arguments of board_scripts.START, and its store.

        The board ends the agent `extra_s` seconds after the deadline.
        """
        seen, _ = self.place(executable)
        command = [
            *self.launcher,
            seen["agent"],
            "--stdio",
            "--work-dir",
            seen["work"],
            "--store",
            seen["store"],
        ]
        command += agent_arguments(self.device)
        seconds = math.ceil(self.deadline.remaining) + extra_s
        return [self._wrapper(seen), str(seconds), *command], seen["store"]

    def place(self, executable: Path, *, proven: bool = False) -> tuple[dict[str, str], int]:
        """Ensure that the agent is on the board; return what `look` returned and the bytes sent.

        An existing file of the right size is taken as intact. With `proven` the board computes its
        digest, and a file that has changed is replaced.
        """
        content = executable.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        seen = self.look(digest)
        there = seen.get("size", "").strip() == str(len(content))
        if there and proven:
            found = self.ask(board_scripts.PROVE, [digest, *self.launcher])
            there = found.get("digest", digest) == digest and "version" in found
            seen["version"] = found.get("version", "")
        if not there:
            self._roomy(seen, len(content) + _SPARE_BYTES)
            seen["version"] = self._put(content, digest)
        if proven:
            self.ask(board_scripts.WRAP, [self._wrapper(seen)])
        return seen, 0 if there else len(content)

    @property
    def launcher(self) -> list[str]:
        """The command that precedes the agent's own.

        Raises DeviceError if its quotes do not close.
        """
        given = str(self.device.options.get("launcher", ""))
        try:
            return shlex.split(given)
        except ValueError as exc:
            raise DeviceError(
                f"the launcher of {self.device.name} is no command: {given}",
                str(exc),
                "close its quotes",
            ) from exc

    def look(self, digest: str = "none") -> dict[str, str]:
        """Return what the board reports about itself and its folders; see board_scripts.LOOK.

        Raises DeviceError if the agent of the device's profile cannot run there: another
        architecture, no folder that can be written, or none from which programs can be executed.
        """
        seen = self.describe(digest)
        self._usable(seen)
        return seen

    def describe(self, digest: str = "none") -> dict[str, str]:
        """Return the same as `look`, even if the board's folders cannot be used."""
        seen = self.ask(board_scripts.LOOK, [digest])
        if "machine" not in seen:
            raise self._without_shell(seen[""])
        if not self.launcher:
            board_architecture.check_agent_runs(
                self.device, board_architecture.architecture_from_probe_output(seen)
            )
        return seen

    def identify(self) -> dict[str, str]:
        """Return what the board is, whatever its device's profile; see board_scripts.IDENTIFY."""
        seen = self.ask(board_scripts.IDENTIFY, [])
        if "machine" not in seen:
            raise self._without_shell(seen[""])
        return seen

    def check_room(self, seen: dict[str, str]) -> str:
        """Return the free disk space as a text, empty if the board does not report it.

        Raises DeviceError if it is too little.
        """
        self._usable(seen)
        self._roomy(seen, _ROOM_BYTES)
        free = board_scripts.parse_whole_number(seen.get("free_kib", ""))
        return "" if free is None else f"{free / 2**20:.1f} GiB"

    def _without_shell(self, printed: str) -> DeviceError:
        what = f"{self.device.name} does not run commands as farm needs them"
        return DeviceError(what, printed[-500:], "give its user a shell such as sh or bash")

    def _usable(self, seen: dict[str, str]) -> None:
        name, refused = self.device.name, seen.get("refused", "")
        if "No space left" in refused or "quota" in refused:
            raise self._full(refused)
        if "ead-only" in refused:
            raise DeviceError(
                f"the folder of farm on {name} is read-only",
                refused,
                f"{_PLACES} to folders it may write, or remount it",
            )
        if refused:
            raise DeviceError(
                f"{name} has no folder for us", refused, f"{_PLACES} to folders it may write"
            )
        if "noexec" in seen:
            raise self._noexec(seen["noexec"] or seen["base"])

    def _full(self, why: str) -> DeviceError:
        return DeviceError(
            f"the disk of {self.device.name} is full",
            why,
            "free space there, or set `store` in its options to a place on another disk",
        )

    def _noexec(self, why: str) -> DeviceError:
        fix = "set `store` in its options to a folder that is not mounted noexec"
        return DeviceError(f"{self.device.name} runs no programs from its folder", why, fix)

    def _roomy(self, seen: dict[str, str], nbytes: int) -> None:
        free = board_scripts.parse_whole_number(seen.get("free_kib", ""))
        if free is not None and free * 1024 < nbytes:
            raise self._full(
                f"{free / 1024:.1f} MiB are free, the agent and its work want {nbytes / 2**20:.1f}"
            )

    def _wrapper(self, seen: dict[str, str]) -> str:
        """Return a script that starts the agent, found relative to the script's own folder.

        The script can be called from any directory.
        """
        store, agent = (_beside(seen[name], seen["base"]) for name in ("store", "agent"))
        launcher = "".join(f"{shlex.quote(word)} " for word in self.launcher)
        return (
            f'#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nexec {launcher}{agent} "$@" '
            f"--store {store}"
        )

    def _put(self, content: bytes, digest: str) -> str:
        """Send the agent to the board; return the version that it prints there."""
        name = self.device.name
        seen = self.ask(board_scripts.PUT, [str(len(content)), digest, *self.launcher], content)
        if "placed" in seen:
            return seen["placed"]
        if "full" in seen:
            raise self._full(seen["full"])
        if "broken" in seen:
            raise DeviceError(
                f"the agent did not arrive whole on {name}", seen["broken"], "run the command again"
            )
        if "refused" in seen:
            status, _, why = seen["refused"].partition(" ")
            why = f"exit code {status}: {why}"
            if status == _CANNOT_EXECUTE and "ermission" in why:
                raise self._noexec(why)
            raise DeviceError(
                f"{name} cannot run the agent for {self.device.profile.agent}",
                why,
                f"correct `profile` (or `launcher`) of {name}",
            )
        raise DeviceError(
            f"the agent could not be put on {name}", seen[""][-500:], "run the command again"
        )


def communicate_with_script(sock: socket.socket, content: bytes, deadline: Deadline) -> bytes:
    """Return what a script prints to a socket, which is its standard input and output.

    `content` is its input. Raises TimeoutError if it does not end by the deadline.
    """
    printed = b""
    sock.settimeout(deadline.remaining or 0.001)
    try:
        for begin in range(0, len(content), _PIECE):
            sock.sendall(content[begin : begin + _PIECE])
        sock.shutdown(socket.SHUT_WR)
    except TimeoutError:
        raise
    except OSError:
        pass  # the script has ended early; its output gives the reason
    with contextlib.suppress(ConnectionResetError):  # it ended before it read all of its input
        while piece := sock.recv(_PIECE):
            printed = (printed + piece)[:_MOST_OUTPUT]
            if deadline.expired:
                raise TimeoutError
            sock.settimeout(deadline.remaining or 0.001)
    return printed


def _beside(path: str, base: str) -> str:
    """Return a path as a shell word, relative to $here if it lies in the folder `base`."""
    inside = path == base or path.startswith(f"{base}/")
    rest = path[len(base) :] if inside else path
    return ('"$here"' if inside else "") + (shlex.quote(rest) if rest else "")
