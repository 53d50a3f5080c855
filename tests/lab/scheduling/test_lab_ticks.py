"""What a lab's server does each second, whatever fails in between: in its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm.lab.care import health_controller
from farm.lab.care.board_checks import parse_check_result
from farm.lab.care.health_state_machine import RIGHT, UNREACHABLE, CheckResult, Health, HealthRules
from farm.lab.entities import InventoryBoard, LeaseRequest, LeaseState
from farm.lab.lab_toml import LabSettings
from farm.lab.run import LabServer, LabServerOptions
from farm.lab.storage.lab_database import LabDatabase
from farm.lab_page.snapshot import take_snapshot
from farm.tracker.scheduler import Offer, ServerInfo

LISTED = InventoryBoard("pi5-07", "pi5", "10.0.0.7:9090", profile="rasp3b")


@dataclass
class InProcess:
    """A lab's server without sockets, and what it said to the operator."""

    server: LabServer
    loop: asyncio.AbstractEventLoop
    said: list[str]
    peers: int = 0

    def connect(self, host: str) -> int:
        self.peers += 1
        self.server.lender.connect(self.peers, host, self.loop.time())
        return self.peers

    def offer(self, peer: int, host: str, port: int = 9090) -> None:
        lender = self.server.lender
        lender.register(peer, ServerInfo("server:pi5", host, port))
        lender.offer(peer, Offer(peer, "pi5", host, port, f"pi5:{peer}.{port}"), self.loop.time())

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@contextlib.contextmanager
def lab_in_process(folder: Path, settings: LabSettings) -> Iterator[InProcess]:
    said: list[str] = []
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        place = LabServerOptions(folder, "127.0.0.1", 9190)
        journal = LabDatabase(folder / "lab.sqlite")

        async def start() -> LabServer:
            return LabServer(loop, settings, journal, place, said.append, lambda error: None)

        server = loop.run_until_complete(start())
        try:
            yield InProcess(server, loop, said)
        finally:
            loop.run_until_complete(server.end())
            server.close()


def test_leases_end_though_the_care_for_boards_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board's answer once stopped the server's clock: no lease ended, dead boards were free."""

    def fail() -> None:
        raise ZeroDivisionError("by what a board says")

    with lab_in_process(tmp_path, LabSettings(boards=(LISTED,))) as one:
        monkeypatch.setattr(one.server.keeper, "tick", fail)
        one.offer(one.connect("10.0.0.7"), "10.0.0.7")
        scheduler = one.server.lender.scheduler
        lease = scheduler.request(LeaseRequest("alice", "pi5", 1.0), "key", time.time())
        assert lease.state is LeaseState.ACTIVE
        one.run(3.5)
        assert scheduler.lease(lease.number).state is LeaseState.EXPIRED
    assert len(one.said) == 1 and "ZeroDivisionError: by what a board says" in one.said[0]


class EndlessCheck:
    """In the place of a process that checks a board."""

    done = False

    def __init__(self, board: str, lease: int, began_at: float) -> None:
        self.board, self.lease, self.began_at = board, lease, began_at

    def stop(self) -> None:
        pass


def test_an_address_that_offers_many_boards_leaves_room_for_the_checks_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def begin(folder: Path, board: str, lease: int, *rest: object) -> EndlessCheck:
        begun.append(board)
        return EndlessCheck(board, lease, time.time())

    monkeypatch.setattr(health_controller.board_checks, "begin_check", begin)
    settings = LabSettings(boards=(LISTED,), health=HealthRules(every_s=3600.0))
    with lab_in_process(tmp_path, settings) as one:
        keeper = one.server.keeper
        monkeypatch.setattr(keeper, "_profile_of", lambda kind: "rasp3b")
        crowd = one.connect("10.0.0.66")
        for port in range(9000, 9040):
            one.offer(crowd, "10.0.0.66", port)
        keeper.tick()
        one.offer(one.connect("10.0.0.7"), "10.0.0.7")
        one.offer(one.connect("10.0.0.8"), "10.0.0.8")
        keeper.tick()
        assert len(begun) == 2 and "10.0.0.66" in begun[0] and begun[1] == LISTED.name
        keeper._checks.pop(begun[0])
        keeper.tick()
        assert len(begun) == 3 and "10.0.0.8" in begun[2]


@pytest.mark.parametrize(
    "report",
    [
        '{"runs": [1]}',
        '{"runs": [{}]}',
        '{"runs": [{"verdict": "RIGHT", "samples": {"seconds": []}}]}',
        '{"runs": [{"verdict": "RIGHT", "samples": {"seconds": [0.0, 0.0]}}]}',
        '{"runs": [{"verdict": "RIGHT", "samples": {"seconds": ["1", 2]}}]}',
        '{"runs": 7}',
    ],
)
def test_a_report_that_is_none_is_a_failed_check(report: str) -> None:
    assert parse_check_result(report, Health(), 1.0).verdict == UNREACHABLE


def test_a_latency_beyond_all_others_has_its_place_on_the_page(tmp_path: Path) -> None:
    with lab_in_process(tmp_path, LabSettings(boards=(LISTED,))) as one:
        one.offer(one.connect("10.0.0.7"), "10.0.0.7")
        checks = tuple(CheckResult(at, RIGHT, "", s, {}) for at, s in enumerate((1e-12,) * 3))
        checks += (CheckResult(3.0, RIGHT, "", 9e8, {}),)
        one.server.lender.records.change(LISTED.name, "pi5", 0.0, health=Health(checks=checks))
        found = take_snapshot(one.server.lender, time.time()).healths[LISTED.name].latencies
    assert found == (100, 100, 100, 1000)
