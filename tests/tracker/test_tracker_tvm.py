"""farm's tracker and what TVM has for a tracker: its servers, its clients, its tools. Nothing of
theirs is changed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm_programs
import tvm_tracker_clients
from timeouts import LIMIT_S, wait_until
from tracker_processes import HOST, Running, queue, tracker, tvm_server


def client(port: int, name: str) -> Any:
    done = subprocess.run(
        [sys.executable, tvm_tracker_clients.__file__, str(port), name],
        env=tvm_programs.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """farm's tracker with TVM's server."""
    with (
        tracker(tmp_path_factory.mktemp("lab"), "--unknown-key-s", "0.1") as running,
        tvm_server(running.port),
    ):
        yield running


def test_tvms_client_gets_sessions_with_tvms_server(lab: Running) -> None:
    first, second, text = client(lab.port, "sessions")
    assert first == second == 15.0
    assert "server:x86" in text and "x86   1" in text


def test_metaschedules_runner_measures_through_the_tracker(lab: Running) -> None:
    assert client(lab.port, "runner") == ["", "", ""]


def test_tvms_query_shows_the_servers_and_the_queue(lab: Running) -> None:
    command = [
        sys.executable,
        "-m",
        "tvm.exec.query_rpc_tracker",
        "--host",
        HOST,
        "--port",
        str(lab.port),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=tvm_programs.environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "server:x86" in done.stdout and "Queue Status" in done.stdout


def test_a_request_that_can_be_served_waits_for_no_acknowledgement(lab: Running) -> None:
    times = client(lab.port, "latency")
    assert max(times.values()) < 20, (
        "milliseconds; with TVM's tracker 44 and 88, of which an acknowledgement is delayed by 40"
    )


def test_tvms_client_shows_which_key_was_meant(lab: Running) -> None:
    shown = client(lab.port, "unknown")
    assert "no board has the key 'x68'" in shown and "did you mean x86?" in shown
    assert "asks for the key 'x68', which no board has" in lab.said


def test_a_frozen_server_is_not_lent_until_it_is_back(tmp_path: Path) -> None:
    with tracker(tmp_path) as running, tvm_server(running.port) as group:
        subprocess.run(["kill", "-STOP", "--", f"-{group}"], check=True)
        wait_until(lambda: queue(running.port, "x86")[0] == 0, "the frozen server is noticed", 60)
        subprocess.run(["kill", "-CONT", "--", f"-{group}"], check=True)
        wait_until(lambda: queue(running.port, "x86")[0] == 1, "it is back")


def test_a_server_that_is_killed_leaves_no_offer(tmp_path: Path) -> None:
    with tracker(tmp_path) as running:
        with tvm_server(running.port):
            assert queue(running.port, "x86") == (1, 0)
        wait_until(lambda: queue(running.port, "x86") == (0, 0), "its offer is withdrawn")
        running.child.send_signal(signal.SIGTERM)
        assert running.child.wait(LIMIT_S) == 0
        assert "Traceback" not in running.said
