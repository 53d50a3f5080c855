"""A lab whose disk is full: it says so, lends nothing, serves what runs, and goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_http import Paged
from lab_process import Board, Lab, lab
from timeouts import wait_until
from tracker_processes import REQUEST, Wire

from farm.errors import FarmError, NoSpaceError, UnavailableError
from farm.lab.board_records import BoardRecord
from farm.lab.entities import Caller, LeaseRequest, SharingRules
from farm.lab.lab_toml import LabSettings
from farm.lab.run import LabServer, LabServerOptions
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.storage.lab_database import EndedSession, LabDatabase, LabDatabaseBatch
from farm.lab.storage.lab_database_writer import LabDatabaseWriter

READ = (
    "import json, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
    "print(json.dumps(list(db.execute('SELECT number, state FROM lab_leases'))))"
)
WISH: dict[str, Any] = {"kind": "pi5", "for_s": 600}


def may_mount() -> bool:
    trial = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    with contextlib.suppress(OSError):
        return subprocess.run(trial, capture_output=True).returncode == 0
    return False


@dataclasses.dataclass
class SmallDisk:
    """The lab's database on a disk of 2 MiB, which only the server has mounted."""

    paged: Paged
    place: str

    @property
    def folder(self) -> Path:
        child = self.paged.lab.child
        assert child
        return Path(f"/proc/{child.pid}/root{self.place}")

    def fill(self) -> None:
        with (self.folder / "fill").open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 10, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    def free(self) -> None:
        (self.folder / "fill").unlink()

    def states(self) -> dict[int, str]:
        """The states of leases by number, as they are kept."""
        child = self.paged.lab.child
        assert child
        within = ["nsenter", "--mount", "--target", f"{child.pid}", sys.executable, "-c", READ]
        done = subprocess.run(
            [*within, f"{self.place}/lab.sqlite"], capture_output=True, check=True
        )
        return dict(json.loads(done.stdout))


@pytest.fixture
def small() -> Iterator[SmallDisk]:
    if not may_mount():
        pytest.skip("this user may mount nothing")
    with contextlib.ExitStack() as held:
        started: list[SmallDisk] = []

        def start(one: Lab) -> list[str]:
            place = one.folder / "small"
            place.mkdir(mode=0o700)
            started.append(SmallDisk(Paged(one), str(place)))
            script = f'mount -t tmpfs -o size=2m,mode=0700 none {place} && exec "$@"'
            return ["unshare", "--mount", "sh", "-c", script, "sh"]

        held.enter_context(
            lab("--page", "0", inventory='[lab]\nstore = "small/lab.sqlite"\n', before=start)
        )
        yield started[0]


def refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except UnavailableError as exc:
        assert exc.what == "the disk of the lab's server is full"
        return True
    return False


def test_a_full_disk_ends_nothing_and_is_gone_on_from(small: SmallDisk) -> None:
    served = small.paged.lab
    boards = [Board(served.port, at=9090), Board(served.port, at=9091), Board(served.port, at=9092)]
    with served.client() as client:
        first = client.ask("request", **WISH, heartbeat_s=600)["lease"]
        second = client.ask("request", **WISH)["lease"]
        assert (first["state"], second["state"]) == ("active", "active")
        small.fill()
        wait_until(lambda: refused(lambda: client.ask("request", **WISH)), "the refusal")
        assert refused(lambda: client.ask("extend", lease=first["lease"], by_s=60))
        assert refused(lambda: client.ask("reserve", kind="pi5", in_s=600, for_s=60))
        assert "farm_lab_disk_full{} 1.0" in small.paged.get("/metrics").text
        assert "full" in served.said and "nothing is lent" in served.said

        assert client.ask("heartbeat", lease=first["lease"])["lease"]["state"] == "active"
        assert client.ask("lease", lease=first["lease"])["lease"]["key"] == first["key"]
        assert len(client.ask("boards")["boards"]) == len(boards)
        assert small.paged.get("/").status == 200
        session = Wire(served.port)
        assert session.ask([REQUEST, first["key"], "", 1])[0] == 0, "its boards can be used"

        assert refused(lambda: client.ask("end", lease=second["lease"])), "it is not kept yet"
        stranger = Wire(served.port)
        stranger.send([REQUEST, "pi5", "", 1])
        small.free()
        wait_until(lambda: not refused(lambda: client.ask("request", **WISH)), "space")
        assert json.loads(stranger.answer())[0] == 0
        assert small.states()[second["lease"]] == "released"
        assert small.states()[first["lease"]] == "active"
        assert "farm_lab_disk_full{} 0.0" in small.paged.get("/metrics").text
        assert "there is space on the disk again" in served.said


