"""The agent as a device of TVM's own tracker."""

from __future__ import annotations

import dataclasses
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm_programs
from agent_models import SmallModel
from agent_processes import Agent, client
from test_agent_hostile_clients import inputs
from timeouts import LIMIT_S, wait_until

from farm.processes import subprocesses

Start = Callable[..., Agent]
HOST = "127.0.0.1"
SERVE = """
import signal, sys, time
from tvm.rpc.tracker import Tracker
tracker = Tracker(host="127.0.0.1", port=int(sys.argv[1]), port_end=int(sys.argv[1]) + 100, silent=True)
def end(*_):
    tracker.terminate()
    sys.exit()
signal.signal(signal.SIGTERM, end)
open(sys.argv[2], "w").write(str(tracker.port) + "\\n")
while True:
    time.sleep(1)
"""  # noqa: E501


class OwnTracker:
    """TVM's tracker in a process of its own. Its worker would outlive a kill, so it is asked to
    end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.start(19390)

    def start(self, port: int) -> None:
        file = self.folder / "tracker-port"
        file.unlink(missing_ok=True)
        self.child = subprocesses.start_program(
            [sys.executable, "-c", SERVE, str(port), file],
            log=self.folder / "tracker-log",
            env=tvm_programs.environment(),
        )
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), "the tracker")
        self.port = int(file.read_text())

    def end(self) -> None:
        subprocesses.end_program(self.child, grace_s=10)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[OwnTracker]:
    running = OwnTracker(tmp_path)
    yield running
    running.end()


@pytest.fixture
def model(models: Callable[[str], SmallModel]) -> dict[str, str]:
    return {name: str(path) for name, path in dataclasses.asdict(models("x86_64")).items()}


def registered(agent: Agent, times: int = 1) -> None:
    wait_until(lambda: agent.log.count("registered with tracker") >= times, "the agent registers")


def test_sessions_through_the_tracker_follow_one_another(
    start: Start, tracker: OwnTracker, model: dict[str, str]
) -> None:
    registered(start("x86_64", "--tracker", tracker.address))
    errors = client("through_tracker", host=HOST, port=tracker.port, sessions=3, **model)
    assert len(errors) == 3 and max(errors) < 1e-6


def test_a_device_given_to_a_client_that_never_came_is_offered_again(
    start: Start, tracker: OwnTracker, model: dict[str, str]
) -> None:
    agent = start("x86_64", "--tracker", tracker.address)
    registered(agent)
    taken = client("take_and_leave", host=HOST, port=tracker.port)
    assert taken.startswith("board:")
    (error,) = client("through_tracker", host=HOST, port=tracker.port, sessions=1, **model)
    assert error < 1e-6
    assert "nobody came" in agent.log
    assert client("connect_error", port=agent.port, key=taken), (
        "the key that nobody used is worth nothing"
    )


def test_without_the_trackers_key_nobody_is_served(start: Start, tracker: OwnTracker) -> None:
    agent = start("x86_64", "--tracker", tracker.address)
    registered(agent)
    assert client("connect_error", port=agent.port, key="board")


def test_an_empty_key_opens_nothing_while_the_board_is_taken(
    start: Start, tracker: OwnTracker
) -> None:
    """It has no key then; who knocks would be served next, past all who wait at the tracker."""
    agent = start("x86_64", "--tracker", tracker.address)
    registered(agent)
    refused = 2
    answer = client("knock_during_session", host=HOST, port=tracker.port, agent=agent.port)
    assert answer == refused


def test_a_tracker_that_comes_back_finds_the_device_again(
    start: Start, tracker: OwnTracker, model: dict[str, str]
) -> None:
    agent = start("x86_64", "--tracker", tracker.address)
    registered(agent)
    port = tracker.port
    tracker.end()
    wait_until(lambda: "trying again" in agent.log, "the agent sees that its tracker is away")
    tracker.start(port)
    registered(agent, times=2)
    assert client("through_tracker", host=HOST, port=tracker.port, sessions=1, **model)[0] < 1e-6


@pytest.mark.parametrize("path", inputs("lab"), ids=lambda path: path.name)
def test_answers_that_were_fuzzed_leave_the_agent_as_it_was(start: Start, path: Path) -> None:
    """A tracker whose answer to the ping, and then to all else, is a stranger's."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(LIMIT_S)
        agent = start("x86_64", "--tracker", f"{HOST}:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(LIMIT_S)
            connection.sendall(connection.recv(4, socket.MSG_WAITALL))
            answers, answer = [b"0"], path.read_bytes()
            for _ in range(4):
                head = connection.recv(4, socket.MSG_WAITALL)
                if not head:
                    break
                connection.recv(*struct.unpack("<i", head), socket.MSG_WAITALL)
                said = answers.pop() if answers else answer
                connection.sendall(struct.pack("<i", len(said)) + said)
        wait_until(lambda: "trying again" in agent.log, "the agent goes on")
        assert agent.child.poll() is None
        listener.accept()[0].close()


def test_an_agent_starts_before_its_tracker(start: Start, tracker: OwnTracker) -> None:
    port = tracker.port
    tracker.end()
    agent = start("x86_64", "--tracker", f"{HOST}:{port}")
    wait_until(lambda: "trying again" in agent.log, "the agent tries")
    tracker.start(port)
    registered(agent)
