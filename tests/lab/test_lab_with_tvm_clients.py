"""The lab's server and what TVM has for a tracker, with leases and without. Nothing of TVM's is
changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import tvm_programs
import tvm_tracker_clients
from lab_process import Lab, lab
from timeouts import LIMIT_S, wait_until
from tracker_processes import HOST, queue, tvm_server


@pytest.fixture(scope="module")
def served() -> Iterator[Lab]:
    """A lab with TVM's server as its board."""
    with lab() as one, tvm_server(one.port):
        yield one


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def client(served: Lab, name: str) -> Any:
    command = [sys.executable, tvm_tracker_clients.__file__, str(served.port), name]
    env = tvm_programs.environment()
    return answer(subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env))


@pytest.fixture(params=["implicit", "run"])
def through(request: pytest.FixtureRequest, served: Lab) -> Any:
    """A client of TVM's that knows of no lease, and one for which farm lab run has one."""
    path = f"PYTHONPATH={tvm_programs.WITHOUT_TORCH}"
    client_program = f"{sys.executable} {tvm_tracker_clients.__file__}"
    program = f'{path} exec {client_program} "$TVM_TRACKER_PORT" "$0"'
    wait_until(lambda: queue(served.port, "x86") == (1, 0), "the board is free")
    if request.param == "implicit":
        return lambda name: client(served, name)
    return lambda name: answer(served.farm("run", "x86", "--", "sh", "-c", program, name))


def test_tvms_client_gets_sessions_with_tvms_server(through: Any) -> None:
    first, second, text = through("sessions")
    assert first == second == 15.0
    assert "server:x86" in text


def test_metaschedules_runner_measures(through: Any) -> None:
    assert through("runner") == ["", "", ""]


def test_a_lease_that_is_in_force_keeps_tvms_client_waiting_until_it_ends(served: Lab) -> None:
    wait_until(lambda: queue(served.port, "x86") == (1, 0), "the board is free")
    with served.client() as holder:
        lease = holder.ask("request", kind="x86", for_s=600.0)["lease"]
        assert lease["state"] == "active"
        waiting = subprocess.Popen(
            [sys.executable, tvm_tracker_clients.__file__, str(served.port), "sessions"],
            env=tvm_programs.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: queue(served.port, "x86") == (0, 1), "the client is in the queue")
        [shown] = [one for one in holder.ask("leases")["leases"] if one["implicit"]]
        assert shown["queue"] == {
            "place": 1,
            "reason": "waiting for a x86: 1 of 1 lent",
            "surely_by": lease["ends_at"],
        }
        holder.ask("end", lease=lease["lease"])
        assert waiting.communicate(timeout=LIMIT_S)[0] and waiting.returncode == 0


def test_a_request_that_can_be_served_waits_for_no_acknowledgement(served: Lab) -> None:
    assert max(client(served, "latency").values()) < 20


def test_tvms_query_shows_the_servers_and_the_queue(served: Lab) -> None:
    command = [
        sys.executable,
        "-m",
        "tvm.exec.query_rpc_tracker",
        "--host",
        HOST,
        "--port",
        str(served.port),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=tvm_programs.environment()
    )
    assert done.returncode == 0, done.stderr
    assert "server:x86" in done.stdout and "Queue Status" in done.stdout
