"""What farm does on a board over SSH: look at it, put the agent there under its digest, start it on a channel.

It needs of the board: sh, the file tools that every Linux has, and no more than one folder, ~/.local/share/farm (or what the options
name). In it: agents/DIGEST/farm-agent, store, work, and farm-agent, which starts the agent on the board itself.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.deadline import Deadline
from farm.errors import DeadlineError, DeviceError
from farm.transports import board_kind, ssh_scripts
from farm.transports.agent_process import agent_options
from farm.types import Device

_ROOM_BYTES = 8 << 20  # for an agent and a small model
_SPARE_BYTES = 1 << 20
_PIECE = 1 << 16
_MOST_OUTPUT = 1 << 16
_QUICK_S = 30.0
_EXTRA_S = 5  # for the agent, so that this side's end of the session comes first
_CANNOT_EXECUTE = "126"  # a shell's exit code
_PLACES = "set `store` and `work_dir` in its options"


@dataclass(frozen=True, slots=True)
class Board:
    """A logged-in board. `client` is a paramiko.SSHClient; everything ends with the deadline. Raises DeviceError and DeadlineError."""

    client: Any
    device: Device
    deadline: Deadline

    def start_agent(self, executable: Path) -> tuple[Any, str]:
        """The agent as a running program whose standard streams are the channel, and its store's folder. Provisions the board on demand."""
        seen, _ = self.place(executable)
        command = [*self.launcher, seen["agent"], "--stdio", "--work-dir", seen["work"], "--store", seen["store"]]
        command += agent_options(self.device)
        seconds = math.ceil(self.deadline.remaining) + _EXTRA_S
        return self.channel(ssh_scripts.START, [self._wrapper(seen), str(seconds), *command]), seen["store"]

    def place(self, executable: Path, *, proven: bool = False) -> tuple[dict[str, str], int]:
        """Have the agent on the board under its digest; what `look` has seen, and the bytes sent.

        What is there is taken for whole if its size is right; with `proven` the board reads it, and one that was changed is replaced.
        """
        content = executable.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        seen = self.look(digest)
        there = seen.get("size", "").strip() == str(len(content))
        if there and proven:
            found = self.ask(ssh_scripts.PROVE, [digest, *self.launcher])
            there = found.get("digest", digest) == digest and "version" in found
            seen["version"] = found.get("version", "")
        if not there:
            self._roomy(seen, len(content) + _SPARE_BYTES)
            seen["version"] = self._put(content, digest)
        if proven:
            self.ask(ssh_scripts.WRAP, [self._wrapper(seen)])
        return seen, 0 if there else len(content)

    @property
    def launcher(self) -> list[str]:
        given = str(self.device.options.get("launcher", ""))
        try:
            return shlex.split(given)
        except ValueError as exc:
            raise DeviceError(f"the launcher of {self.device.name} is no command: {given}", str(exc), "close its quotes") from exc

    def look(self, digest: str = "none") -> dict[str, str]:
        """What the board says of itself, and where it keeps what of ours: see the script.

        Raises DeviceError where the agent of its profile cannot be there: another architecture, no folder to write to or to run from.
        """
        seen = self.describe(digest)
        self._usable(seen)
        return seen

    def describe(self, digest: str = "none") -> dict[str, str]:
        """The same, whether its folders can be used or not."""
        seen = self.ask(ssh_scripts.LOOK, [digest])
        if "machine" not in seen:
            raise DeviceError(
                f"{self.device.name} does not run commands as farm needs them", seen[""][-500:], "give its user a shell such as sh or bash"
            )
        if not self.launcher:
            board_kind.check(self.device, board_kind.kind_of(seen))
        return seen

    def check_room(self, seen: dict[str, str]) -> str:
        """How much is free for us; empty where the board does not tell. Raises DeviceError where that is too little to work with."""
        self._usable(seen)
        self._roomy(seen, _ROOM_BYTES)
        free = seen.get("free_kib", "")
        return f"{int(free) / 2**20:.1f} GiB" if free.isdigit() else ""

    def _usable(self, seen: dict[str, str]) -> None:
        name, refused = self.device.name, seen.get("refused", "")
        if "No space left" in refused or "quota" in refused:
            raise self._full(refused)
        if "ead-only" in refused:
            raise DeviceError(f"the folder of farm on {name} is read-only", refused, f"{_PLACES} to folders it may write, or remount it")
        if refused:
            raise DeviceError(f"{name} has no folder for us", refused, f"{_PLACES} to folders it may write")
        if "noexec" in seen:
            raise self._noexec(seen["noexec"] or seen["base"])

    def _full(self, why: str) -> DeviceError:
        return DeviceError(
            f"the disk of {self.device.name} is full", why, "free space there, or set `store` in its options to a place on another disk"
        )

    def _noexec(self, why: str) -> DeviceError:
        fix = "set `store` in its options to a folder that is not mounted noexec"
        return DeviceError(f"{self.device.name} runs no programs from its folder", why, fix)

    def _roomy(self, seen: dict[str, str], nbytes: int) -> None:
        free = seen.get("free_kib", "")
        if free.isdigit() and int(free) * 1024 < nbytes:
            raise self._full(f"{int(free) / 1024:.1f} MiB are free, the agent and its work want {nbytes / 2**20:.1f}")

    def _wrapper(self, seen: dict[str, str]) -> str:
        """A script that finds the agent beside itself, wherever it is called from."""
        store, agent = (seen[name].replace(seen["base"], "$here", 1) for name in ("store", "agent"))
        launcher = "".join(f"{shlex.quote(word)} " for word in self.launcher)
        return f'#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nexec {launcher}"{agent}" "$@" --store "{store}"'

    def _put(self, content: bytes, digest: str) -> str:
        """Send the agent; what it says of its version."""
        name = self.device.name
        seen = self.ask(ssh_scripts.PUT, [str(len(content)), digest, *self.launcher], content)
        if "placed" in seen:
            return seen["placed"]
        if "full" in seen:
            raise self._full(seen["full"])
        if "broken" in seen:
            raise DeviceError(f"the agent did not arrive whole on {name}", seen["broken"], "run the command again")
        if "refused" in seen:
            status, _, why = seen["refused"].partition(" ")
            why = f"exit code {status}: {why}"
            if status == _CANNOT_EXECUTE and "ermission" in why:
                raise self._noexec(why)
            raise DeviceError(
                f"{name} cannot run the agent for {self.device.profile.agent}", why, f"correct `profile` (or `launcher`) of {name}"
            )
        raise DeviceError(f"the agent could not be put on {name}", seen[""][-500:], "run the command again")

    def ask(self, script: str, arguments: Sequence[str], content: bytes = b"") -> dict[str, str]:
        """Run a script to its end; what it told by name, and under "" all that it printed."""
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
                pass  # the script has ended before; what it says tells why
            channel.shutdown_write()
            channel.set_combine_stderr(True)
            printed = b""
            while (piece := channel.recv(_PIECE)) and not deadline.expired:
                printed = (printed + piece)[:_MOST_OUTPUT]
        except TimeoutError as exc:
            what = f"{self.device.name} does not get done with what it was asked"
            raise DeadlineError(
                what, f"no end after {deadline.seconds:.0f} s", "look what keeps it busy, or use --deadline SECONDS"
            ) from exc
        finally:
            channel.close()
        text = printed.decode(errors="replace")
        told = (line[5:].partition("=") for line in text.splitlines() if line.startswith("farm:"))
        return {"": text, **{name: value for name, _, value in told}}

    def channel(self, script: str, arguments: Sequence[str]) -> Any:
        """A script as a running program on the channel that is returned."""
        transport = self.client.get_transport()
        channel = transport.open_session(timeout=min(_QUICK_S, self.deadline.remaining) or 0.001)
        places = [str(self.device.options.get(option, "")) for option in ("store", "work_dir")]
        channel.exec_command(f"exec sh -c {shlex.quote(ssh_scripts.HEAD + script)} farm {shlex.join([*places, *arguments])}")
        return channel
