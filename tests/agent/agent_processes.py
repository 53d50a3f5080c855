"""Agents that run, here or under qemu, and clients for them."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import tvm_programs
from timeouts import LIMIT_S, wait_until

from farm.processes import subprocesses

CLIENTS = Path(__file__).with_name("agent_clients.py")
QEMU = {"x86_64": None, "aarch64": "qemu-aarch64", "armv7": "qemu-arm", "riscv64": "qemu-riscv64"}


def children_of(pid: int) -> list[int]:
    return [
        int(word)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for word in task.read_text().split()
    ]


@functools.cache
def _clients() -> ProcessPoolExecutor:
    """Processes that go on from one test to the next: importing TVM takes seconds."""
    return ProcessPoolExecutor(
        2,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=tvm_programs.hide_torch,
    )


def client(function: str, /, **arguments: Any) -> Any:
    """What a function of agent_clients returns, run in another process."""
    return begin_client(function, **arguments).result(LIMIT_S)


def begin_client(function: str, /, **arguments: Any) -> Future[Any]:
    """As `client`, beside what the test goes on to do."""
    import agent_clients

    return _clients().submit(getattr(agent_clients, function), **arguments)


@dataclass
class Agent:
    command: list[str]
    child: Popen[bytes]
    folder: Path

    @property
    def port(self) -> int:
        file = self.folder / "port"
        wait_until(
            lambda: file.exists() or self.child.poll() is not None,
            f"the agent opens its port ({self.log})",
        )
        return int(file.read_text())

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def session_folders(self) -> list[Path]:
        return list((self.folder / "work").glob("farm-session-*"))

    def end(self) -> int:
        subprocesses.end_program(self.child, grace_s=5)
        return self.child.returncode


@contextlib.contextmanager
def start_client(name: str, agent: Agent, **arguments: Any) -> Iterator[Popen[bytes]]:
    """A client that runs beside the block, and is killed at its end."""
    command = [sys.executable, CLIENTS, name, json.dumps({"port": agent.port, **arguments})]
    child = subprocesses.start_program(
        command, log=agent.folder / "client.log", env=tvm_programs.environment()
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
