"""What the lab keeps: read back as it was, in a file and on a real PostgreSQL server; and what the
tables refuse.
"""

from __future__ import annotations

import asyncio
import dataclasses
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, binaries, postgres_server
from sqlalchemy import Connection, text

from farm.errors import FarmError
from farm.lab.entities import (
    Caller,
    Lease,
    LeaseRequest,
    LeaseState,
    ReservationRequest,
    SharingRules,
)
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.storage.entity_json import lease_from_json, lease_to_json
from farm.lab.storage.lab_database import EndedSession, LabDatabase, LabDatabaseBatch
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.store import RunStore


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    pytest.importorskip(
        "psycopg", reason="psycopg is not installed: pip install 'tvm-farm[postgresql]'"
    )
    with postgres_server() as one:
        yield one


NO_SERVER = pytest.mark.skipif(
    binaries() is None, reason="there is no PostgreSQL server: apt-get install postgresql"
)


@pytest.fixture(params=["file", pytest.param("server", marks=NO_SERVER)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "lab" / "lab.sqlite")
    server = request.getfixturevalue("server")
    server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return str(server.url)


def kept(lab: LeaseScheduler) -> LabDatabaseBatch:
    batch = LabDatabaseBatch()
    batch.add(lab.take())
    return batch


def request_of(owner: str, **more: object) -> LeaseRequest:
    return dataclasses.replace(LeaseRequest(owner, "pi5", 60.0), **more)  # type: ignore[arg-type]


def test_a_lease_in_the_form_of_the_first_stores_is_read() -> None:
    lease = Lease(3, request_of("ann", count=2), "key", 2.0)
    body = lease_to_json(lease)
    assert lease_from_json(body) == lease
    assert lease_from_json({"wish": body.pop("request"), **body}) == lease


def test_leases_the_queue_events_and_use_are_read_back_as_they_were(place: str) -> None:
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    for name in ("a", "b"):
        lab.board_idle(name, "pi5", 1.0)
    both = lab.request(
        request_of("ann", count=2, labels={"commit": "e\udcff1"}, nonce="n"), "key-1", 2.0
    )
    short = lab.request(request_of("bob"), "key-2", 3.0)
    lab.end(both.number, Caller("ann"), 4.0, "done")
    later = lab.request(request_of("eve", count=2), "key-3", 5.0)
    journal.write(kept(lab))
    past = LabDatabase(place).open()
    assert [(one.number, one.state, one.key) for one in past.leases] == [
        (short.number, LeaseState.ACTIVE, "key-2"),
        (later.number, LeaseState.QUEUED, "key-3"),
    ]
    assert past.leases == [lab.lease(short.number), lab.lease(later.number)]
    assert past.ended == [lab.lease(both.number)]
    assert (past.kinds, past.used, past.next_lease) == (["pi5"], {"ann": (4.0, 4.0)}, 4)
    events = journal.events(0, 100)
    assert [event.number for event in events] == list(range(1, past.next_event))
    assert [event.what for event in events][-4:] == [
        "lease-queued",
        "lease-released",
        "lease-granted",
        "lease-queued",
    ]
    assert journal.events(events[-2].number, 100) == events[-1:]


def test_reservations_are_read_back_as_they_were_until_they_are_over(place: str) -> None:
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    request = ReservationRequest(
        "ann", "pi5", 100.0, 60.0, labels={"commit": "e\udcff1"}, nonce="n"
    )
    first = lab.reserve(request, "key-1", 2.0)
    second = lab.reserve(dataclasses.replace(request, starts_at=200.0, nonce=""), "key-2", 3.0)
    batch = kept(lab)
    assert batch.durable
    journal.write(batch)
    past = LabDatabase(place).open()
    assert (list(past.reservations), past.next_reservation) == ([first, second], 3)
    journal = LabDatabase(place)
    journal.open()
    lab.tick(100.0)
    lab.cancel_reservation(second.number, Caller("ann"), 101.0)
    journal.write(kept(lab))
    past = LabDatabase(place).open()
    assert list(past.reservations) == [lab.reservation(first.number)]
    assert [one.request.reservation for one in past.leases] == [first.number]
    lab.tick(160.0)
    journal = LabDatabase(place)
    journal.open()
    journal.write(kept(lab))
    assert journal.prune(10_000.0) > 0
    past = LabDatabase(place).open()
    assert (list(past.reservations), past.next_reservation) == ([], 3), (
        "the newest number is not used again"
    )


def test_a_reservation_that_was_used_lately_is_read_back_and_one_that_was_given_up_is_not(
    place: str,
) -> None:
    now = time.time()
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), now)
    lab.board_idle("a", "pi5", now)
    for starts_in in (100.0, 1000.0):
        lab.reserve(ReservationRequest("ann", "pi5", now + starts_in, 60.0), "key", now)
    lab.cancel_reservation(2, Caller("ann"), now + 50.0)
    for after in (100.0, 160.0):
        lab.tick(now + after)
    journal.write(kept(lab))
    [used] = LabDatabase(place).open().reservations
    assert (used.number, used.state.over, used.lease) == (1, True, 1)


