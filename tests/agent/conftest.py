"""An agent to talk to, and models for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import agent_models
import pytest
from agent_processes import QEMU, Agent

from farm.processes import subprocesses


@pytest.fixture
def start(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts an agent: start("armv7", "--threads", "1")."""
    running: list[Agent] = []

    def start_one(arch: str = "x86_64", *options: str, key: str | None = "board") -> Agent:
        folder = tmp_path / f"agent{len(running)}"
        folder.mkdir()
        emulator = QEMU[arch]
        if emulator and not subprocesses.first_installed_program(emulator):
            pytest.skip(f"{emulator} is not installed")
        command = [
            *([emulator] if emulator else []),
            str(agents(arch)),
            "--port-file",
            str(folder / "port"),
        ]
        command += [
            "--work-dir",
            str(folder / "work"),
            *([] if key is None else ["--key", key]),
            *options,
        ]
        running.append(
            Agent(command, subprocesses.start_program(command, log=folder / "log"), folder)
        )
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
