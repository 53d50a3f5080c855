"""The lab's care for boards, with real agents: each is taken out, power cycled, checked, and lent
again, without hands.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_agents import handed_out, session_with
from lab_process import Lab, lab
from timeouts import wait_until

from farm.errors import UsageError
from farm.lab_client.client import LabClient

# A board's power switch: it ends the agent and starts it again, the healthy one.
SWITCH = """
import os, pathlib, signal, subprocess, sys
folder = pathlib.Path(sys.argv[1])
pid = int((folder / "pid").read_text())
try:
    os.kill(pid, signal.SIGCONT), os.kill(pid, signal.SIGKILL)
except ProcessLookupError:
    pass
child = subprocess.Popen((folder / "command").read_text().split("\\n"), stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=(folder / "log").open("ab"),
                         start_new_session=True)
(folder / "pid").write_text(str(child.pid))
(folder / "cycles").open("a").write("x")
"""
LAB = """
[lab]
heartbeat = "1s"
[lab.health]
every = "1d"
recheck = ["1s", "1s"]
sessions = 1
between_cycles = "1s"
back = "60s"
[lab.boards.pi5-07]
kind = "pi5"
profile = "x86"
power = {{ cycle = "{python} {switch} {folder}" }}
"""


class Powered:
    """A board behind a power switch."""

    def __init__(self, folder: Path, executable: Path) -> None:
        self.folder, self.executable = folder, executable
        (folder / "switch.py").write_text(SWITCH)
        (folder / "pid").write_text("0")

    def plug_in(self, port: int) -> None:
        command = [str(self.executable), "--key", "pi5", "--board", "pi5-07", "--threads", "1"]
        command += ["--tracker", f"127.0.0.1:{port}", "--work-dir", str(self.folder / "work")]
        (self.folder / "command").write_text("\n".join(command))
        (self.folder / "pid").write_text("999999999")
        os.spawnv(
            os.P_WAIT,
            sys.executable,
            [sys.executable, str(self.folder / "switch.py"), str(self.folder)],
        )

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def cycles(self) -> int:
        return len((self.folder / "cycles").read_text()) - 1

    def unplug(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(self.pid, number)
            except (ProcessLookupError, OverflowError):
                return


@pytest.fixture
def powered(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Powered]:
    board = Powered(tmp_path, agents("x86_64"))
    yield board
    board.unplug()


@pytest.fixture
def served(powered: Powered) -> Iterator[Lab]:
    folder = powered.folder
    text = LAB.format(python=sys.executable, switch=folder / "switch.py", folder=folder)
    with lab(inventory=text) as one:
        powered.plug_in(one.port)
        yield one


def board(client: LabClient) -> dict[str, Any]:
    return next(one for one in client.ask("boards")["boards"] if one["name"] == "pi5-07")


def becomes(client: LabClient, state: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        one = board(client)
        return one if one["health"] == state and one["use"] == "free" else None

    return dict(wait_until(there, f"the board is {state} and free"))


def happened(client: LabClient) -> list[str]:
    found: list[dict[str, Any]] = []
    while page := client.ask("events", since=found[-1]["number"] if found else 0)["events"]:
        found += page
    return [one["what"] for one in found if one["board"] == "pi5-07"]


def test_a_board_is_checked_before_it_is_lent_and_a_dead_one_comes_back_by_itself(
    served: Lab, powered: Powered
) -> None:
    with served.client() as client:
        becomes(client, "good")
        lease = client.ask("request", kind="pi5", for_s=600.0)["lease"]
        session = session_with(handed_out(served.port, lease["key"]))
        assert session.call("farm.agent.facts")
        os.kill(powered.pid, signal.SIGSTOP)  # it is dead: only its power helps
        told = wait_until(
            lambda: client.ask("lease", lease=lease["lease"])["lease"]["lost"], "the lease is told"
        )
        assert "nothing heard" in told["pi5-07"]
        client.ask("end", lease=lease["lease"])
        becomes(client, "probation")
        assert powered.cycles == 1
        batch = client.ask("request", **{"kind": "pi5", "for_s": 60.0, "class": "batch"})["lease"]
        assert batch["state"] == "active", "batch work may have it first"
        session_with(handed_out(served.port, batch["key"])).close()
        client.ask("end", lease=batch["lease"])
        becomes(client, "good")
        order = ["board-fault", "board-bad", "power-cycled", "board-probation", "board-good"]

        def in_order() -> bool:
            """One after the other, whatever else has happened between."""
            seen = iter(happened(client))
            return all(what in seen for what in order)

        wait_until(in_order, f"{order} have happened one after the other")


def test_a_users_crashing_model_is_not_blamed_on_the_board(served: Lab, powered: Powered) -> None:
    with served.client() as client:
        becomes(client, "good")
        checks = happened(client).count("board-checked")
        session = session_with(handed_out(served.port, "pi5"))
        session.call("farm.agent.facts")
        children = Path(f"/proc/{powered.pid}/task/{powered.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGSEGV)
        wait_until(lambda: happened(client).count("board-checked") > checks, "it is checked")
        becomes(client, "good")
        seen = happened(client)
        assert "board-fault" not in seen and "board-bad" not in seen and powered.cycles == 0


def test_an_administrator_drains_checks_and_returns_a_board(served: Lab) -> None:
    with served.client() as client:
        becomes(client, "good")
        done = served.farm("drain", "pi5-07", "--because", "a new fan")
        assert done.returncode == 0 and "out of service: a new fan" in done.stdout, done.stderr
        assert client.ask("request", kind="pi5", for_s=60.0)["lease"]["state"] == "queued"
        done = served.farm("return", "pi5-07", "--because", "done")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: client.ask("leases")["leases"][0]["boards"], "it is lent again")
        done = served.farm("power", "pi5-07")
        assert done.returncode in (0, 2)
        with pytest.raises(UsageError, match="there is no board 'pi5-08'"):
            client.ask("check", board="pi5-08")
        assert served.farm("boards").returncode == 0
