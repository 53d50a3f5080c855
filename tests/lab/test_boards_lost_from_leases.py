"""What a held lease says and does when the lab gives up one of its boards, or ends it.

The lab is one whose answers each test sets: its heartbeats, faults and times are to the second
here, and those of a real lab are not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from timeouts import LIMIT_S, wait_until

from farm.errors import DeadlineError, UnavailableError
from farm.lab_client import leasing
from farm.lab_client.leasing import BoardConnection, HeldLease, WantedBoards

FOR_S = 3600.0


class Lab:
    """A lab with one lease; `session_fault` is what it found at the end of the last session."""

    def __init__(self, *boards: str, **lost: str) -> None:
        self.boards, self.lost = list(boards), lost
        self.state, self.ends_in_s = "active", FOR_S
        self.session_fault = ""
        self.is_busy = False
        self.asked: list[str] = []
        self.sessions_cut: list[str] = []

    def client(self) -> Lab:
        return self

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def cut(self) -> None:
        pass

    def ask(self, what: str, **_: Any) -> dict[str, Any]:
        self.asked.append(what)
        lease = {
            "lease": 1,
            "state": self.state,
            "why": "the lab says why",
            "kind": "pi",
            "owner": "me",
            "boards": self.boards,
            "lost": dict(self.lost),
            "ends_at": time.time() + self.ends_in_s,
        }
        if what == "session-end":
            return {"session": {"fault": self.session_fault}}
        return {"lease": lease, "reservations": [], "leases": [lease]}

    @contextlib.contextmanager
    def session(self, lease: int, wait_s: float) -> Iterator[BoardConnection]:
        if self.is_busy:
            raise DeadlineError("no board is idle", f"waited {wait_s:.0f} s", "")
        yield connection(self.boards[0], self.sessions_cut)


def connection(board: str, cut: list[str] | None = None) -> BoardConnection:
    socket: Any = None
    stream: Any = SimpleNamespace(cut=lambda: (cut if cut is not None else []).append(board))
    return BoardConnection(board, f"key of {board}", socket, stream)


def wait_for_heartbeat(lab: Lab) -> None:
    """Wait until a heartbeat that begins now has told of lost boards."""
    told = lab.asked.count("heartbeat") + 2  # the second begins when the first has ended
    wait_until(lambda: lab.asked.count("heartbeat") >= told, "heartbeats")


@contextlib.contextmanager
def holding(lab: Any, **wanted: Any) -> Iterator[HeldLease]:
    """A lease of a lab that has told of its lost boards."""
    boards = WantedBoards(**{"kind": "pi", "for_s": FOR_S, "wait_s": 0.0, **wanted})
    held = HeldLease(lambda: nullcontext(lab), boards, lambda _: None)
    try:
        held.wait()
        wait_for_heartbeat(lab)
        yield held
    finally:
        held.end()
        held.join()


@pytest.fixture(autouse=True)
def frequent_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BEAT_S", "_QUEUE_S"):
        monkeypatch.setattr(leasing, name, 0.01)


def test_a_lease_gives_way_in_the_second_half_of_its_time() -> None:
    lab = Lab("one")
    with holding(lab) as held:
        lab.ends_in_s = FOR_S / 2 + LIMIT_S
        assert not held.is_due()
        lab.ends_in_s = FOR_S / 2 - 1
        assert held.is_due()


@pytest.mark.parametrize(
    "lab",
    [Lab("one"), Lab("one", "two", one="it is silent"), Lab("two", one="it was replaced by two")],
    ids=["none is lost", "one of two is lost", "the lost one was replaced"],
)
def test_a_lease_with_a_board_that_is_fit_is_used_at_once(lab: Lab) -> None:
    said: list[str] = []
    with holding(lab) as held:
        held.wait_for_board(said.append)
    assert said == []


def test_a_lease_whose_boards_are_all_lost_waits_for_another_board() -> None:
    lab = Lab("one", one="it is silent")
    said: list[str] = []
    with holding(lab) as held, pytest.raises(UnavailableError) as error:
        held.wait_for_board(said.append)
    assert said == ["waiting for another board in the place of one: it is silent"]
    assert error.value.what == "the board one of lease 1 failed, and no other became free"
    assert error.value.why.startswith("it is silent; waited 0 s")


def test_a_failed_session_blames_the_fault_that_the_lab_found_at_its_end() -> None:
    lab = Lab("one", "two")
    with holding(lab) as held:
        held.blame(connection("one"))  # the lab knows of nothing
        lab.session_fault = "it was reset"
        with pytest.raises(UnavailableError) as error:
            held.blame(connection("one"))
    assert error.value.what == "the board one failed"
    assert error.value.why == "it was reset; the lease has two now"


def test_a_failed_session_does_not_blame_a_board_that_it_did_not_use() -> None:
    with holding(Lab("one", "two", two="it is silent")) as held:
        held.blame(connection("one"))


def test_a_board_that_is_lost_already_is_not_asked_about_again() -> None:
    lab = Lab("two", one="it is silent")
    with holding(lab) as held, pytest.raises(UnavailableError, match="the board one failed"):
        held.blame(connection("one"))
    assert "session-end" not in lab.asked


def test_where_no_session_could_be_opened_a_lost_board_is_blamed() -> None:
    with holding(Lab("one", one="it is silent")) as held, pytest.raises(UnavailableError) as error:
        held.blame(None)
    assert (error.value.what, error.value.why) == ("the board one failed", "it is silent")


def test_only_the_session_with_a_lost_board_is_cut() -> None:
    lab = Lab("one", "two")
    with holding(lab) as held, held.session(LIMIT_S):
        lab.lost["two"] = "it is silent"
        wait_for_heartbeat(lab)
        assert lab.sessions_cut == []
        lab.lost["one"] = "it is silent, too"
        wait_until(lambda: lab.sessions_cut, "the end of the session")
    assert set(lab.sessions_cut) == {"one"}


@pytest.mark.parametrize(("reservation", "given_back"), [(0, True), (3, False)])
def test_the_lease_of_a_reservation_is_not_given_back(reservation: int, given_back: bool) -> None:
    lab = Lab("one")
    with holding(lab, reservation=reservation):
        pass
    assert ("end" in lab.asked) is given_back


@pytest.mark.parametrize(
    ("reservation", "what"),
    [(0, "the lab had no board within 0 s"), (3, "lease 1 has ended")],
)
def test_a_lease_that_timed_out_says_so_unless_it_is_a_reservation(
    reservation: int, what: str
) -> None:
    lab = Lab("one")
    lab.state = "timed out"
    with pytest.raises(UnavailableError) as error, holding(lab, reservation=reservation):
        pass
    assert error.value.what == what
    assert "the lab says why" in error.value.why


@pytest.mark.parametrize(
    ("reservation", "kind", "what"),
    [
        (0, DeadlineError, "no board is idle"),
        (3, UnavailableError, "all boards of reservation 3 are in use"),
    ],
)
def test_boards_of_a_reservation_that_others_use_are_named(
    reservation: int, kind: type[Exception], what: str
) -> None:
    lab = Lab("one")
    with holding(lab, reservation=reservation) as held:
        lab.is_busy = True
        with pytest.raises(kind, match=what), held.session(5.0):
            pass
