"""Reservations: what is promised is kept, and what that means for others. No socket, no clock."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import UsageError
from farm.lab.durations import clock_time, parse_time
from farm.lab.entities import (
    RANKS,
    Caller,
    InventoryBoard,
    Lease,
    LeaseClass,
    LeaseRequest,
    LeaseState,
    Reservation,
    ReservationRequest,
    ReservationRules,
    ReservationState,
    SharingRules,
)
from farm.lab.scheduling import reservations
from farm.lab.scheduling.queue_order import BusyPeriod, guaranteed_starts
from farm.lab.scheduling.reservations import BoardForecast, Plan, ReservedPeriod, RoomFinder
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import RestoredState
from farm.lab.storage.entity_json import reservation_from_json, reservation_to_json

HOUR = 3600.0
RULES = SharingRules(
    classes={rank: LeaseClass(2 * HOUR) for rank in RANKS},
    gather_s=120.0,
    reservations=ReservationRules(pickup_s=600.0),
)


def scheduler(*boards: str, rules: SharingRules = RULES) -> LeaseScheduler:
    """A lab in which these boards are idle, whose first letter is their kind."""
    lab = LeaseScheduler(rules)
    for name in boards:
        lab.board_idle(name, name[0], 0.0)
    return lab


def ask(lab: LeaseScheduler, owner: str, now: float, for_s: float, **more: object) -> Lease:
    return lab.request(dataclasses.replace(LeaseRequest(owner, "a", for_s), **more), "key", now)  # type: ignore[arg-type]


def reserve(
    lab: LeaseScheduler,
    owner: str = "bob",
    starts_at: float = HOUR,
    for_s: float = HOUR,
    now: float = 0.0,
    **more: object,
) -> Reservation:
    request = dataclasses.replace(ReservationRequest(owner, "a", starts_at, for_s), **more)  # type: ignore[arg-type]
    return lab.reserve(request, "its key", now)


def lease_of(lab: LeaseScheduler, made: Reservation) -> Lease:
    number = lab.reservation(made.number).lease
    assert number is not None
    return lab.lease(number)


def events(lab: LeaseScheduler) -> list[str]:
    return [event.what for event in lab.take().events]


def test_a_lease_into_reserved_time_waits_and_a_shorter_one_goes_before_it() -> None:
    lab = scheduler("a1", "a2")
    reserve(lab, count=2)
    long, short = ask(lab, "ann", 10.0, HOUR), ask(lab, "eve", 20.0, 0.5 * HOUR)
    assert (long.state, short.state) == (LeaseState.QUEUED, LeaseState.ACTIVE)
    position = lab.prospect(long, 20.0)
    assert position.reason == f"reserved for bob from {clock_time(HOUR, 20.0)}"
    assert position.surely_by == 2 * HOUR
    lab.tick(HOUR)
    assert lab.lease(long.number).state is LeaseState.QUEUED
    lab.claim(lab.reservations()[0].lease or 0)
    lab.tick(2 * HOUR)
    assert lab.lease(long.number).state is LeaseState.ACTIVE


def test_who_leaves_enough_boards_for_a_reservation_leases_as_ever() -> None:
    lab = scheduler("a1", "a2", "a3")
    reserve(lab, count=2)
    assert ask(lab, "ann", 10.0, 2 * HOUR).state is LeaseState.ACTIVE
    assert ask(lab, "eve", 10.0, 2 * HOUR).state is LeaseState.QUEUED
    assert lab.missing(10.0) == {}


def test_a_reservation_is_a_lease_at_its_time_that_ends_with_it() -> None:
    lab = scheduler("a1", "a2")
    made = reserve(lab, count=2, labels={"job": "7"})
    earlier = ask(lab, "ann", 0.0, HOUR)
    waiting = ask(lab, "eve", 1.0, 600.0, count=2)
    assert events(lab).count("reservation-made") == 1
    lab.tick(HOUR + 0.5)
    assert lab.lease(earlier.number).state is LeaseState.EXPIRED
    lease = lease_of(lab, made)
    assert (lease.state, lease.ends_at, lease.request.owner) == (LeaseState.ACTIVE, 2 * HOUR, "bob")
    assert (lease.key, lease.request.labels, len(lease.boards)) == ("its key", {"job": "7"}, 2)
    assert lease.request.reservation == made.number
    assert lab.lease(waiting.number).state is LeaseState.QUEUED, "it has waited for an hour"
    assert "reservation-began" in events(lab)
    lab.claim(lease.number)
    lab.tick(2 * HOUR)
    assert lab.lease(lease.number).state is LeaseState.EXPIRED
    assert lab.reservations() == []
    assert lab.lease(waiting.number).state is LeaseState.ACTIVE


def test_a_reservation_that_nobody_picks_up_lapses_and_its_boards_go_to_others() -> None:
    lab = scheduler("a1")
    made = reserve(lab)
    waiting = ask(lab, "eve", 1.0, HOUR)
    lab.tick(HOUR)
    lease = lease_of(lab, made)
    lab.tick(HOUR + 599.0)
    assert lab.lease(lease.number).state is LeaseState.ACTIVE
    lab.take()
    lab.tick(HOUR + 600.0)
    ended = lab.lease(lease.number)
    assert (ended.state, ended.why) == (LeaseState.LAPSED, "not picked up for 600 s")
    assert lab.lease(waiting.number).boards == ("a1",)
    effects = lab.take()
    assert effects.reservations[made.number].state is ReservationState.LAPSED
    [lapsed] = [event for event in effects.events if event.what == "reservation-lapsed"]
    assert (lapsed.who, lapsed.lease) == ("bob", lease.number)


def test_who_asks_for_a_reservations_boards_has_them_to_its_end() -> None:
    lab = scheduler("a1")
    made = reserve(lab)
    with pytest.raises(UsageError, match="has not begun"):
        lab.lease_of_reservation(made.number, "a", Caller("bob"), 10.0)
    lab.tick(HOUR)
    with pytest.raises(UsageError, match="is not yours"):
        lab.lease_of_reservation(made.number, "a", Caller("eve"), HOUR)
    with pytest.raises(UsageError, match="is not of kind 'b'"):
        lab.lease_of_reservation(made.number, "b", Caller("bob"), HOUR)
    lease = lab.lease_of_reservation(made.number, "a", Caller("bob"), HOUR)
    lab.claim(lease.number)
    lab.tick(HOUR + 700.0)
    assert lab.lease(lease.number).state is LeaseState.ACTIVE
    lab.end(lease.number, Caller("bob"), HOUR + 800.0)
    assert lab.reservations() == [] and "reservation-lapsed" not in events(lab)


def test_a_reservation_whose_boards_failed_begins_with_what_is_there_and_gets_more_first() -> None:
    lab = scheduler("a1", "a2", "a3")
    made = reserve(lab, count=3)
    lab.board_gone("a3", 100.0)
    assert lab.missing(100.0) == {made.number: 1}
    assert ask(lab, "ann", 110.0, 2 * HOUR).state is LeaseState.QUEUED, "it would lack two"
    lab.tick(HOUR)
    lease = lease_of(lab, made)
    assert (lease.state, set(lease.boards)) == (LeaseState.ACTIVE, {"a1", "a2"})
    lab.claim(lease.number)
    lab.board_idle("a3", "a", HOUR + 60.0)
    lease = lab.lease(lease.number)
    assert set(lease.boards) == {"a1", "a2", "a3"} and lease.given_at == {"a3": HOUR + 60.0}
    lab.end(lease.number, Caller("bob"), HOUR + 70.0)
    assert [lab.holder(board) for board in ("a2", "a3")] == [None, None]


def test_a_reservation_waits_for_a_session_that_overstays_for_some_time() -> None:
    lab = scheduler("a1", "a2")
    made = reserve(lab, count=2)
    ask(lab, "ann", 0.0, HOUR)
    lab.board_busy("a1")
    lab.tick(HOUR)
    assert lease_of(lab, made).state is LeaseState.QUEUED, "a1 may be free any moment"
    assert ask(lab, "eve", HOUR, 60.0).state is LeaseState.QUEUED
    lab.tick(HOUR + 119.0)
    assert lease_of(lab, made).state is LeaseState.QUEUED
    lab.tick(HOUR + 120.0)
    assert lease_of(lab, made).boards == ("a2",)
    lab.board_idle("a1", "a", HOUR + 130.0)
    assert set(lease_of(lab, made).boards) == {"a1", "a2"}


def test_a_reservation_for_which_there_are_no_boards_until_its_end_lapses() -> None:
    lab = scheduler("a1")
    made = reserve(lab)
    lab.board_gone("a1", 10.0)
    lab.tick(HOUR)
    assert lease_of(lab, made).state is LeaseState.QUEUED
    number = lease_of(lab, made).number
    lab.tick(2 * HOUR)
    ended = lab.lease(number)
    assert (ended.state, ended.why) == (LeaseState.TIMED_OUT, "1 of a wanted, 0 connected")
    assert lab.take().reservations[made.number].state is ReservationState.LAPSED


def test_an_extension_into_reserved_time_is_refused_and_says_how_far_it_may_go() -> None:
    lab = scheduler("a1", "a2")
    lease = ask(lab, "ann", 0.0, 0.5 * HOUR)
    reserve(lab, count=2)
    with pytest.raises(UsageError) as caught:
        lab.extend(lease.number, Caller("ann"), HOUR, 10.0)
    what, why, fix = caught.value.parts()
    assert (what, fix) == ("lease 1 cannot be extended so far", "farm lab extend 1 30m")
    assert why == f"reserved for bob from {clock_time(HOUR, 10.0)}"
    assert lab.extend(lease.number, Caller("ann"), 0.5 * HOUR, 20.0).ends_at == HOUR
    with pytest.raises(UsageError, match="give the boards back"):
        lab.extend(lease.number, Caller("ann"), 1.0, 30.0)
    lab.cancel_reservation(1, Caller("bob"), 40.0)
    assert lab.extend(lease.number, Caller("ann"), 60.0, 50.0).ends_at == HOUR + 60.0


def test_a_client_that_knows_of_no_leases_gets_no_board_that_it_could_keep_too_long() -> None:
    rules = dataclasses.replace(
        RULES, classes={**RULES.classes, "batch": LeaseClass(0.5 * HOUR)}, implicit_rank="batch"
    )
    lab = scheduler("a1", rules=rules)
    reserve(lab)
    early = ask(lab, "10.0.0.1", 0.0, 0.5 * HOUR, rank="batch", implicit=True)
    assert early.state is LeaseState.ACTIVE
    lab.board_idle("a1", "a", 10.0)
    late = ask(lab, "10.0.0.1", 0.6 * HOUR, 0.5 * HOUR, rank="batch", implicit=True)
    assert late.state is LeaseState.QUEUED
    assert lab.prospect(late, 0.6 * HOUR).reason.startswith("reserved for bob")


def test_a_check_waits_for_a_reservation_unless_the_board_could_not_be_lent_without() -> None:
    lab = scheduler("a1")
    reserve(lab, starts_at=300.0)
    assert lab.take_for_check("a1", "key", 600.0, 10.0) is None
    assert not lab.can_be_missed("a1", 600.0, 10.0) and lab.can_be_missed("a1", 200.0, 10.0)
    lab.bar("a1", "to be checked", False, "unchecked", 20.0, briefly=True)
    assert lab.missing(20.0) == {}, "it will be checked by then"
    assert lab.take_for_check("a1", "key", 600.0, 30.0) is not None


def test_a_board_that_is_not_fit_is_not_counted_on() -> None:
    lab = scheduler("a1", "a2")
    made = reserve(lab, count=2)
    lab.bar("a2", "out of service: a new fan", False, "good", 10.0)
    assert lab.missing(10.0) == {made.number: 1}
    with pytest.raises(UsageError, match="cannot be had then"):
        reserve(lab, starts_at=3 * HOUR, count=2, now=20.0)
    lab.bar("a2", "", False, "good", 30.0)
    assert lab.missing(30.0) == {}


def test_a_lease_that_has_lost_a_board_gets_none_that_a_reservation_would_lack() -> None:
    lab = scheduler("a1", "a2")
    lease = ask(lab, "ann", 0.0, 2 * HOUR)
    [held] = lease.boards
    other = ({"a1", "a2"} - {held}).pop()
    reserve(lab)
    lab.board_silent(held, "nothing heard for 25 s", 100.0)
    assert lab.lease(lease.number).boards == (held,)
    lab.cancel_reservation(1, Caller("bob"), 200.0)
    lab.tick(201.0)
    assert lab.lease(lease.number).boards == (other,)


def test_a_board_with_a_tag_is_left_for_who_has_reserved_one_with_it() -> None:
    listed = [InventoryBoard("a1", "a", "", ("fan",)), InventoryBoard("a2", "a", "")]
    lab = LeaseScheduler(RULES, listed)
    for name in ("a1", "a2"):
        lab.board_idle(name, "a", 0.0)
    reserve(lab, tags=("fan",))
    assert ask(lab, "ann", 1.0, 2 * HOUR).boards == ("a2",)
    fan = ask(lab, "eve", 2.0, 2 * HOUR, tags=("fan",))
    assert lab.prospect(fan, 2.0).surely_by == 2 * HOUR
    with pytest.raises(UsageError, match=r"2 boards of kind a tagged fan.*\nwhy: the lab has 1"):
        reserve(lab, starts_at=5 * HOUR, count=2, tags=("fan",))


def test_a_promise_stands_though_a_plan_from_scratch_would_not_find_it() -> None:
    listed = [InventoryBoard("a1", "a", "", ("fan",)), InventoryBoard("a2", "a", "")]
    lab = LeaseScheduler(RULES, listed)
    for name in ("a1", "a2"):
        lab.board_idle(name, "a", 0.0)
    short = reserve(lab, starts_at=4 * HOUR, for_s=HOUR)
    long = reserve(lab, starts_at=4 * HOUR, for_s=2 * HOUR)
    fan = reserve(lab, starts_at=5 * HOUR, for_s=2 * HOUR, tags=("fan",))
    for now in (10.0, 3 * HOUR, 4 * HOUR, 5 * HOUR):
        lab.tick(now)
        assert lab.missing(now) == {}
        for one in lab.leases():
            lab.claim(one.number)
    assert [one.number for one in lab.reservations()] == [long.number, fan.number]
    assert lease_of(lab, fan).boards == ("a1",) and short.number == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kind": "c"}, r"no board is of kind 'c'\nwhy: .*\nfix: farm lab boards"),
        ({"starts_at": 5.0}, r"is past\nwhy: it is .*\nfix: farm lab lease a"),
        ({"starts_at": 15 * 24 * HOUR}, r"too far ahead\nwhy: .* at most 14d ahead\nfix: "),
        ({"for_s": 3 * HOUR}, r"3h is too long.*\nwhy: its longest is 2h\nfix: --for 2h"),
        ({"count": 4}, r"4 boards of kind a cannot be.*\nwhy: the lab has 3\nfix: --count 3"),
        ({"rank": "vip"}, r"there is no class 'vip'\nwhy: .*\nfix: --class interactive"),
    ],
)  # fmt: skip
def test_what_cannot_be_reserved_is_refused_in_three_lines(
    more: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        reserve(scheduler("a1", "a2", "a3"), now=10.0, **more)  # type: ignore[arg-type]


def test_boards_that_others_have_then_are_refused_with_whose_and_when_they_are_free() -> None:
    lab = scheduler("a1", "a2")
    reserve(lab, "ann", count=2)
    ask(lab, "eve", 0.0, HOUR)
    with pytest.raises(UsageError) as caught:
        reserve(lab, "bob", 1.5 * HOUR, count=2)
    what, why, fix = caught.value.parts()
    at, until = clock_time(HOUR, 0.0), clock_time(2 * HOUR, 0.0)
    assert what == "2 boards of kind a cannot be had then"
    assert why == f"ann has reserved 2 from {at} to {until}; free next from {until}"
    again = datetime.datetime.fromtimestamp(2 * HOUR).astimezone().isoformat(timespec="minutes")
    assert fix == f"farm lab reserve a --count 2 --from {again} --for 1h"
    assert parse_time(again, 0.0) == 2 * HOUR
    with pytest.raises(UsageError, match=r"eve has leased 1 until .*free next from"):
        reserve(lab, "bob", 0.5 * HOUR, 0.5 * HOUR, count=2)
    assert reserve(lab, "bob", 2 * HOUR, count=2).number == 2


def test_an_owner_reserves_so_often_and_so_much_and_no_more() -> None:
    rules = dataclasses.replace(
        RULES,
        classes={**RULES.classes, "interactive": LeaseClass(2 * HOUR, boards=2)},
        reservations=ReservationRules(of_owner=2),
    )
    lab = scheduler("a1", "a2", "a3", "a4", rules=rules)
    reserve(lab, count=1)
    with pytest.raises(UsageError, match="3 boards are too many"):
        reserve(lab, count=3)
    with pytest.raises(UsageError, match=r"2 more boards are too many.*\nwhy: .*has reserved 1"):
        reserve(lab, starts_at=1.5 * HOUR, count=2)
    reserve(lab, starts_at=2 * HOUR, count=2)
    with pytest.raises(UsageError, match=r"no more can be reserved\nwhy: bob has 2 reservations"):
        reserve(lab, starts_at=5 * HOUR)
    reserve(lab, "ann", count=2)


def test_reservations_that_only_touch_are_not_at_once() -> None:
    classes = {**RULES.classes, "interactive": LeaseClass(2 * HOUR, boards=2)}
    lab = scheduler("a1", "a2", rules=dataclasses.replace(RULES, classes=classes))
    reserve(lab, starts_at=2 * HOUR, count=2)
    reserve(lab, starts_at=3 * HOUR, count=2)
    reserve(lab, starts_at=HOUR, count=2)
    with pytest.raises(UsageError, match="2 more boards are too many"):
        reserve(lab, starts_at=1.5 * HOUR, for_s=0.6 * HOUR, count=2)


def test_its_owner_cancels_a_reservation_and_an_administrator_with_a_reason() -> None:
    lab = scheduler("a1")
    made = reserve(lab)
    waiting = ask(lab, "eve", 1.0, 2 * HOUR)
    with pytest.raises(UsageError, match="is not yours"):
        lab.cancel_reservation(made.number, Caller("eve"), 2.0)
    root = Caller("root", admin=True)
    with pytest.raises(UsageError, match="says why"):
        lab.cancel_reservation(made.number, root, 2.0)
    cancelled = lab.cancel_reservation(made.number, root, 3.0, "a new fan")
    assert (cancelled.state, cancelled.why) == (ReservationState.CANCELLED, "a new fan")
    assert lab.lease(waiting.number).state is LeaseState.ACTIVE
    [event] = [one for one in lab.take().events if one.what == "reservation-cancelled"]
    assert (event.who, event.detail) == ("root", "reservation 1: a new fan")
    with pytest.raises(UsageError, match="there is no reservation 1"):
        lab.cancel_reservation(made.number, Caller("bob"), 4.0)
    begun = reserve(lab, starts_at=3 * HOUR, now=5.0)
    lab.tick(3 * HOUR)
    with pytest.raises(UsageError, match=r"has begun\nwhy: .*lease \d+\nfix: farm lab end"):
        lab.cancel_reservation(begun.number, Caller("bob"), 3 * HOUR)


def test_a_reservation_that_is_asked_for_again_is_the_same() -> None:
    lab = scheduler("a1")
    assert reserve(lab, nonce="x").number == reserve(lab, nonce="x").number == 1
    with pytest.raises(UsageError, match="cannot be had then"):
        reserve(lab, "ann", nonce="x")


def restarted(lab: LeaseScheduler, now: float) -> LeaseScheduler:
    """The lab after a restart, with what it had kept."""
    kept = [reservation_from_json(reservation_to_json(one)) for one in lab.reservations()]
    past = RestoredState(
        lab.leases(), (), ["a"], next_lease=50, reservations=kept, next_reservation=9
    )
    again = LeaseScheduler(RULES, (), past, now)
    again.tick(now)
    return again


def test_a_reservation_whose_time_came_without_a_server_begins_when_there_is_one() -> None:
    lab = scheduler("a1", "a2")
    made, over = reserve(lab), reserve(lab, "ann", starts_at=600.0, for_s=600.0)
    later = reserve(lab, "eve", starts_at=9 * HOUR)
    again = restarted(lab, HOUR + 900.0)
    assert again.take().reservations[over.number].state is ReservationState.LAPSED
    assert [one.number for one in again.reservations()] == [made.number, later.number]
    again.board_idle("a1", "a", HOUR + 902.0)
    lease = lease_of(again, made)
    assert (lease.state, lease.ends_at, lease.key) == (LeaseState.ACTIVE, 2 * HOUR, "its key")
    assert reserve(again, "eve", starts_at=5 * HOUR, now=HOUR + 903.0).number == 9


def test_a_reservation_that_was_not_picked_up_lapses_after_a_restart_too() -> None:
    lab = scheduler("a1", "a2")
    unused, used = reserve(lab), reserve(lab, "ann")
    lab.tick(HOUR)
    lab.claim(lease_of(lab, used).number)
    again = restarted(lab, HOUR + 300.0)
    numbers = [lease_of(again, one).number for one in (unused, used)]
    again.tick(HOUR + 900.0)
    states = [again.lease(number).state for number in numbers]
    assert states == [LeaseState.LAPSED, LeaseState.ACTIVE]


def test_a_start_between_reservations_is_where_the_whole_lease_fits() -> None:
    def waiting(number: int, count: int, for_s: float) -> Lease:
        return Lease(number, LeaseRequest("ann", "a", for_s, count=count), "key", 0.0)

    reserved = [BusyPeriod(100.0, 200.0, 2), BusyPeriod(250.0, 300.0, 1)]
    one, pair = waiting(1, 1, 50.0), waiting(2, 2, 60.0)
    assert guaranteed_starts([one], [0.0, 0.0], reserved)[-1] == 0.0
    assert guaranteed_starts([one], [60.0, 60.0], reserved)[-1] == 200.0
    assert guaranteed_starts([pair], [10.0, 50.0], reserved)[-1] == 300.0
    assert guaranteed_starts([pair, waiting(3, 1, 100.0)], [10.0, 50.0], reserved)[-1] == 200.0
    assert guaranteed_starts([waiting(4, 3, 1.0)], [0.0, 0.0], reserved)[-1] is None


NOON = datetime.datetime(2026, 11, 25, 12, 0, 30).timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("14:00", datetime.datetime(2026, 11, 25, 14)),
        ("12:00", datetime.datetime(2026, 11, 26, 12)),
        ("9:30", datetime.datetime(2026, 11, 26, 9, 30)),
        ("tomorrow 14:00", datetime.datetime(2026, 11, 26, 14)),
        ("today 09:00", datetime.datetime(2026, 11, 25, 9)),
        ("2026-11-27T08:15", datetime.datetime(2026, 11, 27, 8, 15)),
        ("2026-11-27 08:15:30", datetime.datetime(2026, 11, 27, 8, 15, 30)),
        ("2026-11-27T08:15Z", datetime.datetime(2026, 11, 27, 8, 15, tzinfo=datetime.UTC)),
        ("2026-11-27T08:15+01:00", datetime.datetime(2026, 11, 27, 7, 15, tzinfo=datetime.UTC)),
        ("+2h", datetime.datetime(2026, 11, 25, 14, 0, 30)),
    ],
)
def test_a_time_is_read(text: str, at: datetime.datetime) -> None:
    assert parse_time(text, NOON) == at.timestamp()


@pytest.mark.parametrize(
    "text", ["", "noon", "25:00", "12:60", "14", "2026-11-27", "yesterday 12:00", "2026-13-01T00"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_time(text, NOON)


def test_a_refusal_makes_few_plans_however_many_times_it_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It made two for each of 200 times: 0.6 s in which the lab's server did nothing else."""
    names = [f"a{number}" for number in range(64)]
    lab = scheduler(*names)
    for number in range(64):
        ask(lab, f"user{number}", 0.0, 600.0 + 60 * number)
    for person in range(8):
        for number in range(8):
            reserve(lab, f"user{person}", (3 + person * 8 + number) * HOUR / 2, HOUR, count=13)
    made: list[int] = []
    plan = reservations.plan_boards

    def counted(
        periods: Sequence[ReservedPeriod], boards: Mapping[str, BoardForecast], before: Plan
    ) -> Plan:
        made.append(len(periods))
        return plan(periods, boards, before)

    monkeypatch.setattr(reservations, "plan_boards", counted)
    with pytest.raises(UsageError, match="free next from") as refused:
        reserve(lab, "eve", HOUR, HOUR, count=64)
    assert len(made) <= 3
    monkeypatch.undo()
    said = refused.value.fix
    again = datetime.datetime.fromisoformat(said.partition("--from ")[2].split()[0]).timestamp()
    assert again == 34 * HOUR, "when the last of the others ends"
    assert reserve(lab, "eve", again, HOUR, count=64)
    lab.cancel_reservation(lab.reservations()[-1].number, Caller("eve"), 0.0)
    with pytest.raises(UsageError):
        reserve(lab, "eve", again - 60, HOUR, count=64)


