"""Servers of TVM's RPC: farm's agent, and TVM's own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm_programs
from rpc_sessions import ServingAgent
from timeouts import wait_until

from farm.processes import subprocesses


@pytest.fixture
def agent(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[ServingAgent]:
    """An agent that requires the key "board"."""
    file = tmp_path / "port"
    command = [
        str(agents("x86_64")),
        "--port-file",
        str(file),
        "--work-dir",
        str(tmp_path / "work"),
        "--key",
        "board",
    ]
    child = subprocesses.start_program(command, log=tmp_path / "log")
    try:
        wait_until(lambda: file.exists() or child.poll() is not None, "the agent opens its port")
        yield ServingAgent(child, int(file.read_text()))
    finally:
        subprocesses.end_program(child, grace_s=5)


@pytest.fixture(scope="session")
def tvm_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server of TVM's, with the functions of tvm_echo_server."""
    log = tmp_path_factory.mktemp("tvm-server") / "log"
    child = subprocesses.start_program(
        [sys.executable, str(Path(__file__).with_name("tvm_echo_server.py"))],
        log=log,
        env=tvm_programs.environment(),
        own_group=True,  # with the processes of sessions, which it leaves when it is ended
    )
    try:
        found = wait_until(
            lambda: re.search(r"port (\d+)", log.read_text()) or child.poll() is not None,
            "TVM's server listens",
        )
        assert found is not True, log.read_text()
        yield int(found[1])
    finally:
        subprocesses.end_program(child, grace_s=1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
