"""How many boards a lab takes in: of one connection, and of all."""

from __future__ import annotations

import contextlib
from typing import cast

import pytest
from lab_process import lab
from test_lab_agents import Kept, boards
from tracker_processes import INFO, Wire

from farm.lab import board_records
from farm.lab import lender as lending
from farm.lab.board_records import BoardRecord, BoardRecords
from farm.lab.care.health_state_machine import Health
from farm.lab.entities import SharingRules
from farm.lab.lender import LabLender
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import RestoredState
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.tracker.scheduler import Offer, TooManyError

NOW = 0.0


@pytest.fixture
def lender() -> LabLender:
    scheduler = LeaseScheduler(SharingRules(), (), RestoredState(), NOW)
    kept = cast(LabDatabaseWriter, Kept())
    made = LabLender(scheduler, kept, SharingRules(), (), lambda: NOW, lambda *_: None)
    made.hang_up = lambda peer, _: made.disconnect(peer)
    return made


def offer(lender: LabLender, peer: int, *ports: int) -> None:
    with contextlib.suppress(KeyError):
        lender.disconnect(peer)
    lender.connect(peer, f"10.0.0.{peer}", NOW)
    for port in ports:
        lender.offer(peer, Offer(peer, "pi5", f"10.0.0.{peer}", port, f"{peer}:{port}"), NOW)


def test_a_connection_has_so_many_boards(
    lender: LabLender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "MOST_BOARDS_OF_ONE", 3)
    offer(lender, 1, 9001, 9002, 9003)
    again = Offer(1, "pi5", "10.0.0.1", 9003, "1:9003")
    lender.offer(1, again, NOW)
    with pytest.raises(TooManyError, match="more than 3 boards"):
        lender.offer(1, Offer(1, "pi5", "10.0.0.1", 9004, "1:9004"), NOW)
    offer(lender, 2, 9001)


def test_where_there_are_too_many_boards_the_connection_with_the_most_gives_way(
    lender: LabLender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "MOST_BOARDS", 4)
    offer(lender, 1, 9001, 9002, 9003)
    offer(lender, 2, 9001)
    offer(lender, 3, 9001)
    assert [one.name for one in lender.scheduler.boards()] == [
        "pi5@10.0.0.2:9001",
        "pi5@10.0.0.3:9001",
    ]
    offer(lender, 4, 9001)
    offer(lender, 5, 9001)
    with pytest.raises(TooManyError, match="there are 4 already"):
        offer(lender, 6, 9001)


def test_boards_that_strangers_offer_do_not_displace_what_is_known_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A board that is drained, or was found bad, would be lent again."""
    monkeypatch.setattr(board_records, "MOST_RECORDS", 4)
    past = [BoardRecord(name, "pi5") for name in ("listed", "drained", "other")]
    records = BoardRecords(past, ["listed"])
    records.change("drained", "pi5", NOW, health=Health(out="a new fan"))
    for number in range(9):
        records.change(f"stranger-{number}", "pi5", NOW, agent="1")
    assert [one.name for one in records.all()] == ["listed", "drained", "stranger-7", "stranger-8"]


def test_of_too_many_boards_that_which_was_seen_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A board at work would lose its open session and its health to those that are long gone."""
    monkeypatch.setattr(board_records, "MOST_RECORDS", 3)
    records = BoardRecords(BoardRecord(name, "pi5") for name in ("a", "b", "c"))
    records.change("a", "pi5", NOW, health=Health(failed=2))
    records.change("d", "pi5", NOW)
    assert [one.name for one in records.all()] == ["c", "a", "d"]


def test_what_is_kept_of_a_board_says_when_it_was_seen_last() -> None:
    """A restart forgets boards that were not seen for long."""
    records = BoardRecords([])
    for day in range(2):
        records.change("a", "pi5", NOW + 86400 * day)
        assert [one.seen_at for one in records.take().values()] == [NOW + 86400 * day]


def test_the_addresses_of_loopback_are_one_owner(lender: LabLender) -> None:
    """Each owner may wait so often; a user of this machine connects from any of 127.0.0.0/8."""
    offer(lender, 1, 9001)
    for peer, origin in ((2, "127.0.0.1"), (3, "127.8.9.10"), (4, "10.0.0.4")):
        lender.connect(peer, origin, NOW)
        lender.request(peer, "pi5", 1.0, NOW)
    owners = [lease.request.owner for lease in lender.scheduler.leases()]
    assert owners == ["address:127.0.0.1", "address:127.0.0.1", "address:10.0.0.4"]


def test_an_agent_has_one_board() -> None:
    """A board behind a tunnel could fill the lab, its page and each list of its boards."""

    def hello(board: str) -> list[object]:
        agent = {"board": board, "agent": "1", "boot": "a"}
        return [INFO, {"key": "server:pi5", "addr": [None, 9090], "farm": agent}]

    with lab() as served, served.client() as client:
        wire = Wire(served.port)
        assert wire.ask(hello("pi5-07")) == wire.ask(hello("pi5-07")) == 0
        assert list(boards(client)) == ["pi5-07"]
        wire.send(hello("pi5-08"))
        assert wire.is_closed()
        assert "a second board, and an agent has one" in served.said
        assert not boards(client)
