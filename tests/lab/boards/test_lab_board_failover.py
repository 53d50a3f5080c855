"""A board that fails while `farm bench` has it: the lease gets another, and no model is blamed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_agents import AgentBoard, Start, agent_boards
from lab_process import Lab, lab
from timeouts import LIMIT_S, wait_until

from farm.lab_client.control_client import LabClient

CONFIG = """
[devices.one]
profile = "x86"
url = "lab:pi5"
options = { wait_s = 100 }
[models.first]
source = "package:zoo/digits/digits.onnx"
preprocess = "grey"
[models.second]
source = "package:zoo/digits/digits.onnx"
preprocess = "grey"
[bench]
minimum_s = 15
maximum_s = 60
"""


@pytest.fixture
def served() -> Iterator[Lab]:
    with lab(inventory='[lab]\nheartbeat = "1s"\n') as one:
        yield one


@pytest.fixture
def start(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Start]:
    with agent_boards(agents, tmp_path) as starting:
        yield starting


class Bench:
    """`farm bench` on one device of the lab, of models that take long to measure."""

    def __init__(self, served: Lab, folder: Path, *models: str) -> None:
        self._said = folder / "said"
        (folder / "devices.toml").write_text(CONFIG)
        command = [sys.executable, "-m", "farm", "bench", "--device", "one", "--json", *models]
        with self._said.open("wb") as said:
            self.child = subprocess.Popen(
                command,
                cwd=folder,
                env=served.environment,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def measures(self) -> None:
        """Wait until it measures."""

        def does() -> bool:
            assert self.child.poll() is None, self._said.read_text()
            return "measuring" in self._said.read_text()

        wait_until(does, "it measures")

    def ended(self) -> tuple[int, list[dict[str, Any]]]:
        out, _ = self.child.communicate(timeout=LIMIT_S)
        return self.child.returncode, json.loads(out)["runs"]


def board_in_session(client: LabClient) -> str:
    """The board that measures: its session goes on."""

    def found() -> str:
        boards = client.ask("boards")["boards"]
        return next((one["name"] for one in boards if one["use"] == "in session"), "")

    return str(wait_until(found, "a board has a session"))


def free(client: LabClient, count: int) -> None:
    wait_until(
        lambda: [one["use"] for one in client.ask("boards")["boards"]].count("free") == count,
        f"{count} boards are free",
    )


def fail(agent: AgentBoard, how: str) -> None:
    if how == "killed":
        agent.kill()
    elif how == "frozen":
        agent.freeze()
    else:
        [child] = children(agent)
        os.kill(child, signal.SIGSEGV if how == "crashing model" else signal.SIGKILL)


def children(agent: AgentBoard) -> list[int]:
    pid = agent.child.pid
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("killed", "its agent hung up, in a session"),
        ("frozen", "nothing heard for 2 s"),
        ("out of memory", "its system killed a session"),
    ],
)
def test_the_run_is_unavailable_and_the_lease_has_another_board(
    how: str, why: str, served: Lab, start: Start, tmp_path: Path
) -> None:
    agents = {name: start(served.port, "--board", name) for name in ("pi5-07", "pi5-08")}
    with served.client() as client, contextlib.ExitStack() as ending:
        free(client, 2)
        bench = Bench(served, tmp_path, "first")
        ending.callback(bench.child.kill)
        bench.measures()
        board = board_in_session(client)
        fail(agents[board], how)
        code, [run] = bench.ended()
        assert (code, run["verdict"], run["failure"]["kind"]) == (
            5,
            "UNAVAILABLE",
            "UnavailableError",
        )
        assert run["failure"]["what"] == f"the board {board} failed"
        assert why in run["failure"]["why"]
        faults = [one for one in client.ask("events")["events"] if one["what"] == "board-fault"]
        assert [one["board"] for one in faults] == [board]


def test_a_models_crash_is_the_models(served: Lab, start: Start, tmp_path: Path) -> None:
    agent = start(served.port, "--board", "pi5-07")
    with served.client() as client, contextlib.ExitStack() as ending:
        free(client, 1)
        bench = Bench(served, tmp_path, "first")
        ending.callback(bench.child.kill)
        bench.measures()
        fail(agent, "crashing model")
        code, [run] = bench.ended()
        assert (code, run["verdict"]) == (5, "FAILED")
        events = [one["what"] for one in client.ask("events")["events"]]
        assert "board-fault" not in events


def test_the_next_model_runs_on_the_board_that_takes_the_place_of_the_one_that_failed(
    served: Lab, start: Start, tmp_path: Path
) -> None:
    agent = start(served.port, "--board", "pi5-07")
    with served.client() as client, contextlib.ExitStack() as ending:
        free(client, 1)
        bench = Bench(served, tmp_path, "first", "second")
        ending.callback(bench.child.kill)
        bench.measures()
        agent.kill()
        start(served.port, "--board", "pi5-08")
        code, [first, second] = bench.ended()
        assert (code, first["verdict"]) == (5, "UNAVAILABLE")
        assert second["samples"], second["failure"]
        assert second["samples"]["facts_before"]["lab_board"] == "pi5-08"
        given = [
            one for one in client.ask("events")["events"] if one["what"] == "lease-board-given"
        ]
        assert [one["detail"] for one in given] == [
            "in the place of pi5-07: its connection is lost"
        ]