class FullNow(LabDatabase):
    """A database without space as long as `full`."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.full = False

    def write(self, batch: LabDatabaseBatch) -> None:
        if self.full:
            raise NoSpaceError("the record of the lab cannot be used", "the disk is full", "")
        super().write(batch)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullNow:
    """What could not be kept in it is tried again soon."""
    monkeypatch.setattr("farm.lab.storage.lab_database_writer._SPACE_S", 0.05)
    return FullNow(tmp_path / "lab" / "lab.sqlite")


def test_what_is_refused_because_the_disk_is_full_is_not_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is found to be full only as they are to be kept."""
    monkeypatch.setattr("farm.lab.storage.lab_database_writer._SPACE_S", 0.05)
    database = FullNow(tmp_path / "lab.sqlite")
    place = LabServerOptions(tmp_path, "127.0.0.1", 9190)
    failures: list[FarmError] = []
    ann = Caller("ann")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        lab = LabServer(loop, LabSettings(), database, place, lambda _: None, failures.append)
        scheduler = lab.lender.scheduler

        async def is_refused(body: dict[str, Any]) -> bool:
            await until_there_is_space()
            database.full = True
            try:
                await lab.control.ask(body, ann)
            except UnavailableError:
                return True
            finally:
                database.full = False
            return False

        async def until_there_is_space() -> None:
            while lab.lender.disk_full:
                await asyncio.sleep(0.01)

        try:
            scheduler.board_idle("a", "pi5", time.time())
            lab.lender.settle()
            lease = (await lab.control.ask({"do": "request", **WISH}, ann))["lease"]
            assert await is_refused({"do": "extend", "lease": lease["lease"], "by_s": 60})
            assert scheduler.lease(lease["lease"]).ends_at == pytest.approx(lease["ends_at"], abs=1)
            reserve = {"do": "reserve", "kind": "pi5", "in_s": 3600, "for_s": 60, "nonce": "n"}
            assert await is_refused(reserve)
            assert scheduler.reservations() == []
            await until_there_is_space()
            made = (await lab.control.ask(reserve, ann))["reservation"]
            assert await is_refused({**reserve, "in_s": 7200, "nonce": ""})
            await until_there_is_space()
            again = await lab.control.ask(reserve, ann)
            assert again["reservation"]["reservation"] == made["reservation"]
            [kept] = scheduler.reservations()
            assert kept.number == made["reservation"]
            assert await is_refused({"do": "cancel", "reservation": kept.number})
            assert lab.lender.disk_full, "it is refused as long as nothing can be kept, too"
            with pytest.raises(UnavailableError):
                await lab.control.ask({"do": "cancel", "reservation": kept.number}, ann)
            assert scheduler.reservation(kept.number) == kept
            queued = {**WISH, "heartbeat_s": 300.0}
            await until_there_is_space()
            waiting = (await lab.control.ask({"do": "request", **queued}, ann))["lease"]
            assert await is_refused({"do": "keep", "lease": waiting["lease"]})
            assert scheduler.lease(waiting["lease"]).request.heartbeat_s == 300.0
            await until_there_is_space()
            second = (await lab.control.ask({**reserve, "in_s": 9000, "nonce": "m"}, ann))[
                "reservation"
            ]
            cancel = {"do": "cancel", "reservation": second["reservation"]}
            done = (await lab.control.ask(cancel, ann))["reservation"]
            assert done["state"] == "cancelled"
            assert scheduler.reservations() == [kept]
            await lab.end()
        finally:
            lab.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert failures == []
    past = LabDatabase(tmp_path / "lab.sqlite").open()
    assert [one.request.for_s for one in past.reservations] == [60.0]
    lease, waits = sorted(past.leases, key=lambda one: one.number)
    assert waits.request.heartbeat_s == 300.0
    assert lease.granted_at is not None and lease.ends_at is not None
    assert lease.ends_at - lease.granted_at == pytest.approx(WISH["for_s"])


