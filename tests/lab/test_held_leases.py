"""A held lease outlasts a server that is started again, and gives way to others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from lab_process import Board, lab
from timeouts import LIMIT_S, wait_until

from farm.errors import LinkError, UsageError
from farm.lab_client import leasing
from farm.lab_client.leasing import AWAY_S, HeldLease, LeasePool, WantedBoards
from farm.transports.lab import transport
from farm.transports.lab.reach_lab import LocalLab
from farm.types import Device, Profile

ACTIVE = {"lease": 1, "state": "active", "boards": ["one"], "lost": {}, "why": ""}
BETWEEN_S = 2 * AWAY_S / 3  # between two heartbeats


class Patience:
    """A deadline by the clock of the test."""

    now = 0.0

    def __init__(self, seconds: float) -> None:
        self._end = Patience.now + seconds

    @property
    def remaining(self) -> float:
        return self._end - Patience.now

    @property
    def expired(self) -> bool:
        return self.remaining <= 0


class Server:
    """A server that answers heartbeats, or breaks the connection, as it is told in order."""

    def __init__(self, answers: Sequence[bool]) -> None:
        self._answers = list(answers)
        self.done = threading.Event()

    def client(self) -> Server:
        return self

    def ask(self, what: str, **_: Any) -> dict[str, Any]:
        if what == "heartbeat":
            if not self._answers:
                self.done.set()
            else:
                Patience.now += BETWEEN_S
                if not self._answers.pop(0):
                    raise LinkError("the lab is gone", "", "")
        return {"lease": ACTIVE}

    def close(self) -> None:
        pass

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(leasing, "Deadline", Patience)
    monkeypatch.setattr(Patience, "now", 0.0)
    for name in ("_BEAT_S", "_QUEUE_S"):
        monkeypatch.setattr(leasing, name, 0.01)
    yield


def ended(held: HeldLease) -> bool:
    return not held.usable


@contextlib.contextmanager
def holding(server: Server | LocalLab, rank: str = "interactive") -> Iterator[HeldLease]:
    wanted = WantedBoards(kind="pi5", rank=rank)
    held = HeldLease(lambda: nullcontext(server), wanted, lambda _: None)
    try:
        yield held
    finally:
        held.end()
        held.join()


BOARDS = [
    {"name": "one", "kind": "pi5", "tags": ["fast", "usb"]},
    {"name": "two", "kind": "pi4", "tags": ["usb"]},
]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (WantedBoards(), ["one", "two"]),
        (WantedBoards(kind="pi5"), ["one"]),
        (WantedBoards(board="two"), ["two"]),
        (WantedBoards(kind="pi5", board="two"), []),
        (WantedBoards(tags=("usb",)), ["one", "two"]),
        (WantedBoards(tags=("usb", "fast")), ["one"]),
        (WantedBoards(kind="pi4", tags=("fast",)), []),
    ],
)
def test_a_board_fits_by_its_kind_its_name_and_all_tags(
    wanted: WantedBoards, names: list[str]
) -> None:
    assert [board["name"] for board in BOARDS if wanted.fits(board)] == names


def test_the_kind_to_ask_for_is_that_of_the_boards_that_fit_if_they_have_one() -> None:
    assert WantedBoards(kind="pi3").kind_among(BOARDS) == "pi3"
    assert WantedBoards(board="two").kind_among(BOARDS) == "pi4"
    assert WantedBoards(tags=("fast",)).kind_among(BOARDS) == "pi5"
    with pytest.raises(UsageError, match="may be of several kinds") as several:
        WantedBoards(tags=("usb",)).kind_among(BOARDS)
    assert "pi4, pi5" in several.value.why
    with pytest.raises(UsageError, match="the lab has not the board onee") as unknown:
        WantedBoards(board="onee").kind_among(BOARDS)
    assert "one" in unknown.value.why


class LabWithReservation:
    """A lab in which reservation 3 has two boards."""

    def ask(self, what: str, **wanted: Any) -> dict[str, Any]:
        if what == "reservations":
            kinds = {2: "jetson", 3: "pi"}
            return {what: [{"reservation": number, "kind": kind} for number, kind in kinds.items()]}
        assert (wanted["kind"], wanted["reservation"]) == ("pi", 3)
        return {"lease": {**ACTIVE, "kind": "pi", "boards": ["one", "two"]}}

    def boards(self) -> list[dict[str, Any]]:
        return [*BOARDS, {"name": "three", "kind": "pi", "tags": []}]


def test_a_reservation_serves_who_wants_any_of_its_boards_and_no_one_else() -> None:
    client: Any = LabWithReservation()
    lease = leasing.ask_for_reserved(client, WantedBoards(tags=("usb",), reservation=3))
    assert lease["boards"] == ["one", "two"]
    with pytest.raises(UsageError, match="reservation 3 is not of the board one only"):
        leasing.ask_for_reserved(client, WantedBoards(board="one", reservation=3))


def test_a_server_that_has_answered_since_may_be_away_again(clock: None) -> None:
    server = Server([True, True, False, True])
    with holding(server) as held:
        wait_until(lambda: server.done.is_set() or ended(held), "the heartbeats")
        assert held.usable


def test_a_server_that_stays_away_ends_the_lease(clock: None) -> None:
    with holding(Server([True, False, False])) as held:
        wait_until(lambda: ended(held), "the end of the lease")
        with pytest.raises(LinkError, match="the lab is gone"):
            held.check()


def test_batch_work_gives_way_to_who_waits_for_its_kind_of_boards() -> None:
    with lab() as served, served.client() as other:
        Board(served.port, "pi5"), Board(served.port, "pi4", at=9091)
        with holding(LocalLab(served.socket), "batch") as held:
            held.wait()
            other.ask("speak-for", user="alice")

            def state_of_a_request(kind: str) -> str:
                return str(other.ask("request", kind=kind, for_s=600.0)["lease"]["state"])

            assert [state_of_a_request("pi4") for _ in range(2)] == ["active", "queued"]
            assert not held.is_due()
            assert state_of_a_request("pi5") == "queued"
            assert held.is_due()


def test_only_leases_for_the_same_work_are_used_for_each_other() -> None:
    profile = Profile("x86", {}, "")
    kinds = [
        ("lab:pi5", {}),
        ("lab:pi4", {}),
        ("lab:pi5", {"class": "batch"}),
        ("lab:pi5", {"for_s": 60}),
        ("lab:pi5", {"reservation": 7}),
    ]
    devices = [
        Device(f"one{n}", profile, url, options=given) for n, (url, given) in enumerate(kinds)
    ]
    assert len({transport._pool_key(one) for one in devices}) == len(devices)
    named = [Device(name, profile, "lab:pi5", options={"wait_s": 1}) for name in "ab"]
    assert len({transport._pool_key(one) for one in named}) == 1


def test_a_session_waits_for_a_board_of_a_reservation_no_longer_than_was_asked() -> None:
    def wait_s(**options: object) -> float:
        device = Device("one", Profile("x86", {}, ""), "lab:pi5", options=options)  # type: ignore[arg-type]
        return transport._session_wait_s(device)

    assert wait_s() == wait_s(wait_s=5) == wait_s(reservation=7) == 60.0
    assert wait_s(reservation=7, wait_s=5) == 5.0


class IdleLease:
    """A lease that a pool keeps; `due` if others should have its board."""

    is_alive = True

    def __init__(self, due: bool = False) -> None:
        self.usable, self._due = True, due

    def is_due(self) -> bool:
        return self._due

    def end(self) -> None:
        self.usable = False

    def join(self) -> None:
        pass


def test_a_pool_gives_out_only_leases_that_are_usable() -> None:
    pool: Any = LeasePool(LIMIT_S)
    first = pool.take("key", IdleLease)
    pool.put("key", first)
    assert pool.take("key", IdleLease) is first
    pool.put("key", first)
    first.usable = False
    assert pool.take("key", IdleLease) is not first


def test_only_idle_leases_that_are_due_give_way() -> None:
    pool: Any = LeasePool(LIMIT_S)
    due, other = IdleLease(due=True), IdleLease()
    for held in (due, other):
        pool.put("key", held)
    pool.give_way("another key")
    assert due.usable
    pool.give_way("key")
    assert (due.usable, other.usable) == (False, True)


def test_leases_that_stay_idle_are_ended_and_one_that_is_used_again_is_not() -> None:
    pool: Any = LeasePool(0.3)
    used, idle, other = IdleLease(), IdleLease(), IdleLease()
    pool.put("key", used)
    assert pool.take("key", IdleLease) is used
    for held in (idle, other):
        pool.put("key", held)
    wait_until(lambda: not (idle.usable or other.usable), "the end of both")
    assert used.usable
