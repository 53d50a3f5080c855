"""farm agent and farm tracker: loopback unless told otherwise, clear about ports, and gone when
they are stopped.
"""

from __future__ import annotations

import signal
import socket

import pytest
from farm_processes import HOST, Farm, Running
from timeouts import wait_until

READY = {"agent": "listening on", "tracker": "tracker on"}


def start(farm: Farm, command: str, *options: str) -> Running:
    running = farm.start(command, *options)
    running.says(READY[command])
    return running


@pytest.mark.parametrize("command", ["agent", "tracker"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_an_address_that_others_can_reach_is_refused_unless_it_is_meant(
    farm: Farm, command: str, address: str
) -> None:
    done = farm.run(command, "--host", address, "--port", "0")
    assert done.code == 2
    assert address in done.error["error"]
    assert "any code" in done.error["why"]
    assert "--open-to-network" in done.error["fix"]
    running = start(farm, command, "--host", address, "--port", "0", "--open-to-network")
    running.send(signal.SIGTERM)
    running.end()
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("command", ["agent", "tracker"])
def test_a_port_that_is_taken(farm: Farm, command: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = farm.run(command, "--port", str(port))
    assert done.code == 5
    assert f"{HOST}:{port}" in " ".join(done.error.values())
    assert "in use" in done.error["why"]
    assert "--port" in done.error["fix"]
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("command", ["agent", "tracker"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_stopped_has_done_its_work_and_leaves_nothing(
    farm: Farm, command: str, number: signal.Signals
) -> None:
    running = start(farm, command, "--port", "0")
    running.send(number)
    done = running.end()
    assert done.code == 0
    assert "error" not in done.err and "Traceback" not in done.err
    farm.assert_nothing_is_left()


def test_a_tracker_without_a_port_of_its_own_takes_the_next_free_one(farm: Farm) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        farm.configure(f"[tracker]\nport = {port}\nport_end = {port + 20}\n")
        running = start(farm, "tracker")
        assert f"{HOST}:{port}" not in running.said
        running.send(signal.SIGINT)
        running.end()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("agent", "--tracker", "127.0.0.1:9190"), ("key",)),
        (("agent", "--tracker", "127.0.0.1", "--key", "x"), ("HOST:PORT",)),
        (("agent", "--host", "no-such-host.invalid"), ("no-such-host.invalid",)),
        (("agent", "--port", "70000"), ("70000",)),
        (("agent", "--key", "a b"), ("key",)),
        (("tracker", "--host", "192.0.2.1", "--open-to-network"), ("192.0.2.1",)),
    ],
    ids=" ".join,
)
def test_a_wrong_option_of_a_server(
    farm: Farm, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = farm.run(*arguments)
    assert done.code in (2, 5)
    assert all(word in " ".join(done.error.values()) for word in words), done.error
    farm.assert_nothing_is_left()


def test_a_session_that_is_on_ends_with_its_agent(farm: Farm) -> None:
    running = start(farm, "agent", "--port", "0", "--no-key")
    port = int(running.said.rpartition(":")[2])
    with socket.create_connection((HOST, port)) as client:
        key = b"client:"
        client.sendall((0xFF271).to_bytes(4, "little") + len(key).to_bytes(4, "little") + key)
        wait_until(lambda: "session" in running.said, "a session")
        assert len(farm.processes()) == 2
        running.send(signal.SIGKILL)
        running.end()
    farm.assert_nothing_is_left()
