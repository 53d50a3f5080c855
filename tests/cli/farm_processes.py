"""The farm's command line as its users have it: a program, on a terminal or off it, that is watched
from outside.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked_commands
from timeouts import LIMIT_S, patient, wait_until

HOST = "127.0.0.1"
QUICK = """
[bench]
models = ["digits"]
warmup = 1
count = 5
minimum_s = 0.1
maximum_s = 1.0
dataset_limit = 20
"""
DEVICES = """
[devices.host]
profile = "x86"
url = "local:"
[devices.pi3]
profile = "rasp3b"
url = "qemu:"
[devices.rk3399]
profile = "rk3399"
url = "qemu:"
"""
DIGITS = """
[models.digits]
source = "package:zoo/digits/digits.onnx"
preprocess = "grey"
labels = "package:zoo/digits/digits-labels.txt"
dataset = "package:zoo/digits/digits-test.npz"
"""

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def is_convolution(step: Mapping[str, Any]) -> bool:
    """Whether a step of a profile is a convolution, direct or by Winograd's algorithm."""
    return any(method in step["kernel"] for method in ("convolution", "winograd"))


@dataclass(frozen=True, slots=True)
class Done:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> dict[str, str]:
        """The one error that it showed: {"error": ..., "why": ..., "fix": ...}, continued lines
        joined.
        """
        assert len(re.findall(r"^error: ", self.err, re.MULTILINE)) == 1, (
            f"not one error but:\n{self.err}"
        )
        assert "Traceback" not in self.err
        shown: dict[str, str] = {}
        label = ""
        for line in self.err[re.search(r"^error: ", self.err, re.MULTILINE).start() :].splitlines():  # type: ignore[union-attr]
            if found := re.match(r"(error|why|fix): (.*)", line):
                label = found[1]
                shown[label] = found[2]
            elif line.startswith(" ") and label:
                shown[label] += "\n" + line.strip()
        return shown

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