def test_a_record_of_a_lab_that_knew_no_reservations_goes_on(place: str) -> None:
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    lease = lab.request(request_of("ann"), "key-1", 2.0)
    journal.write(kept(lab))

    def to_version_2(db: Connection) -> None:
        db.execute(text("DROP TABLE lab_reservations"))
        for index in ("lab_events_by_person", "lab_leases_by_owner"):
            db.execute(text(f"DROP INDEX {index}"))
        db.execute(text("ALTER TABLE lab_events DROP COLUMN who"))
        journal._database.place.set_version(db, 2)

    journal._database.change(to_version_2)
    past = LabDatabase(place).open()
    assert (past.leases, list(past.reservations), past.next_reservation) == ([lease], [], 1)
    newer = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), newer.open(), 3.0)
    lab.end(lease.number, Caller("ann"), 4.0)
    newer.write(kept(lab))
    assert [event.what for event in newer.events(0, 100)][-1] == "lease-released"


def test_of_one_person_so_much_is_kept_and_no_less_of_others(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.lab.storage.lab_database._MOST_OF_ONE", 5)
    monkeypatch.setattr("farm.lab.storage.lab_database._MOST_EVENTS_OF_ONE", 12)
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    numbers = {}
    for owner, count in (("bob", 3), ("ann", 20), ("eve", 1)):
        numbers[owner] = []
        for at in range(count):
            lease = lab.request(request_of(owner), f"{owner}-{at}", 2.0 + at)
            lab.end(lease.number, Caller(owner), 2.5 + at)
            numbers[owner].append(lease.number)
    batch = kept(lab)
    batch.sessions += [EndedSession("a", "pi5", "ann", at, at + 1.0) for at in range(8)]
    batch.sessions += [EndedSession("a", "pi5", "bob", at, at + 1.0) for at in range(10, 12)]
    journal.write(batch)
    while journal.prune(0.0):
        pass
    past = LabDatabase(place).open()
    assert [one.number for one in past.ended] == [
        *numbers["bob"],
        *numbers["ann"][-5:],
        *numbers["eve"],
    ]
    events = journal.events(0, 1000)
    assert [sum(one.who == who for one in events) for who in ("bob", "ann", "eve")] == [9, 12, 3]
    assert max(one.number for one in events if one.who == "ann") == past.next_event - 1 - 3
    sessions = [one for one in journal.stretches(0.0, 100) if one.lease is None]
    assert [one.since for one in sessions if one.owner == "ann"] == [7.0, 6.0, 5.0, 4.0, 3.0]
    assert sum(one.owner == "bob" for one in sessions) == 2
    monkeypatch.setattr("farm.lab.storage.lab_database._PERSONS", 1)
    journal = LabDatabase(place)
    journal.open()
    while journal.prune(0.0):
        pass
    left = [one.number for one in LabDatabase(place).open().ended]
    assert left == [*numbers["ann"][-4:], *numbers["eve"]], "of many people, the newest"


def test_users_without_an_account_are_one_person_of_whom_so_much_is_kept(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.lab.storage.lab_database._MOST_OF_ONE", 5)
    monkeypatch.setattr("farm.lab.storage.lab_database._PERSONS", 100)
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    owners = ["uid", "uidx", "Uid-1", *(f"uid-{100_000 + number}" for number in range(9)), "zoe"]
    for owner in owners:
        lease = lab.request(request_of(owner), f"key-{owner}", 2.0)
        lab.end(lease.number, Caller(owner), 2.5)
    journal.write(kept(lab))
    while journal.prune(0.0):
        pass
    left = [one.request.owner for one in LabDatabase(place).open().ended]
    assert left == [*owners[:3], *owners[-6:]]


def test_the_tables_refuse_to_lend_a_board_twice_whatever_the_program_says(place: str) -> None:
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    first = lab.request(request_of("ann"), "key-1", 2.0)
    journal.write(kept(lab))
    forged = LabDatabaseBatch(leases={9: dataclasses.replace(first, number=9)})
    with pytest.raises(FarmError, match=r"(?i)unique"):
        journal.write(forged)
    assert [one.number for one in LabDatabase(place).open().leases] == [first.number], (
        "all of a batch, or nothing"
    )
    lab.end(first.number, Caller("ann"), 3.0)
    lab.request(request_of("bob"), "key-2", 3.0)
    journal = LabDatabase(place)
    journal.open()
    journal.write(kept(lab))  # given back and lent again at once
    assert [one.request.owner for one in LabDatabase(place).open().leases] == ["bob"]


def test_a_batch_that_is_written_again_changes_nothing(place: str) -> None:
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    lab.request(request_of("ann"), "key-1", 2.0)
    batch = kept(lab)
    batch.sessions.append(EndedSession("a", "pi5", "ann", 1.0, 2.0, 1))
    journal.write(batch)
    journal.write(batch)
    assert len(journal.events(0, 100)) == 3


def test_who_had_a_board_is_told_of_that_board_and_after_that_time(place: str) -> None:
    journal = LabDatabase(place)
    lab = LeaseScheduler(SharingRules(), (), journal.open(), 0.0)
    for name in ("a", "b"):
        lab.board_idle(name, "pi5", 1.0)
    for owner, since, until in (("ann", 2.0, 10.0), ("bob", 12.0, None)):
        for lease in [lab.request(request_of(owner), f"{owner}-{at}", since) for at in range(2)]:
            if until is not None:
                lab.end(lease.number, Caller(owner), until)
    batch = kept(lab)
    batch.sessions += [
        EndedSession(board, "pi5", "eve", since, since + 5.0)
        for board in ("a", "b")
        for since in (20.0, 30.0)
    ]
    batch.sessions.append(EndedSession("a", "pi5", "bob", 40.0, 41.0, 3))
    journal.write(batch)

    def told(since: float, most: int = 100) -> list[tuple[str, str, float | None]]:
        return [(one.board, one.owner, one.until) for one in journal.stretches(since, most, "a")]

    everything = [("a", "eve", 35.0), ("a", "eve", 25.0), ("a", "bob", None), ("a", "ann", 10.0)]
    assert told(9.0) == everything
    assert told(10.0) == everything[:3]
    assert told(25.0) == [everything[0], everything[2]], "who has it still has it"
    assert told(0.0, 1) == [everything[0], everything[2]], "so many of each sort"
    assert len(journal.stretches(0.0, 100)) == 2 * len(everything)


class SlowToPrune(LabDatabase):
    """A database that removes what is old only when told to go on."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.go_on = threading.Event()

    def prune(self, before: float) -> int:
        assert self.go_on.wait(60)
        return super().prune(before)


def test_nothing_is_kept_while_a_portion_of_what_is_old_is_removed(tmp_path: Path) -> None:
    database = SlowToPrune(tmp_path / "lab.sqlite")
    lab = LeaseScheduler(SharingRules(), (), database.open(), 0.0)
    lab.board_idle("a", "pi5", 1.0)
    said: list[str] = []
    failures: list[FarmError] = []

    async def run() -> None:
        writer = LabDatabaseWriter(asyncio.get_running_loop(), database, failures.append)
        try:
            writer.prune(1.0)
            lab.request(request_of("ann"), "key", 2.0)
            writer.put(lab.take())
            writer.after(lambda: said.append("granted"))
            await asyncio.sleep(0.2)
            assert said == []
            database.go_on.set()
            await writer.drain()
        finally:
            database.go_on.set()
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (said, failures) == (["granted"], [])


def test_a_server_whose_record_was_taken_over_can_write_no_more(place: str) -> None:
    older, newer = LabDatabase(place), LabDatabase(place)
    older.open(), newer.open()
    newer.write(LabDatabaseBatch(kinds=["pi4"]))
    with pytest.raises(FarmError, match="another lab server has taken over"):
        older.write(LabDatabaseBatch(kinds=["pi5"]))
    assert LabDatabase(place).open().kinds == ["pi4"]


def test_the_file_is_private(tmp_path: Path) -> None:
    LabDatabase(tmp_path / "lab" / "lab.sqlite").open()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "lab").iterdir()} == {0o600}


@NO_SERVER
def test_runs_and_leases_share_a_database(server: PostgresServer) -> None:
    server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    RunStore(server.url).ready()
    LabDatabase(server.url).open()
    assert RunStore(server.url).runs() == []
    assert LabDatabase(server.url).open().next_lease == 1
