"""The lab's server as a process, and boards of it: connections that offer themselves as TVM's
servers do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import forked_commands
from timeouts import wait_until
from tracker_processes import PENDING, Wire

from farm.lab_client.control_client import LabClient

_SPEAKING_S = 2.0


@dataclass
class Lab:
    """A folder for a server, which can be started, killed and started again."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = 0
    child: forked_commands.Started | subprocess.Popen[bytes] | None = None
    starts: int = field(default=0)
    before: tuple[str, ...] = ()  # of the command

    @property
    def socket(self) -> Path:
        return self.folder / "lab" / "lab.sock"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "FARM_DATA": str(self.folder), "FARM_LAB": str(self.socket)}

    @property
    def said(self) -> str:
        return "".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob("serve-*.log"))
        )

    def start(self) -> Lab:
        self.starts += 1
        log = self.folder / f"serve-{self.starts:04d}.log"
        words = ["lab", "serve", "--port", str(self.port), *self.options]
        with log.open("wb") as output, Path(os.devnull).open("wb") as nowhere:
            if self.before or not forked_commands.can_run(self.environment):
                command = [*self.before, sys.executable, "-m", "farm", *words]
                self.child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stderr=output, env=self.environment
                )
            else:
                self.child = forked_commands.start_command(
                    words, Path.cwd(), self.environment, nowhere, output
                )
        child = self.child
        found = wait_until(
            lambda: re.search(r"lab on \S+:(\d+),", log.read_text()) or child.poll() is not None,
            "the lab",
        )
        assert found is not True, log.read_text()
        self.port = int(found[1])
        return self

    def kill(self) -> None:
        assert self.child
        self.child.kill()
        self.child.wait()

    def client(self) -> LabClient:
        return LabClient(self.socket)

    def farm(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forked_commands.run(["lab", *words], self.environment)

    def started(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "farm", "lab", *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )


@contextlib.contextmanager
def lab(
    *options: str, inventory: str = "", before: Callable[[Lab], list[str]] = lambda _: []
) -> Iterator[Lab]:
    """A running server, for as long as the block lasts. Its folder is short, for the path of its
    socket. `before` returns what its command begins with.
    """
    folder = Path(tempfile.mkdtemp(prefix="farm-lab-", dir="/tmp"))
    try:
        if inventory:
            (folder / "lab.toml").write_text(inventory, "utf-8")
            options = ("--config", str(folder / "lab.toml"), *options)
        one = Lab(folder, options)
        one.before = tuple(before(one))
        try:
            yield one.start()
        finally:
            if one.child:
                one.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Board:
    """A board that offers itself, and again after each session, until it is closed.

    `host` is where it says it serves, if that is not where it connects from. The lab passes over
    one that it has not heard for 10 s, see `speaking`.
    """

    _connected: ClassVar[list[Wire]] = []  # or a board that nobody names hangs up

    def __init__(
        self, port: int, kind: str = "pi5", at: int = 9090, host: str | None = None
    ) -> None:
        self.wire = Wire(port)
        self._turn = threading.Lock()  # of who asks on the wire
        self.host = host
        self._connected.append(self.wire)
        self.kind, self.at, self.offers = kind, at, 0
        self.wire.register(kind, at)
        self.offer()

    @property
    def name(self) -> str:
        return f"{self.kind}@127.0.0.1:{self.at}"

    @property
    def match_key(self) -> str:
        return f"{self.kind}:{self.at}:{self.offers}"

    def offer(self) -> None:
        self.offers += 1
        with self._turn:
            self.wire.put(self.kind, self.match_key, self.at, self.host)

    def speak(self) -> None:
        """Ask which offers are open."""
        with self._turn:
            self.wire.ask([PENDING])


@contextlib.contextmanager
def speaking(board: Board) -> Iterator[None]:
    """Have a board speak every 2 s within the block, as TVM's servers do: so it is lent even if
    its client takes long to come, such as one that imports TVM on a busy machine.
    """
    ended = threading.Event()

    def speak() -> None:
        with contextlib.suppress(OSError):  # the lab is away
            while not ended.wait(_SPEAKING_S):
                board.speak()

    thread = threading.Thread(target=speak, name="speaking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