def test_what_could_not_be_kept_is_kept_later_in_order_and_said_only_then(
    database: FullNow, tmp_path: Path
) -> None:
    scheduler = LeaseScheduler(SharingRules(), (), database.open(), 0.0)
    scheduler.board_idle("a", "pi5", 1.0)
    failures: list[FarmError] = []
    told: list[bool] = []
    said: list[str] = []

    async def run() -> None:
        writer = LabDatabaseWriter(asyncio.get_running_loop(), database, failures.append)
        writer.told_full = lambda error: told.append(error is not None)
        try:
            database.full = True
            lease = scheduler.request(LeaseRequest("ann", "pi5", 60.0), "key", 2.0)
            writer.put(scheduler.take())
            writer.after(lambda: said.append("granted"))
            while not told:
                await asyncio.sleep(0.01)
            assert writer.waits_for_space(lease.number)
            scheduler.tick(100.0)
            writer.put(scheduler.take())
            writer.after(lambda: said.append("ended"))
            await asyncio.sleep(0.2)
            assert (said, told, failures) == ([], [True], [])
            database.full = False
            await writer.drain()
            while len(said) < 2:
                await asyncio.sleep(0.01)
            assert not writer.waits_for_space(lease.number)
        finally:
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (said, told, failures) == (["granted", "ended"], [True, False], [])
    [ended] = LabDatabase(tmp_path / "lab" / "lab.sqlite").open().ended
    assert ended.state.value == "expired"
    events = [event.what for event in database.events(0, 100)]
    assert events == ["board-came", "lease-queued", "lease-granted", "lease-expired"]


def test_a_lease_waits_for_space_also_while_it_is_tried_again(
    database: FullNow, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = LeaseScheduler(SharingRules(), (), database.open(), 0.0)
    scheduler.board_idle("a", "pi5", 1.0)
    again, go_on = threading.Event(), threading.Event()
    told: list[bool] = []

    def slow_write(batch: LabDatabaseBatch) -> None:
        if told:
            again.set()
            go_on.wait(30)
        FullNow.write(database, batch)

    async def run() -> None:
        monkeypatch.setattr(database, "write", slow_write)
        writer = LabDatabaseWriter(asyncio.get_running_loop(), database, lambda _: None)
        writer.told_full = lambda error: told.append(error is not None)
        try:
            database.full = True
            lease = scheduler.request(LeaseRequest("ann", "pi5", 60.0), "key", 2.0)
            writer.put(scheduler.take())
            while not again.is_set():
                await asyncio.sleep(0.01)
            assert writer.waits_for_space(lease.number)
            assert not writer.waits_for_space(lease.number + 1)
            database.full = False
            go_on.set()
            await writer.drain()
            assert not writer.waits_for_space(lease.number)
        finally:
            go_on.set()
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert told == [True, False]


def test_sessions_and_boards_that_could_not_be_kept_are_kept_later(
    database: FullNow, tmp_path: Path
) -> None:
    database.open()
    now = time.time()
    told: list[bool] = []

    def note(writer: LabDatabaseWriter, board: str, agent: str) -> None:
        writer.note_boards({board: BoardRecord(board, "pi5", agent, now)})
        writer.note(EndedSession(board, "pi5", "ann", now, now + len(agent)))

    async def run() -> None:
        writer = LabDatabaseWriter(asyncio.get_running_loop(), database, lambda _: None)
        writer.told_full = lambda error: told.append(error is not None)
        try:
            database.full = True
            note(writer, "a", "1")
            note(writer, "b", "1")
            writer.flush()
            await asyncio.sleep(0)  # it is being written now
            note(writer, "b", "1.0")
            note(writer, "c", "1.0")
            while not told:
                await asyncio.sleep(0.01)
            database.full = False
            await writer.drain()
        finally:
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    kept = LabDatabase(tmp_path / "lab" / "lab.sqlite")
    assert {one.name: one.agent for one in kept.open().boards} == {"a": "1", "b": "1.0", "c": "1.0"}
    assert {one.board for one in kept.stretches(0.0, 100)} == {"a", "b", "c"}


def test_a_server_that_ends_with_a_full_disk_does_not_wait_for_space(tmp_path: Path) -> None:
    database = FullNow(tmp_path / "lab" / "lab.sqlite")
    scheduler = LeaseScheduler(SharingRules(), (), database.open(), 0.0)
    scheduler.board_idle("a", "pi5", 1.0)

    async def run() -> None:
        writer = LabDatabaseWriter(asyncio.get_running_loop(), database, lambda _: None)
        database.full = True
        scheduler.request(LeaseRequest("ann", "pi5", 60.0), "key", 2.0)
        writer.put(scheduler.take())
        await writer.drain()
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_nothing_is_lent_while_nothing_can_be_kept() -> None:
    scheduler = LeaseScheduler(SharingRules())
    scheduler.board_idle("a", "pi5", 1.0)
    scheduler.paused = True
    lease = scheduler.request(LeaseRequest("ann", "pi5", 60.0), "key", 2.0)
    assert scheduler.take_for_check("a", "key", 10.0, 3.0) is None
    scheduler.tick(4.0)
    assert scheduler.lease(lease.number).state.value == "queued"
    scheduler.paused = False
    scheduler.tick(5.0)
    assert scheduler.lease(lease.number).state.value == "active"
