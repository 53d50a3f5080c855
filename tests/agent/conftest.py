"""An agent that runs, for this machine or under qemu, and clients for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import agent_clients_path
import agent_models
import pytest

from farm import process
from farm.deadline import Deadline

QEMU = {"x86_64": None, "aarch64": "qemu-aarch64", "armv7": "qemu-arm", "riscv64": "qemu-riscv64"}
CLIENT_S = 120.0


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """What the condition returns once it is true."""
    deadline = Deadline(seconds)
    while not (found := condition()):
        assert not deadline.expired, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return found


def children_of(pid: int) -> list[int]:
    return [int(word) for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()]


def client(name: str, **arguments: Any) -> Any:
    """What a function of agent_clients returns, run in a process of its own."""
    command = [sys.executable, agent_clients_path.PATH, name, json.dumps(arguments)]
    return json.loads(process.run(command, deadline=Deadline(CLIENT_S), what=f"the client {name}").splitlines()[-1])


@dataclass
class Agent:
    command: list[str]
    child: Popen[bytes]
    folder: Path

    @property
    def port(self) -> int:
        file = self.folder / "port"
        wait_until(lambda: file.exists() or self.child.poll() is not None, 20, f"the agent opens its port ({self.log})")
        return int(file.read_text())

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def session_folders(self) -> list[Path]:
        return list((self.folder / "work").glob("farm-session-*"))

    def end(self) -> int:
        process.end(self.child, grace_s=5)
        return self.child.returncode


@pytest.fixture
def start(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts an agent: start("armv7", "--threads", "1")."""
    running: list[Agent] = []

    def start_one(arch: str = "x86_64", *options: str, key: str = "board") -> Agent:
        folder = tmp_path / f"agent{len(running)}"
        folder.mkdir()
        emulator = QEMU[arch]
        if emulator and not process.find(emulator):
            pytest.skip(f"{emulator} is not installed")
        command = [*([emulator] if emulator else []), str(agents(arch)), "--key", key, "--port-file", str(folder / "port")]
        command += ["--work-dir", str(folder / "work"), *options]
        running.append(Agent(command, process.start(command, log=folder / "log"), folder))
        return running[-1]

    yield start_one
    for agent in running:
        agent.end()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], agent_models.SmallModel]:
    """Kind of target -> the small model built for it."""
    built: dict[str, agent_models.SmallModel] = {}

    def model(kind: str) -> agent_models.SmallModel:
        if kind not in built:
            built[kind] = agent_models.build(kind, tmp_path_factory.mktemp(kind))
        return built[kind]

    return model


@pytest.fixture
def spare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TVM_"):
            monkeypatch.delenv(name)
