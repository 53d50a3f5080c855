"""What farm does on a board over SSH: look at it, put the agent there under its digest, start it on a channel.

It needs of the board: sh, the file tools that every Linux has, and no more than one folder, ~/.cache/farm (or what the options name).
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
from farm.types import Device

# The scripts go to whatever shell the user has as one quoted word: no single quotes, no exclamation marks.
_HEAD = 'export LC_ALL=C; umask 077; tell() { echo "farm:$1=$2"; }\n'
_LOOK = """
root=${XDG_CACHE_HOME:-$HOME/.cache}/farm
at_home() { case $1 in "~/"*) echo "$HOME/${1#??}";; /*) echo "$1";; *) echo "$HOME/$1";; esac; }
agents=$root/agents store=$root/store work=$root/work
test -z "$1" || { store=$(at_home "$1"); agents=$store/agents; }
test -z "$2" || work=$(at_home "$2")
tell machine "$(uname -m)"; tell bits "$(getconf LONG_BIT 2>/dev/null)"
tell store "$store"; tell work "$work"; tell agent "$agents/$3/farm-agent"
for folder in "$store" "$work" "$agents"; do
  why=$(mkdir -p "$folder" 2>&1) || { tell refused "$why"; exit 0; }
  test -w "$folder" || { tell refused "$folder: cannot be written"; exit 0; }
done
tell free_kib "$(df -Pk "$agents" | tail -n 1 | { read -r _ _ _ free _; echo "$free"; })"
test -x "$agents/$3/farm-agent" && tell size "$(wc -c <"$agents/$3/farm-agent")"
exit 0
"""
_PUT = """
agent=$1 size=$2 digest=$3; shift 3
folder=${agent%/*} part=${agent%/*}/.part-$$
mkdir -p "$folder"
find "$folder" -name ".part-*" -mmin +60 -exec rm -f {} + 2>/dev/null
trap "rm -f \\"$part\\"" EXIT
trap "exit 1" HUP INT TERM
trap "" PIPE
why=$(cat 2>&1 >"$part") || { tell full "$why"; exit 0; }
arrived=$(wc -c <"$part")
test "$arrived" -eq "$size" || { tell broken "$(echo $arrived) of $size bytes arrived"; exit 0; }
if sum=$(sha256sum "$part" 2>/dev/null); then
  test "${sum%% *}" = "$digest" || { tell broken "it arrived with another digest"; exit 0; }
fi
chmod 700 "$part"
why=$("$@" "$part" --version 2>&1) || { tell refused "$? $why"; exit 0; }
mv -f "$part" "$agent" && tell placed yes
"""
# The agent ends with its standard input, which ends with the connection; where that is cut and nobody notices, with its time.
_START = """
work=$1 seconds=$2; shift 2
exec 3<&0 </dev/null
"$@" <&3 3<&- &
pid=$!
exec 3<&-
( trap : TERM; sleep "$seconds" & sleeping=$!; wait $sleeping && kill $pid; kill $sleeping ) >/dev/null 2>&1 &
watch=$!
wait $pid
code=$?
kill $watch 2>/dev/null
rm -rf "$work/farm-session-$pid-"*
exit $code
"""
_MACHINES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "riscv64": "riscv64",
    "armv7l": "armv7",
    "armv8l": "armv7",
}
# A 64-bit ARM kernel mostly runs 32-bit programs too; the agent needs nothing but the kernel, and its first run tells.
_RUNS = {"x86_64": ("x86_64",), "aarch64": ("aarch64", "armv7"), "armv7": ("armv7",), "riscv64": ("riscv64",)}
_SPARE_BYTES = 1 << 20
_PIECE = 1 << 16
_MOST_OUTPUT = 1 << 16
_QUICK_S = 30.0
_EXTRA_S = 5  # for the agent, so that this side's end of the session comes first


@dataclass(frozen=True, slots=True)
class Board:
    """A logged-in board. `client` is a paramiko.SSHClient; everything ends with the deadline. Raises DeviceError and DeadlineError."""

    client: Any
    device: Device
    deadline: Deadline

    def start_agent(self, executable: Path) -> tuple[Any, str]:
        """The agent as a running program whose standard streams are the channel, and its store's folder. Provisions the board on demand."""
        content = executable.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        seen = self.look(digest)
        if seen.get("size", "").strip() != str(len(content)):
            self._put(content, digest, seen)
        command = [*self.launcher, seen["agent"], "--stdio", "--work-dir", seen["work"], "--store", seen["store"]]
        if "threads" in self.device.options:
            command += ["--threads", str(self.device.options["threads"])]
        return self.channel(_START, [seen["work"], str(math.ceil(self.deadline.remaining) + _EXTRA_S), *command]), seen["store"]

    @property
    def launcher(self) -> list[str]:
        given = str(self.device.options.get("launcher", ""))
        try:
            return shlex.split(given)
        except ValueError as exc:
            raise DeviceError(f"the launcher of {self.device.name} is no command: {given}", str(exc), "close its quotes") from exc

    def look(self, digest: str = "none") -> dict[str, str]:
        """What the board says of itself: machine, bits (of its programs), free_kib, and where it keeps what of ours.

        Raises DeviceError where the agent of its profile cannot be there: another architecture, no folder to write to.
        """
        options = self.device.options
        seen = self.ask(_LOOK, [str(options.get("store", "")), str(options.get("work_dir", "")), digest])
        name, profile = self.device.name, self.device.profile
        if "machine" not in seen:
            raise DeviceError(
                f"{name} does not run commands as farm needs them", seen[""][-500:], "give its user a shell such as sh or bash"
            )
        architecture = _MACHINES.get(seen["machine"])
        if not self.launcher and profile.agent not in _RUNS.get(architecture or "", ()):
            raise DeviceError(
                f"{name} is another kind of board than its profile says",
                f"it is {seen['machine']} ({seen['bits'] or '?'}-bit programs), the profile {profile.name} is for {profile.agent}",
                f"correct `profile` of {name}" if architecture else f"there is no agent for {seen['machine']} yet",
            )
        if "refused" in seen:
            raise DeviceError(
                f"{name} has no folder for us", seen["refused"], "set `store` and `work_dir` in its options to folders it may write"
            )
        return seen

    def _put(self, content: bytes, digest: str, seen: dict[str, str]) -> None:
        name = self.device.name
        free = seen.get("free_kib", "")
        if free.isdigit() and int(free) * 1024 < len(content) + _SPARE_BYTES:
            why = f"{int(free) / 1024:.1f} MiB are free, the agent needs {len(content) / 2**20:.1f}"
            raise DeviceError(
                f"the disk of {name} is full", why, "free space there, or set `store` in its options to a place on another disk"
            )
        seen = self.ask(_PUT, [seen["agent"], str(len(content)), digest, *self.launcher], content)
        if "placed" in seen:
            return
        if "full" in seen:
            raise DeviceError(f"the agent cannot be written to {name}", seen["full"], "free space there, or set `store` in its options")
        if "broken" in seen:
            raise DeviceError(f"the agent did not arrive whole on {name}", seen["broken"], "run the command again")
        if "refused" in seen:
            status, _, why = seen["refused"].partition(" ")
            why = f"exit code {status}: {why}"
            if status == "126" and "ermission" in why:
                raise DeviceError(
                    f"{name} runs no programs from its folder", why, "set `store` in its options to a folder that is not mounted noexec"
                )
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
        transport = self.client.get_transport()
        channel = transport.open_session(timeout=min(_QUICK_S, self.deadline.remaining) or 0.001)
        channel.exec_command(f"exec sh -c {shlex.quote(_HEAD + script)} farm {shlex.join(arguments)}")
        return channel