@dataclass
class Running:
    """A command on its way. Its output goes to files, so that it never waits for us."""

    child: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def said(self) -> str:
        return self.err.read_text(errors="replace")

    def says(self, pattern: str, seconds: float = LIMIT_S) -> None:
        """Wait until its progress shows something."""
        wait_until(
            lambda: re.search(pattern, self.said) or self.child.poll() is not None,
            f"{pattern!r} in:\n{self.said}",
            seconds,
        )
        assert re.search(pattern, self.said), f"ended without {pattern!r}:\n{self.said}"

    def send(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def end(self) -> Done:
        code = self.child.wait(LIMIT_S)
        return Done(code, self.out.read_text(), self.said)


class Terminal(Running):
    """A command that has a terminal: what is typed there goes to it as a terminal would send it."""

    def __init__(self, child: subprocess.Popen[bytes], descriptor: int, record: Path) -> None:
        super().__init__(child, record, record)
        self._descriptor = descriptor

    @property
    def said(self) -> str:
        with (
            contextlib.suppress(OSError),
            self.err.open("ab") as record,
        ):  # EIO: nobody has the terminal open any more
            while select.select([self._descriptor], [], [], 0)[0] and (
                piece := os.read(self._descriptor, 1 << 16)
            ):
                record.write(piece)
        return super().said

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal, as its window or its line might."""
        os.close(self._descriptor)

    def end(self) -> Done:
        wait_until(
            lambda: self.said is None or self.child.poll() is not None, "the end of the command"
        )  # reads on meanwhile
        return Done(self.child.returncode, "", self.said)


@dataclass
class Farm:
    """A farm of its own: a cache, a record of runs, a working folder. Every process that it starts
    carries `mark` in its environment.
    """

    folder: Path
    cache: Path
    mark: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def env(self) -> dict[str, str]:
        own = {
            "FARM_CACHE": str(self.cache),
            "FARM_DATA": str(self.data),
            "FARM_TEST": self.mark,
            "TERM": "xterm",
            "COLUMNS": "120",
        }
        return {
            **{key: value for key, value in os.environ.items() if key != "FARM_CONFIG"},
            **own,
            **self.environment,
        }

    def configure(self, text: str) -> None:
        (self.folder / "devices.toml").write_text(text)

    def start(self, *arguments: str | Path, **options: Any) -> Running:
        """Start a command in a session of its own, without a terminal."""
        out, err = self._output_files()
        with out.open("wb") as out_file, err.open("wb") as err_file:
            given: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": out_file,
                "stderr": err_file,
                "env": self.env,
            }
            child = subprocess.Popen(
                command(*arguments), cwd=self.folder, start_new_session=True, **{**given, **options}
            )
        return Running(child, out, err)

    def start_on_terminal(self, *arguments: str | Path) -> Terminal:
        """Start a command as the foreground process of a terminal."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        # A session leader without a terminal takes the first one that it opens.
        taking = [
            sys.executable,
            "-c",
            (
                "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
                "os.execv(sys.argv[1], sys.argv[1:])"
            ),
        ]
        child = subprocess.Popen(
            [*taking, *command(*arguments)],
            cwd=self.folder,
            env=self.env,
            start_new_session=True,
            **streams,
        )
        os.close(theirs)
        return Terminal(
            child, ours, self.folder / f"{len(list(self.folder.glob('*.screen')))}.screen"
        )

    def run(self, *arguments: str | Path, **options: Any) -> Done:
        """Run a command to its end."""
        if options or not forked_commands.can_run(self.env):
            return self.start(*arguments, **options).end()
        out, err = self._output_files()
        with out.open("wb") as out_file, err.open("wb") as err_file:
            words = list(map(str, arguments))
            code = forked_commands.run_command(words, self.folder, self.env, out_file, err_file)
        return Done(code, out.read_text(), err.read_text(errors="replace"))

    def _output_files(self) -> tuple[Path, Path]:
        """Files for the output of another command."""
        number = len(list(self.folder.glob("*.stdout")))
        return self.folder / f"{number}.stdout", self.folder / f"{number}.stderr"

    def processes(self) -> dict[int, str]:
        """The command lines of all living processes of this farm."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"FARM_TEST={self.mark}".encode() in (folder / "environ").read_bytes().split(
                    b"\0"
                ) and not _is_zombie(folder):
                    found[int(folder.name)] = (
                        (folder / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
        return found

    def processes_like(self, pattern: str) -> list[int]:
        return sorted(pid for pid, line in self.processes().items() if re.search(pattern, line))

    def assert_nothing_is_left(self, seconds: float = 5.0) -> None:
        """No process (and so no socket), no scratch folder, no half artifact."""
        wait_until(lambda: not self.processes(), f"the end of {self.processes()}", patient(seconds))
        assert self.scratch() == []
        assert self.halves() == []

    def scratch(self) -> list[str]:
        return [path.name for path in (self.cache / "tmp").glob("*")]

    def halves(self) -> list[Path]:
        """Artifacts and models that are not whole."""
        last = {"artifacts": "metadata.json", "models": "prepared.json"}  # what is written last
        return [
            folder
            for kind, name in last.items()
            for folder in (self.cache / kind).glob("*")
            if not (folder / name).exists()
        ]

    def end(self) -> None:
        """Kill what a failed test has left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "farm", *map(str, arguments)]


def _is_zombie(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def kill_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def server(
    folder: Path, *words: str | Path, says: str, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A program that serves for as long as the block lasts, with all that it starts; gives what its
    output showed when it was ready.
    """
    log = folder / f"server-{len(list(folder.glob('server-*')))}.log"
    with log.open("wb") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        child = subprocess.Popen(
            list(map(str, words)),
            cwd=folder,
            env=dict(env or os.environ),
            start_new_session=True,
            **streams,
        )
    try:
        found = wait_until(
            lambda: re.search(says, log.read_text()) or child.poll() is not None,
            f"{says!r} in {log}",
        )
        assert found is not True, f"it ended: {log.read_text()}"
        yield found[found.re.groups]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
