"""Boards behind a power switch: farm's agents, with faults that a power cycle cures.

The faults are in the files that a board keeps, which its agent checks as they arrive and then
trusts: damaged weights, and a library with a kernel that takes longer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_commands
from timeouts import wait_until

from farm.lab_client.control_client import LabClient

# A board's power switch: it ends the agent, and starts it again with the files of a healthy board,
# unless the board was unplugged: the switch outlives a lab that is killed.
SWITCH = """
import fcntl, os, pathlib, shutil, signal, subprocess, sys
folder = pathlib.Path(sys.argv[1])
turn = (folder / "turn").open("w")
fcntl.flock(turn, fcntl.LOCK_EX)
if not (folder / "command").exists():
    sys.exit("the board is unplugged")
pid = int((folder / "pid").read_text())
try:
    os.kill(pid, signal.SIGCONT), os.kill(pid, signal.SIGKILL)
except ProcessLookupError:
    pass
if (folder / "healthy").exists():
    shutil.copytree(folder / "healthy", folder / "work" / "store", dirs_exist_ok=True)
child = subprocess.Popen((folder / "command").read_text().split("\\n"), stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=(folder / "log").open("ab"),
                         start_new_session=True)
(folder / "pid").write_text(str(child.pid))
(folder / "cycles").open("a").write("x")
"""
NO_PROCESS = 999999999
HEALTHY_TICKS = 2_000_000  # that a kernel of a healthy board takes at least: about a millisecond
# A kernel that does not check its arguments begins: push REGISTER; xor eax, eax; cmp [rsi], 70 ...
KERNEL, ENTRY = b"__tvm_ffi_", b"\x31\xc0\x83\x3e\x46"
# One that checks them pushes registers, then: cmp edx, COUNT; jne ERROR. Nobody comes to the code
# there.
CHECKING = re.compile(rb"[\x41\x50-\x57]+\x83\xfa.\x0f\x85(....)", re.DOTALL)
PATCHED = b"\xe9"  # jmp ...
COUNT = b"\xff" * 4
WAIT = (
    b"\x52\x51\x0f\x31\x89\xc1"  # push rdx; push rcx; rdtsc; mov ecx, eax
    b"\x0f\x31\x29\xc8\x3d" + COUNT + b"\x72\xf5"  # 1: rdtsc; sub eax, ecx; cmp eax, COUNT; jb 1b
    b"\x59\x5a" + ENTRY + b"\xe9\0\0\0\0"  # pop rcx; pop rdx; the kernel's entry; jmp ...
)
DIGITS = """
[devices.one]
profile = "x86"
url = "rpc://127.0.0.1:{port}"
[models.digits]
source = "package:zoo/digits/digits.onnx"
preprocess = "grey"
"""


class Powered:
    """A board behind a power switch. `healthy` are the files that it keeps, from `kept_files`."""

    def __init__(
        self, name: str, folder: Path, executable: Path, healthy: Path | None = None
    ) -> None:
        self.name, self.folder, self.executable = name, folder, executable
        folder.mkdir(exist_ok=True)
        (folder / "switch.py").write_text(SWITCH)
        (folder / "pid").write_text(str(NO_PROCESS))
        self._store = folder / "work" / "store"
        if healthy:
            shutil.copytree(healthy, folder / "healthy")
            slow_down(library_in(folder / "healthy"), HEALTHY_TICKS)

    @property
    def table(self) -> str:
        """Its table of lab.toml."""
        switch = f"{sys.executable} {self.folder / 'switch.py'} {self.folder}"
        named = f'[lab.boards.{self.name}]\nkind = "pi5"\nprofile = "x86"\n'
        return f'{named}power = {{ cycle = "{switch}" }}\n'

    def plug_in(self, port: int) -> None:
        command = [str(self.executable), "--key", "pi5", "--board", self.name, "--threads", "1"]
        command += ["--tracker", f"127.0.0.1:{port}", "--work-dir", str(self.folder / "work")]
        (self.folder / "command").write_text("\n".join(command))
        switch = [str(self.folder / "switch.py"), str(self.folder)]
        subprocess.run([sys.executable, *switch], check=True)

    def slow(self, times: float) -> None:
        """Let it be so many times as slow as before."""
        slow_down(library_in(self._store), round(times * HEALTHY_TICKS))

    def wrong(self) -> None:
        """Let the signs of weights be damaged on it."""
        [weights] = [
            one
            for one in self._store.iterdir()
            if one.name[0] != "." and not one.read_bytes().startswith((b"\x7fELF", b"{"))
        ]
        data = bytearray(weights.read_bytes())
        data[len(data) // 2 + 3 :: 4] = bytes(b ^ 0x80 for b in data[len(data) // 2 + 3 :: 4])
        weights.write_bytes(data)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def cycles(self) -> int:
        return len((self.folder / "cycles").read_text()) - 1

    def die(self) -> None:
        """Let its agent end; a power cycle starts it again."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, OverflowError):
                os.kill(self.pid, number)

    def unplug(self) -> None:
        """Let its agent end for good."""
        with (self.folder / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            (self.folder / "command").unlink(missing_ok=True)
            self.die()


def kept_files(folder: Path, executable: Path) -> Path:
    """The folder of what a board keeps once the model digits has run on it."""
    folder.mkdir()
    command = [str(executable), "--port", "0", "--port-file", str(folder / "port")]
    child = subprocess.Popen(
        [*command, "--work-dir", str(folder / "work"), "--threads", "1"], stderr=subprocess.DEVNULL
    )
    try:
        wait_until((folder / "port").exists, "the agent listens")
        config = DIGITS.format(port=(folder / "port").read_text().strip())
        (folder / "devices.toml").write_text(config)
        words = [
            "bench",
            "--quick",
            "--device",
            "one",
            "--config",
            str(folder / "devices.toml"),
            "digits",
        ]
        environment = {**os.environ, "FARM_DATA": str(folder / "data")}
        done = forked_commands.run(words, environment)
        assert done.returncode == 0, done.stderr
    finally:
        child.kill()
        child.wait()
    return folder / "work" / "store"


def library_in(store: Path) -> Path:
    """The library among the files that a board keeps."""
    files = [one for one in store.iterdir() if one.is_file()]
    [library] = [one for one in files if one.read_bytes().startswith(b"\x7fELF")]
    return library


def slow_down(library: Path, ticks: int) -> None:
    """Let a kernel of a library for x86-64 wait for so many ticks of the time stamp counter.

    However busy the machine is, that takes the same time. The kernel's entry becomes a jump to the
    code for another kernel's error, which becomes code that waits and jumps back.
    """
    data = bytearray(library.read_bytes())
    places = [at for name, at in sorted(functions(data).items()) if name.startswith(KERNEL)]
    checking = next(filter(None, (CHECKING.match(data, at) for at in places)))
    kernel = next(
        at for at in places if data[at + 1 : at + 6] == ENTRY or data[at + 1 : at + 2] == PATCHED
    )
    cave = checking.end() + struct.unpack("<i", checking[1])[0]
    data[kernel + 1 : kernel + 6] = PATCHED + struct.pack("<i", cave - (kernel + 6))
    end = cave + len(WAIT)
    data[cave:end] = WAIT
    data[end - 4 : end] = struct.pack("<i", kernel + 6 - end)
    wait = cave + WAIT.index(COUNT)
    data[wait : wait + 4] = struct.pack("<I", ticks)
    library.write_bytes(data)


def functions(data: bytes) -> dict[bytes, int]:
    """Where the functions of an ELF file are, by name; its addresses are offsets in the file."""
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, sections_at + n * size) for n in range(count)
    ]
    [symbols] = [one for one in sections if one[1] == 11]  # SHT_DYNSYM
    [code] = [one for one in sections if one[1] == 1 and one[2] & 4 and one[5] > 256]
    names_at, shift = sections[symbols[6]][4], code[4] - code[3]
    found = {}
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", data, at)
        if length and code[3] <= value < code[3] + code[5]:
            text = data[names_at + name : data.index(b"\0", names_at + name)]
            found[bytes(text)] = value + shift
    return found


def board(client: LabClient, name: str) -> dict[str, Any]:
    return next(one for one in client.ask("boards")["boards"] if one["name"] == name)


def becomes(client: LabClient, name: str, state: str, use: str = "free") -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        one = board(client, name)
        return one if one["health"] == state and one["use"] == use else None

    return dict(wait_until(there, f"{name} is {state} and {use}"))


def happened(client: LabClient, name: str) -> list[tuple[str, str]]:
    """What has happened to a board, and the details, in order."""
    found: list[dict[str, Any]] = []
    while page := client.ask("events", since=found[-1]["number"] if found else 0)["events"]:
        found += page
    return [(one["what"], one["detail"]) for one in found if one["board"] == name]


def have_happened(client: LabClient, name: str, *order: str) -> None:
    """Wait until events have happened one after the other, whatever else was between."""

    def in_order() -> bool:
        seen = iter([what for what, _ in happened(client, name)])
        return all(what in seen for what in order)

    wait_until(in_order, f"{order} have happened to {name} one after the other")
