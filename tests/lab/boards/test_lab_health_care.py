"""The lab's care for boards, with real agents: each is taken out, power cycled, checked, and lent
again, without hands.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_agents import handed_out, session_with
from lab_power import Powered, becomes, board, happened, have_happened, kept_files
from lab_process import Lab, lab
from timeouts import wait_until

from farm.errors import UsageError

LAB = """
[lab]
heartbeat = "1s"
[lab.health]
every = "1d"
recheck = ["1s", "1s"]
between_cycles = "1s"
back = "60s"
"""
ENOUGH = 3  # right checks, before a board can be called slow
RECOVERED = ("board-bad", "power-cycled", "board-probation", "board-good")


@pytest.fixture
def powered(agents: Callable[[str], Path], tmp_path: Path) -> Iterator[Powered]:
    one = Powered("pi5-07", tmp_path / "pi5-07", agents("x86_64"))
    yield one
    one.unplug()


@pytest.fixture
def served(powered: Powered) -> Iterator[Lab]:
    with lab(inventory=f"{LAB}sessions = 1\n{powered.table}") as one:
        powered.plug_in(one.port)
        yield one


def test_boards_that_are_wrong_slow_or_dead_are_lent_again_without_hands_and_without_users(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    healthy = kept_files(tmp_path / "kept", agents("x86_64"))
    wrong, slow, dead = boards = [
        Powered(name, tmp_path / name, agents("x86_64"), healthy)
        for name in ("wrong", "slow", "dead")
    ]
    tables = "".join(one.table for one in boards)
    with lab(inventory=f'{LAB}probation = "2s"\n{tables}') as one, one.client() as client:
        try:
            for each in boards:
                each.plug_in(one.port)
            for each in boards:
                becomes(client, each.name, "good")
            for checks in range(2, ENOUGH + 1):
                client.ask("check", board=slow.name)
                have_happened(client, slow.name, *["board-checked"] * checks)
            dead.die(), wrong.wrong(), slow.slow(1.3)
            for each in (wrong, slow):
                client.ask("check", board=each.name)
            for each, how in (
                (wrong, "wrong: digits: the answer is off"),
                (slow, "slow: [23]\\d % slower than its usual"),
                (dead, "unreachable: not heard for"),
            ):
                have_happened(client, each.name, *RECOVERED)
                [bad] = [why for what, why in happened(client, each.name) if what == "board-bad"]
                assert re.match(how, bad), bad
                assert becomes(client, each.name, "good")["barred"] == ""
                assert each.cycles == 1
        finally:
            for each in boards:
                each.unplug()


def test_a_board_is_checked_before_it_is_lent_and_a_dead_one_comes_back_by_itself(
    served: Lab, powered: Powered
) -> None:
    with served.client() as client:
        becomes(client, "pi5-07", "good")
        lease = client.ask("request", kind="pi5", for_s=600.0)["lease"]
        session = session_with(handed_out(served.port, lease["key"]))
        assert session.call("farm.agent.facts")
        os.kill(powered.pid, signal.SIGSTOP)  # it is dead: only its power helps
        told = wait_until(
            lambda: client.ask("lease", lease=lease["lease"])["lease"]["lost"], "the lease is told"
        )
        assert "nothing heard" in told["pi5-07"]
        client.ask("end", lease=lease["lease"])
        becomes(client, "pi5-07", "probation")
        assert powered.cycles == 1
        batch = client.ask("request", **{"kind": "pi5", "for_s": 60.0, "class": "batch"})["lease"]
        assert batch["state"] == "active", "batch work may have it first"
        session_with(handed_out(served.port, batch["key"])).close()
        client.ask("end", lease=batch["lease"])
        becomes(client, "pi5-07", "good")
        have_happened(client, "pi5-07", "board-fault", *RECOVERED)


def test_a_users_crashing_model_is_not_blamed_on_the_board(served: Lab, powered: Powered) -> None:
    with served.client() as client:
        becomes(client, "pi5-07", "good")

        def seen() -> list[str]:
            return [what for what, _ in happened(client, "pi5-07")]

        checks = seen().count("board-checked")
        session = session_with(handed_out(served.port, "pi5"))
        session.call("farm.agent.facts")
        children = Path(f"/proc/{powered.pid}/task/{powered.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGSEGV)
        wait_until(lambda: seen().count("board-checked") > checks, "it is checked")
        becomes(client, "pi5-07", "good")
        assert "board-fault" not in seen() and "board-bad" not in seen() and powered.cycles == 0


def test_the_agent_of_a_board_that_is_out_does_not_offer_it_after_its_session(
    served: Lab, powered: Powered
) -> None:
    with served.client() as client:
        becomes(client, "pi5-07", "good")
        lease = client.ask("request", kind="pi5", for_s=600.0)["lease"]
        session = session_with(handed_out(served.port, lease["key"]))
        assert session.call("farm.agent.facts")
        client.ask("drain", board="pi5-07", why="a new fan")
        assert board(client, "pi5-07")["use"] == "in session", "its lease goes on"
        client.ask("end", lease=lease["lease"])
        becomes(client, "pi5-07", "good", "out")
        client.ask("return", board="pi5-07", why="done")
        becomes(client, "pi5-07", "good")


def test_an_administrator_drains_checks_and_returns_a_board(served: Lab) -> None:
    with served.client() as client:
        becomes(client, "pi5-07", "good")
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
