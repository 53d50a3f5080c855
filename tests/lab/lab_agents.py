"""farm's agents as boards of a lab, and sessions with them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_process import Lab
from timeouts import LIMIT_S, wait_until
from tracker_processes import HOST, REQUEST, Wire

from farm.processes.deadline import Deadline
from farm.rpc.blocking_connection import BlockingConnection, run_nonsuspending_coroutine
from farm.rpc.blocking_session import BlockingSession
from farm.rpc.session_opening import open_session

QEMU = {"x86_64": None, "aarch64": "qemu-aarch64", "armv7": "qemu-arm"}


@dataclass
class AgentBoard:
    """An agent that registers with a lab, which can be frozen and killed."""

    child: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def port(self) -> int:
        file = self.folder / "port"
        return int(wait_until(lambda: file.exists() and file.read_text(), "the agent's port"))

    def freeze(self) -> None:
        self.child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.go_on()
        self.child.kill()
        self.child.wait()


Start = Callable[..., AgentBoard]


@contextlib.contextmanager
def agent_boards(agents: Callable[[str], Path], folder: Path) -> Iterator[Start]:
    """Start agents: start(port, "--board", "pi5-07", arch="armv7")."""
    started: list[AgentBoard] = []

    def start(
        port: int,
        *options: str,
        kind: str = "pi5",
        arch: str = "x86_64",
        host: str = HOST,
    ) -> AgentBoard:
        place = folder / f"agent{len(started)}"
        place.mkdir()
        emulator = QEMU[arch]
        if emulator and not shutil.which(emulator):
            import pytest

            pytest.skip(f"{emulator} is not installed")
        command = [*([emulator] if emulator else []), str(agents(arch)), "--key", kind]
        command += ["--tracker", f"{host}:{port}", "--port-file", str(place / "port")]
        command += ["--work-dir", str(place / "work"), "--threads", "1", *options]
        with (place / "log").open("wb") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        started.append(AgentBoard(child, place))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.kill()


def handed_out(port: int, key: str, host: str = HOST) -> tuple[str, int, str]:
    """The board that the tracker hands out for a key, as soon as it does."""
    wire = Wire(port, host=host)
    try:
        code, value = wire.ask([REQUEST, key, "", 1])
    finally:
        wire.close()
    assert code == 0, value
    return value[0], int(value[1]), value[2]


def session_with(place: tuple[str, int, str]) -> BlockingSession:
    """A session with the board that was handed out."""
    host, port, match_key = place
    connection = BlockingConnection(socket.create_connection((host, port), timeout=LIMIT_S))
    opened = run_nonsuspending_coroutine(
        open_session(connection, "the board", match_key, Deadline(LIMIT_S), LIMIT_S)
    )
    return BlockingSession(opened, "the board", Deadline(LIMIT_S))


@contextlib.contextmanager
def registered(lab: Lab, count: int, kind: str = "x86") -> Iterator[None]:
    """Agents of farm's that register with a lab, each on a port of its own."""
    children = []
    try:
        for number in range(count):
            log = (lab.folder / f"agent-{number}.log").open("wb")
            command = [sys.executable, "-m", "farm", "agent", "--port", "0", "--tracker"]
            command += [f"127.0.0.1:{lab.port}", "--key", kind]
            children.append(
                subprocess.Popen(
                    command, env=lab.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            )
        with lab.client() as client:
            wait_until(lambda: uses(client).count("free") == count, "the agents are there")
            yield
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(LIMIT_S)


def uses(client: Any) -> list[str]:
    return [board["use"] for board in client.ask("boards")["boards"]]