@given(data=st.data())
def test_where_counting_finds_no_room_there_is_no_plan(data: st.DataObject) -> None:
    tags = st.sampled_from(((), ("fan",), ("quiet",), ("fan", "quiet")))
    boards = {
        f"a{number}": BoardForecast(
            f"a{number}",
            data.draw(tags),
            float(data.draw(st.integers(0, 3))),
            data.draw(st.booleans()),
        )
        for number in range(data.draw(st.integers(1, 5)))
    }

    def period(number: int) -> ReservedPeriod:
        starts_at = float(data.draw(st.integers(0, 5)))
        until = starts_at + data.draw(st.integers(1, 4))
        rank = data.draw(st.sampled_from(("interactive", "batch")))
        count = data.draw(st.integers(1, 3))
        return ReservedPeriod(number, starts_at, until, count, data.draw(tags), rank)

    periods = [period(number) for number in range(data.draw(st.integers(0, 6)))]
    room, wanted = RoomFinder(periods, boards, {}), period(100)
    before = reservations.plan_boards(periods, boards, {})
    other = reservations.plan_boards([*periods, wanted], boards, before)
    suffers = any(len(other[number]) < len(names) for number, names in before.items())
    if not suffers and not reservations.missing_boards([wanted], other):
        assert room.has_room(wanted) and room.plan(wanted) == other
    else:
        assert room.plan(wanted) is None
    is_plain = not any(one.tags for one in [*periods, wanted])
    is_plain &= not any(board.tags or board.batch_only for board in boards.values())
    if is_plain and not reservations.missing_boards(periods, before):
        assert room.has_room(wanted) == (room.plan(wanted) is not None), "counting is enough"
    for names in other.values():
        assert len(set(names)) == len(names)
    for name in boards:
        having = [one for one in [*periods, wanted] if name in other[one.reservation]]
        for one in having:
            assert one.fits(boards[name]) and boards[name].free_at <= one.starts_at
            assert not any(
                one.overlaps(two.starts_at, two.until) for two in having if two is not one
            )
