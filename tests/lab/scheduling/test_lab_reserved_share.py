"""One owner reserves a part of the boards, and not all of them for good."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given, strategies

from farm.errors import UsageError
from farm.lab.entities import (
    Caller,
    InventoryBoard,
    LeaseClass,
    LeaseRequest,
    LeaseState,
    Reservation,
    ReservationRequest,
    ReservationRules,
    ReservationState,
    SharingRules,
)
from farm.lab.scheduling.reservations import ReservationBook
from farm.lab.scheduling.reserved_share import OwnedPeriod, most_board_seconds
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import RestoredState

HOUR = 3600.0
MINUTE = 60.0


def scheduler(count: int, rules: SharingRules | None = None) -> LeaseScheduler:
    lab = LeaseScheduler(rules or SharingRules())
    for number in range(count):
        lab.board_idle(f"a{number}", "a", 0.0)
    return lab


def reserve(
    lab: LeaseScheduler, starts_at: float, for_s: float, count: int, owner: str = "mallory"
) -> bool:
    """Whether boards could be reserved."""
    try:
        lab.reserve(ReservationRequest(owner, "a", starts_at, for_s, count=count), "k", 0.0)
    except UsageError:
        return False
    return True


def back_to_back(lab: LeaseScheduler, now: float, boards: int) -> None:
    """Reserve all boards for as long as it goes, from the first time on at which it does."""
    at = now + MINUTE
    while at < now + 24 * HOUR:
        at += 2 * HOUR if reserve(lab, at, 2 * HOUR, boards) else 10 * MINUTE


def comb(lab: LeaseScheduler, now: float, boards: int) -> None:
    """Reserve all boards for 10 of each 35 minutes: too little is left between for half an hour."""
    for number in range(60):
        reserve(lab, now + MINUTE + number * 35 * MINUTE, 10 * MINUTE, boards)


@pytest.mark.parametrize("boards", [1, 8])
@pytest.mark.parametrize("attack", [back_to_back, comb])
def test_one_person_who_reserves_all_boards_again_and_again_leaves_others_theirs(
    attack: Callable[[LeaseScheduler, float, int], None], boards: int
) -> None:
    """Alice asks for one board for half an hour, again and again, for two days."""
    lab = scheduler(boards)
    attack(lab, 0.0, boards)
    asked_at, waited, had = 0.0, [0.0], 0
    lease = lab.request(LeaseRequest("alice", "a", HOUR / 2), "k", 0.0)
    now = 0.0
    while now < 48 * HOUR:
        now += MINUTE
        lab.tick(now)
        if now % (10 * MINUTE) == 0:
            attack(lab, now, boards)
        for one in lab.reservations():
            if one.lease is not None:
                lab.claim(one.lease)
        for view in lab.boards():
            if view.use == "in session":
                lab.board_idle(view.name, "a", now)
        lab.claim(lease.number)
        lease = lab.lease(lease.number)
        if lease.state is LeaseState.QUEUED:
            waited[-1] = now - asked_at
        elif lease.state is LeaseState.ACTIVE:
            had += 1
        else:
            asked_at = now
            waited.append(0.0)
            lease = lab.request(LeaseRequest("alice", "a", HOUR / 2), "k", now)
    assert max(waited) <= 6.1 * HOUR, "half of twelve hours, at most"
    assert had >= 0.4 * 48 * 60, "in minutes"


def test_the_refusal_says_how_much_it_would_be_and_how_much_may_be() -> None:
    lab = scheduler(2)
    for number in range(3):
        assert reserve(lab, HOUR + number * 2 * HOUR, 2 * HOUR, 2)
    with pytest.raises(UsageError) as refused:
        lab.reserve(ReservationRequest("mallory", "a", 8 * HOUR, HOUR), "k", 0.0)
    assert refused.value.parts() == (
        "mallory would reserve too much of the boards of kind a",
        "it would be 14.0 board-hours within 12h, with the times between that are too short for "
        "others; one owner may reserve 12.0",
        "reserve less, or for another time; or queue: farm lab lease a",
    )
    assert reserve(lab, 8 * HOUR, HOUR, 2, "bob"), "others may"
    assert reserve(lab, 13 * HOUR, 2 * HOUR, 2), "and so may they, later"


def test_a_time_that_is_free_for_all_and_too_much_for_the_owner_is_not_offered() -> None:
    lab = scheduler(1)
    lab.reserve(ReservationRequest("bob", "a", 9 * HOUR, HOUR), "k", 0.0)
    for number in range(3):
        assert reserve(lab, (1 + 2 * number) * HOUR, 2 * HOUR, 1)
    with pytest.raises(UsageError, match="would reserve too much"):
        lab.reserve(ReservationRequest("mallory", "a", 7.5 * HOUR, HOUR), "k", 0.0)
    with pytest.raises(UsageError, match="cannot be had then") as refused:
        lab.reserve(ReservationRequest("bob", "a", 6 * HOUR, HOUR), "k", 0.0)
    assert "free next from" in refused.value.why


def test_of_one_person_so_many_reservations_are_remembered_and_more_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farm.lab.scheduling.promises._MOST_LATELY", 5)
    lab = scheduler(1)
    now = 0.0
    for number in range(5):
        owner = f"uid-{100_000 + number}"
        request = ReservationRequest(owner, "a", now + 1, MINUTE)
        lab.reserve(request, "k", now)
        finished(lab, now + 1)
        lab.end(lab.leases()[0].number, Caller(owner), now + 2)
        lab.board_idle("a0", "a", now + 2)
        now += 2
    late = ReservationRequest("uid-200000", "a", now + 20 * HOUR, HOUR)
    with pytest.raises(UsageError, match="no more can be reserved") as refused:
        lab.reserve(late, "k", now)
    assert refused.value.why == "uid-200000 has had 5 reservations within 16h"
    assert reserve(lab, 20 * HOUR, HOUR, 1, "bob")
    lab.reserve(dataclasses.replace(late, starts_at=now + 17 * HOUR), "k", now + 16 * HOUR)


def test_what_is_over_is_remembered_as_long_as_it_counts() -> None:
    book = ReservationBook(lately_s=100.0)
    for number in range(1000):
        request = ReservationRequest("ann", "a", float(number), 1.0)
        over = ReservationState.ENDED
        book.put(Reservation(number, request, "k", 0.0, over, number, ended_at=number + 1.0))
    assert [one.number for one in book.lately("ann")] == [*range(900, 1000)]
    book.forget_old("ann", 2000.0)
    assert not book.lately("ann") and not book.lately("bob")


def finished(lab: LeaseScheduler, now: float) -> None:
    lab.tick(now)
    for lease in lab.leases():
        lab.claim(lease.number)


def test_what_was_used_counts_and_what_was_given_up_does_not() -> None:
    lab = scheduler(1)
    assert reserve(lab, HOUR, 2 * HOUR, 1) and reserve(lab, 3 * HOUR, 2 * HOUR, 1)
    finished(lab, HOUR)
    finished(lab, 3 * HOUR)
    assert [one.request.starts_at for one in lab.reservations()] == [3 * HOUR]
    assert not reserve(lab, 5 * HOUR, 2.5 * HOUR, 1)
    assert reserve(lab, 5 * HOUR, 2 * HOUR, 1)
    assert not reserve(lab, 9 * HOUR, HOUR, 1)
    lab.cancel_reservation(lab.reservations()[-1].number, Caller("mallory"), 3.5 * HOUR)
    assert reserve(lab, 9 * HOUR, HOUR, 1)
    lab.cancel_reservation(lab.reservations()[-1].number, Caller("mallory"), 3.5 * HOUR)
    [lease] = lab.leases()
    lab.end(lease.number, Caller("mallory"), 3.5 * HOUR)
    lab.board_idle("a0", "a", 3.5 * HOUR)
    assert reserve(lab, 9 * HOUR, 2 * HOUR, 1), "of what was given back, only what was used counts"


def test_what_was_used_counts_after_a_restart_too() -> None:
    lab = scheduler(1)
    for number in range(3):
        assert reserve(lab, (1 + 2 * number) * HOUR, 2 * HOUR, 1)
        finished(lab, (1 + 2 * number) * HOUR)
    finished(lab, 7 * HOUR)
    kept = list(lab.take().reservations.values())
    assert all(one.state.over for one in kept)
    past = RestoredState(kinds=["a"], reservations=kept, next_reservation=4)
    again = LeaseScheduler(SharingRules(), (), past, 7 * HOUR)
    again.board_idle("a0", "a", 7 * HOUR)
    assert again.reservations() == []
    assert not reserve(again, 8 * HOUR, HOUR, 1) and reserve(again, 8 * HOUR, HOUR, 1, "bob")


def test_a_board_with_a_tag_is_not_one_owners_for_good_under_any_words() -> None:
    boards = [InventoryBoard("a0", "a", "", ("fan", "quiet"))]
    boards += [InventoryBoard(f"a{number}", "a", "", ()) for number in range(1, 8)]
    lab = LeaseScheduler(SharingRules(), boards)
    for board in boards:
        lab.board_idle(board.name, "a", 0.0)
    words = (("fan",), ("quiet",), ("fan", "quiet"), ("quiet", "fan"))
    for number, tags in enumerate(words):
        request = ReservationRequest("mallory", "a", (1 + 2 * number) * HOUR, 2 * HOUR, tags=tags)
        if number < 3:
            lab.reserve(request, "k", 0.0)
        else:
            with pytest.raises(UsageError, match="boards of kind a tagged quiet, fan"):
                lab.reserve(request, "k", 0.0)
    assert reserve(lab, 7 * HOUR, 2 * HOUR, 1)


def test_the_share_may_be_all_and_a_longest_reservation_always_fits() -> None:
    everything = SharingRules(reservations=ReservationRules(share=1.0))
    lab = scheduler(1, everything)
    assert all(reserve(lab, (1 + 2 * number) * HOUR, 2 * HOUR, 1) for number in range(8))
    long = SharingRules(classes={"interactive": LeaseClass(longest_s=24 * HOUR)})
    assert reserve(scheduler(3, dataclasses.replace(long)), HOUR, 24 * HOUR, 3)


def test_users_without_an_account_are_one_owner() -> None:
    lab = scheduler(1)
    got = [
        reserve(lab, (1 + 2 * number) * HOUR, 2 * HOUR, 1, f"uid-{100_000 + number}")
        for number in range(5)
    ]
    assert got == [True, True, True, False, False]


PERIODS = strategies.builds(
    lambda starts_at, for_s, count: OwnedPeriod(starts_at, starts_at + for_s, count),
    strategies.integers(0, 60),
    strategies.integers(1, 12),
    strategies.integers(1, 3),
)


@given(
    strategies.lists(PERIODS, max_size=8),
    PERIODS,
    strategies.integers(1, 40),
    strategies.integers(1, 8),
)
def test_the_most_board_seconds_are_what_counting_second_by_second_finds(
    owned: list[OwnedPeriod], wanted: OwnedPeriod, within_s: int, gap_s: int
) -> None:
    had = [
        sum(one.count for one in (*owned, wanted) if one.starts_at <= at < one.until)
        for at in range(80)
    ]
    closed = [0] * len(had)
    for level in range(1, max(had) + 1):
        ats = [at for at, count in enumerate(had) if count >= level]
        for at, following in itertools.pairwise([*ats, math.inf]):
            end = following if following - at - 1 < gap_s else at + 1
            for second in range(int(at), int(end)):
                closed[second] += 1
    first, last = wanted.starts_at - gap_s, wanted.until + gap_s
    before = [0, *closed]
    begins = {at for at in range(80) if closed[at] > before[at]}
    begins |= {at - within_s for at in range(80) if closed[at] < before[at]}
    expected = max(
        sum(closed[max(0, at) : max(0, at + within_s)])
        for at in begins
        if at < last and first < at + within_s
    )
    assert most_board_seconds(owned, wanted, within_s, gap_s) == expected


def test_thousands_of_short_periods_hold_nobody_up() -> None:
    """It took 0.3 s for 2,000, and four times as much for each twice as many."""
    owned = [OwnedPeriod(20.0 * at, 20.0 * at + 10 + at % 7, 1 + at % 3) for at in range(20_000)]
    began = time.thread_time()
    most_board_seconds(owned, OwnedPeriod(200_000.0, 203_600.0, 1), 12 * HOUR, 2 * HOUR)
    assert time.thread_time() - began < 1, "in seconds"


def test_the_most_board_seconds_are_those_of_the_fullest_time() -> None:
    owned = [OwnedPeriod(0, 2, 3), OwnedPeriod(10, 12, 2), OwnedPeriod(11, 13, 2)]
    assert most_board_seconds(owned, OwnedPeriod(20, 21, 1), 12, 0) == 2 * 2 + 2 * 2 + 1
    assert most_board_seconds(owned, OwnedPeriod(20, 21, 1), 1, 0) == 1
    assert most_board_seconds([], OwnedPeriod(5, 9, 2), 100, 50) == 8
    assert most_board_seconds([OwnedPeriod(0, 1, 2)], OwnedPeriod(3, 4, 3), 10, 2.5) == 8 + 1
    assert most_board_seconds([OwnedPeriod(0, 1, 2)], OwnedPeriod(3, 4, 3), 10, 1.5) == 5


def test_reservations_of_another_kind_are_no_part_of_the_share() -> None:
    lab = scheduler(2)
    for number in range(2):
        lab.board_idle(f"b{number}", "b", 0.0)
    starts = [MINUTE + 2 * HOUR * number for number in range(4)]
    for at in starts[:3]:
        lab.reserve(ReservationRequest("mallory", "b", at, 2 * HOUR, count=2), "k", 0.0)
    assert [reserve(lab, at, 2 * HOUR, 2) for at in starts] == [True, True, True, False]
