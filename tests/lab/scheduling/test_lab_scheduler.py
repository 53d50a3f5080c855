"""Who has which board: against a model of plain lists, and case by case. No socket, no database, no
clock.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.errors import DeviceError, FarmError, UsageError
from farm.lab.durations import format_duration, parse_duration
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
    ReservationState,
    SharingRules,
)
from farm.lab.scheduling.queue_order import (
    DecayingUsageByOwner,
    Turn,
    guaranteed_starts,
    queue_sort_key,
)
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import RestoredState

LONGEST_S = 3600.0
RULES = SharingRules(
    classes={rank: LeaseClass(LONGEST_S) for rank in RANKS}, aging_s=600.0, gather_s=120.0, queue=50
)
KINDS = {"a1": "a", "a2": "a", "a3": "a", "b1": "b"}
TAGS = {"a1": ("fan",), "a2": ("fan", "quiet"), "a3": (), "b1": ()}
OWNERS = ("ann", "bob", "eve")
BOUND_S = 3 * RULES.aging_s  # after it, nobody who came later goes before


def scheduler(*boards: str, rules: SharingRules = RULES) -> LeaseScheduler:
    """A lab in which these boards are idle."""
    lab = LeaseScheduler(rules)
    for name in boards:
        lab.board_idle(name, name[0], 0.0)
    return lab


def ask(
    lab: LeaseScheduler,
    owner: str,
    now: float = 0.0,
    kind: str = "a",
    for_s: float = 60.0,
    **more: object,
) -> Lease:
    return lab.request(dataclasses.replace(LeaseRequest(owner, kind, for_s), **more), "key", now)  # type: ignore[arg-type]


def can_be_kept(
    promised: list[Reservation], free_at: dict[str, float], tags: dict[str, tuple[str, ...]]
) -> bool:
    """Whether boards can be found for all reservations, by trying all."""
    order = sorted(promised, key=lambda one: one.request.starts_at)
    if not order:
        return True
    wanted = order[0].request
    fit = [
        board
        for board, at in free_at.items()
        if at <= wanted.starts_at and set(wanted.tags) <= set(tags[board])
    ]
    return any(
        can_be_kept(order[1:], {**free_at, **dict.fromkeys(chosen, wanted.until)}, tags)
        for chosen in itertools.combinations(fit, wanted.count)
    )


class AgainstLists(RuleBasedStateMachine):
    """The lab beside what it must hold to: who has what, by lists, from its events of granting and
    ending alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        listed = [InventoryBoard(name, kind, "", TAGS[name]) for name, kind in KINDS.items()]
        self.lab = LeaseScheduler(RULES, listed)
        for name, kind in KINDS.items():
            self.lab.board_idle(name, kind, 0.0)
        self.present = set(KINDS)
        self.strange: dict[str, float] = {}  # sessions without a lease, since when
        self.promised: dict[int, Reservation] = {}  # that have not begun
        self.shaken: set[int] = set()  # of which boards have hung up
        self.idle = set(KINDS)
        self.live: dict[int, Lease] = {}  # as the effects told
        self.asked: set[int] = set()
        self.gone: set[int] = set()
        self.granted_at: dict[int, float] = {}
        self.lab.take()

    def follow(self) -> None:
        effects = self.lab.take()
        for lease in effects.leases.values():
            if lease.request.reservation is not None and lease.number not in self.asked:
                assert lease.request.reservation in self.promised
                assert self.promised[lease.request.reservation].request.starts_at <= self.now
                self.asked.add(lease.number)
        for one in effects.reservations.values():
            if one.state is ReservationState.PLANNED:
                self.promised[one.number] = one
            elif one.number in self.promised:
                begun = self.promised.pop(one.number)
                if one.state is ReservationState.BEGAN:
                    self.has_begun(begun, effects.leases)
        taken = {board for lease in self.live.values() for board in lease.boards}
        ended = {lease.number for lease in effects.ended}
        before = {number: one for number, one in self.live.items() if number not in ended}
        now_live = dict(before)
        for lease in effects.granted:
            if lease.number not in ended:
                now_live[lease.number] = lease
        if self.can_all_be_kept(before):
            assert self.can_all_be_kept(now_live), "a grant makes a reservation impossible"
        for lease in (*effects.ended, *effects.granted):
            if lease.state is LeaseState.ACTIVE:
                assert lease.number in self.asked and lease.number not in self.gone
                if lease.number in self.live:  # it is given a further board
                    taken -= set(self.live[lease.number].boards)
                else:
                    assert set(lease.boards) <= self.idle, (
                        "a board is lent that has not said that it is idle"
                    )
                assert not taken & set(lease.boards), "a board is lent twice"
                if lease.request.reservation is None:
                    assert len(set(lease.boards)) == lease.request.count
                assert 0 < len(set(lease.boards)) <= lease.request.count
                assert {KINDS[board] for board in lease.boards} == {lease.request.kind}
                taken |= set(lease.boards)
                self.live[lease.number] = lease
                if lease.request.implicit:
                    self.idle -= set(lease.boards)
            else:
                taken -= set(lease.boards)
                self.gone.add(lease.number)
                self.live.pop(lease.number, None)

    def can_all_be_kept(self, live: dict[int, Lease]) -> bool:
        """Whether boards can be found for all that is promised, for each kind."""
        free_at = dict.fromkeys(self.present, self.now)
        for board, since in self.strange.items():
            free_at[board] = since + LONGEST_S
        for lease in live.values():
            for board in lease.boards:
                if board in self.present:
                    free_at[board] = max(self.now, lease.ends_at or 0.0)
        return all(
            can_be_kept(
                [one for one in self.promised.values() if one.request.kind == kind],
                {board: at for board, at in free_at.items() if KINDS[board] == kind},
                TAGS,
            )
            for kind in "ab"
        )

    def has_begun(self, reservation: Reservation, leases: dict[int, Lease]) -> None:
        """A reservation has its boards at its time, if its boards live and nobody overstays."""
        [lease] = [one for one in leases.values() if one.request.reservation == reservation.number]
        kind = reservation.request.kind
        late = {
            board
            for one in self.live.values()
            for board in one.boards
            if one.request.implicit and (one.ends_at or 0.0) <= self.now
        }
        strange = {board for board in self.strange if KINDS[board] == kind}
        if reservation.number in self.shaken or late or strange:
            return
        busy = {board for board in self.present - self.idle if KINDS[board] == kind}
        held = {board for one in self.lab.leases() for board in one.boards}
        if not busy - held:
            assert lease.state is LeaseState.ACTIVE
            assert len(lease.boards) == reservation.request.count
            assert lease.ends_at == reservation.request.until

    @rule(owner=st.sampled_from(OWNERS), kind=st.sampled_from("aab"), count=st.integers(1, 3),
          in_s=st.sampled_from([30.0, 100.0, 500.0, 4000.0]), for_s=st.sampled_from([60.0, 900.0]),
          tags=st.sampled_from([(), (), ("fan",), ("quiet",)]))  # fmt: skip
    def reserve(
        self, owner: str, kind: str, count: int, in_s: float, for_s: float, tags: tuple[str, ...]
    ) -> None:
        request = ReservationRequest(
            owner, kind, self.now + in_s, for_s, count=count, tags=tags if kind == "a" else ()
        )
        try:
            made = self.lab.reserve(request, "key", self.now)
        except UsageError:
            return
        if any(KINDS[board] == kind for board in set(KINDS) - self.present):
            self.shaken.add(made.number)  # it counts on one that is away
        self.follow()

    @precondition(lambda self: self.promised)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.promised)))
        owner = self.promised[number].request.owner
        with pytest.raises(UsageError):
            self.lab.cancel_reservation(number, Caller("mallory"), self.now)
        self.lab.cancel_reservation(number, Caller(owner), self.now)
        self.follow()

    @precondition(lambda self: self.lab.leases())
    @rule(data=st.data(), by_s=st.sampled_from([60.0, 600.0, 2000.0]))
    def extend(self, data: st.DataObject, by_s: float) -> None:
        lease = data.draw(st.sampled_from(self.lab.leases()))
        possible = self.can_all_be_kept(self.live)
        if lease.state is LeaseState.ACTIVE and not lease.request.implicit:
            try:
                longer = self.lab.extend(lease.number, Caller(lease.request.owner), by_s, self.now)
            except UsageError:
                return
            self.live[lease.number] = longer
            if possible:
                assert self.can_all_be_kept(self.live), "an extension breaks a promise"
        self.follow()

    @rule(owner=st.sampled_from(OWNERS), kind=st.sampled_from("ab"), rank=st.sampled_from(RANKS), count=st.integers(1, 3),  # noqa: E501
          for_s=st.sampled_from([60.0, 900.0, LONGEST_S]), beats=st.booleans(), implicit=st.booleans())  # fmt: skip  # noqa: E501
    def request(
        self,
        owner: str,
        kind: str,
        rank: str,
        count: int,
        for_s: float,
        beats: bool,
        implicit: bool,
    ) -> None:
        count = 1 if kind == "b" or implicit else count
        request = LeaseRequest(
            owner,
            kind,
            for_s,
            rank,
            count,
            heartbeat_s=300.0 if beats and not implicit else None,
            implicit=implicit,
        )
        lease = self.lab.request(request, "key", self.now)
        assert lease.number not in self.asked
        self.asked.add(lease.number)
        self.follow()

    @precondition(lambda self: self.lab.leases())
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def end(self, data: st.DataObject, owner: str) -> None:
        lease = data.draw(st.sampled_from(self.lab.leases()))
        if owner == lease.request.owner and not lease.request.implicit:
            assert self.lab.end(lease.number, Caller(owner), self.now).state in (
                LeaseState.RELEASED,
                LeaseState.CANCELLED,
            )
        else:
            with pytest.raises(FarmError):
                self.lab.end(lease.number, Caller("mallory"), self.now)
        self.follow()

    @rule(board=st.sampled_from(sorted(KINDS)))
    def session_begins_or_ends(self, board: str) -> None:
        if board in self.idle:
            self.lab.board_busy(board)
            self.idle.discard(board)
            if all(board not in lease.boards for lease in self.live.values()):
                self.strange[board] = self.now
        else:
            self.idle.add(board)
            self.present.add(board)
            self.strange.pop(board, None)
            self.lab.board_idle(board, KINDS[board], self.now)
        self.follow()

    @rule(board=st.sampled_from(sorted(KINDS)))
    def hang_up(self, board: str) -> None:
        if any(view.name == board for view in self.lab.boards()):
            self.idle.discard(board)
            self.present.discard(board)
            self.strange.pop(board, None)
            self.shaken |= {
                one.number for one in self.promised.values() if one.request.kind == KINDS[board]
            }
            self.lab.board_gone(board, self.now)
            self.follow()

    @rule(seconds=st.sampled_from([1.0, 50.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for lease in self.lab.leases():
            if lease.number % 2 and not lease.request.implicit:
                self.lab.heartbeat(lease.number, Caller(lease.request.owner), self.now)
        self.lab.tick(self.now)
        self.follow()

    @invariant()
    def nothing_is_lost_and_nothing_lasts_too_long(self) -> None:
        known = {lease.number for lease in self.lab.leases()}
        assert known == self.asked - self.gone
        assert {one.number for one in self.lab.leases() if one.state is LeaseState.ACTIVE} == set(
            self.live
        )
        for lease in self.live.values():
            assert (
                lease.request.implicit or (lease.ends_at or 0.0) + 400.0 >= self.now
            )  # by the last tick's time

    @invariant()
    def who_has_aged_is_served_in_the_order_of_asking(self) -> None:
        waiting = [lease for lease in self.lab.leases() if lease.state is LeaseState.QUEUED]
        for lease in waiting:
            if self.now - lease.asked_at < BOUND_S:
                continue
            for other in waiting:
                if other.request.reservation is not None:
                    continue  # its time has come
                if other.request.kind == lease.request.kind and other.asked_at > lease.asked_at:
                    assert (
                        self.lab.prospect(lease, self.now).place
                        < self.lab.prospect(other, self.now).place
                    )

    @invariant()
    def no_board_is_free_while_one_waits_for_one_alone(self) -> None:
        for kind in "ab":
            if any(one.request.kind == kind for one in self.lab.reservations()):
                continue
            waiting = [
                lease
                for lease in self.lab.leases()
                if lease.state is LeaseState.QUEUED and lease.request.kind == kind
            ]
            if waiting and all(lease.request.count == 1 for lease in waiting):
                assert self.lab.counts(kind)[0] == 0


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_an_owner_may_have_so_many_leases_in_the_queue_and_no_more() -> None:
    lab = scheduler("a1", rules=dataclasses.replace(RULES, queue=2))
    active, *waiting = [ask(lab, "ann") for _ in range(3)]
    assert active.state is LeaseState.ACTIVE
    assert {one.state for one in waiting} == {LeaseState.QUEUED}
    with pytest.raises(UsageError, match="no more leases can wait"):
        ask(lab, "ann")
    assert ask(lab, "bob").state is LeaseState.QUEUED, "the limit is for each owner"
    lab.withdraw(waiting[0].number, 1.0)
    assert ask(lab, "ann", now=1.0).state is LeaseState.QUEUED


def test_an_owners_limit_counts_the_boards_of_one_class() -> None:
    rules = dataclasses.replace(
        RULES, classes={**RULES.classes, "ci": LeaseClass(LONGEST_S, boards=3)}
    )
    lab = scheduler("a1", "a2", "a3", "a4", "a5", "a6", rules=rules)
    assert ask(lab, "ann").state is LeaseState.ACTIVE, "of another class"
    first, two_more, one_more = (
        ask(lab, "ann", 1.0, rank="ci", count=count) for count in (2, 2, 1)
    )
    states = [lab.lease(one.number).state for one in (first, two_more, one_more)]
    assert states == [LeaseState.ACTIVE, LeaseState.QUEUED, LeaseState.ACTIVE]
    assert lab.prospect(two_more, 2.0).reason == "your limit of 3 boards at once"
    assert ask(lab, "bob", 2.0, rank="ci", count=2).state is LeaseState.ACTIVE
    lab.end(first.number, Caller("ann"), 3.0)
    assert lab.lease(two_more.number).state is LeaseState.ACTIVE


def test_the_use_of_an_owner_is_of_all_boards_and_halves_with_time() -> None:
    lab = scheduler("a1", "a2", rules=dataclasses.replace(RULES, half_life_s=1000.0))
    both = ask(lab, "ann", 100.0, count=2, for_s=500.0)
    lab.end(both.number, Caller("ann"), 400.0)
    assert lab.take().used == {"ann": (600.0, 400.0)}
    one = ask(lab, "ann", 2400.0, for_s=500.0)
    lab.end(one.number, Caller("ann"), 2400.0)
    assert lab.take().used == {"ann": (pytest.approx(150.0), 2400.0)}
    lab.end(ask(lab, "ann", 2400.0, for_s=500.0).number, Caller("ann"), 2450.0)
    used, at = lab.take().used["ann"]
    assert (used, at) == (pytest.approx(50.0 + 150.0 * 0.5**0.05), 2450.0)


def test_boards_in_use_count_as_used_already() -> None:
    lab = scheduler("a1", "a2", "a3")
    ask(lab, "ann", count=2, for_s=500.0)
    ask(lab, "bob", for_s=500.0)
    ann, bob = ask(lab, "ann", 1.0, count=2), ask(lab, "bob", 2.0, count=2)
    assert [lab.prospect(one, 100.0).place for one in (bob, ann)] == [1, 2]


def test_of_one_owners_requests_the_one_of_the_higher_priority_is_next() -> None:
    lab = scheduler("a1")
    holder = ask(lab, "eve")
    low, high = ask(lab, "ann", 1.0, priority=1.0), ask(lab, "ann", 2.0, priority=2.0)
    lab.end(holder.number, Caller("eve"), 3.0)
    assert lab.lease(high.number).state is LeaseState.ACTIVE
    assert lab.lease(low.number).state is LeaseState.QUEUED


def test_a_board_in_probation_is_lent_to_batch_work_only() -> None:
    lab = scheduler("a1")
    lab.bar("a1", "", True, "probation", 1.0)
    refused = [ask(lab, "ann", 2.0, rank=rank).state for rank in ("interactive", "ci")]
    assert refused == [LeaseState.QUEUED] * 2
    batch = ask(lab, "bob", 3.0, rank="batch")
    assert batch.boards == ("a1",)
    lab.end(batch.number, Caller("bob"), 4.0)
    assert ask(lab, "eve", 5.0, any_health=True).boards == ("a1",)


def test_nobody_waits_beyond_the_aging_bound_beside_a_stream_of_others() -> None:
    lab = scheduler("a1")
    current = ask(lab, "eve", for_s=300.0)
    batch = ask(lab, "bob", 1.0, rank="batch", for_s=300.0)
    now = 1.0
    while lab.lease(batch.number).state is LeaseState.QUEUED:
        now += 300.0
        ask(
            lab, f"person-{now}", now, for_s=300.0
        )  # each new to the lab, interactive, and without any use
        lab.tick(now)
        assert now < BOUND_S + 2 * 300.0
    assert lab.lease(current.number).state is LeaseState.EXPIRED


def test_the_order_is_by_class_then_by_use_over_share_then_by_age() -> None:
    rules = dataclasses.replace(RULES, shares={"bob": 4.0})
    lab = scheduler("a1", rules=rules)
    for number, (owner, for_s) in enumerate([("ann", 300.0), ("bob", 600.0)]):
        lease = ask(lab, owner, number * 1000.0, for_s=for_s)
        lab.tick(number * 1000.0 + for_s)
        assert lab.lease(lease.number).state is LeaseState.EXPIRED
    holder = ask(lab, "eve", 2000.0, for_s=300.0)
    batch = ask(lab, "new", 2001.0, rank="batch")
    ann, bob, again = (ask(lab, owner, 2002.0) for owner in ("ann", "bob", "bob"))
    places = [lab.prospect(lab.lease(one.number), 2003.0).place for one in (bob, again, ann, batch)]
    assert places == [1, 2, 3, 4], "bob has used twice as much as ann, and has four times her share"
    lab.end(holder.number, Caller("eve"), 2004.0)
    assert lab.lease(bob.number).state is LeaseState.ACTIVE


def test_what_an_owner_has_used_counts_half_after_each_half_life() -> None:
    used = DecayingUsageByOwner(100.0)
    assert used.add("ann", 80.0, 0.0) == 80.0
    assert (used.of("ann", 100.0), used.of("ann", 300.0), used.of("bob", 1.0)) == (40.0, 10.0, 0.0)
    assert used.add("ann", 5.0, 200.0) == 25.0
    assert (used.of("ann", 300.0), used.of("ann", 100.0)) == (12.5, 25.0)


def test_a_waiting_lease_says_its_place_its_reason_and_when() -> None:
    rules = dataclasses.replace(
        RULES, classes={**RULES.classes, "ci": LeaseClass(LONGEST_S, boards=1)}
    )
    lab = scheduler("a1", "a2", rules=rules)
    ask(lab, "ann", for_s=100.0, rank="ci"), ask(lab, "bob", for_s=200.0)
    first = lab.prospect(ask(lab, "eve", 1.0, for_s=50.0), 1.0)
    assert (first.place, first.reason, first.surely_by) == (
        1,
        "waiting for a a: 2 of 2 lent",
        100.0,
    )
    second = lab.prospect(ask(lab, "eve", 2.0, for_s=50.0), 2.0)
    assert (second.place, second.surely_by) == (2, 150.0)
    limited = lab.prospect(ask(lab, "ann", 3.0, rank="ci"), 3.0)
    assert limited.reason == "your limit of 1 board at once"
    many = lab.prospect(ask(lab, "eve", 4.0, count=3), 4.0)
    assert (many.reason, many.surely_by) == ("3 of a wanted, 2 connected", None)


def test_what_all_waiting_leases_are_told_is_what_each_is_told() -> None:
    rules = dataclasses.replace(
        RULES, classes={**RULES.classes, "ci": LeaseClass(LONGEST_S, boards=1)}
    )
    inventory = [InventoryBoard(name, KINDS[name], "", TAGS[name]) for name in KINDS]
    lab = LeaseScheduler(rules, inventory)
    for name in KINDS:
        lab.board_idle(name, KINDS[name], 0.0)
    for place, name in enumerate(("a1", "a2", "a3")):
        ask(lab, "ann", for_s=100.0 * (place + 1), board=name, rank="ci" if place < 1 else "batch")
    wishes = ({}, {"tags": ("fan",)}, {"board": "a3"}, {"count": 2}, {"rank": "ci"}, {"count": 4})
    for number, (owner, wish) in enumerate(itertools.product(OWNERS, wishes)):
        ask(lab, owner, 1.0 + number, for_s=10.0 + number, **wish)
    waiting = [lease for lease in lab.leases() if lease.state is LeaseState.QUEUED]
    told = lab.prospects(waiting, 30.0)
    assert len(told) == len(OWNERS) * len(wishes)
    assert told == {lease.number: lab.prospect(lease, 30.0) for lease in waiting}
    first = {place: at for place, _, at in map(dataclasses.astuple, told.values())}
    assert first[1] == 100.0, "ann has a board until then"


def test_the_queue_is_ordered_once_for_all_leases_that_wait_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab, keys = scheduler("a1"), []
    for _ in range(40):
        ask(lab, "ann")
    waiting = [lease for lease in lab.leases() if lease.state is LeaseState.QUEUED]

    def counted(lease: Lease, *more: Any) -> Turn:
        keys.append(lease.number)
        return queue_sort_key(lease, *more)

    monkeypatch.setattr("farm.lab.scheduling.scheduler.queue_sort_key", counted)
    assert len(lab.prospects(waiting, 1.0)) == len(keys) == 39


def test_a_lease_of_several_boards_gathers_them_and_lets_others_by_after_a_time() -> None:
    lab = scheduler("a1", "a2")
    ask(lab, "ann", for_s=500.0)
    both = ask(lab, "bob", 1.0, count=2)
    single = ask(lab, "eve", 2.0, for_s=30.0, rank="batch")
    lab.tick(100.0)
    assert (
        lab.lease(single.number).state is LeaseState.QUEUED
        and lab.prospect(both, 100.0).reason == "1 of 2 gathered"
    )
    lab.tick(1.0 + RULES.gather_s)
    assert lab.lease(single.number).state is LeaseState.ACTIVE
    lab.tick(200.0)
    later = ask(lab, "eve", 1.0 + 2 * RULES.gather_s, for_s=30.0, rank="batch")
    assert later.state is LeaseState.QUEUED, "it gathers them again"
    lab.tick(500.0)
    assert lab.lease(both.number).state is LeaseState.ACTIVE


def test_a_lease_without_its_heartbeat_is_abandoned_and_its_board_is_lent_on() -> None:
    lab = scheduler("a1")
    lease = ask(lab, "ann", heartbeat_s=60.0, for_s=3000.0)
    next_one = ask(lab, "bob", 1.0)
    lab.heartbeat(lease.number, Caller("ann"), 50.0)
    lab.tick(109.0)
    assert lab.lease(lease.number).state is LeaseState.ACTIVE
    lab.tick(111.0)
    ended = lab.lease(lease.number)
    assert (ended.state, ended.why) == (LeaseState.ABANDONED, "no heartbeat for 60 s")
    assert lab.lease(next_one.number).boards == ("a1",)
    with pytest.raises(DeviceError, match="abandoned"):
        lab.heartbeat(lease.number, Caller("ann"), 112.0)


def test_a_lease_that_is_kept_needs_no_heartbeat_any_more() -> None:
    lab = scheduler("a1")
    lease = ask(lab, "ann", heartbeat_s=60.0, for_s=3000.0)
    with pytest.raises(UsageError, match="is not yours"):
        lab.keep(lease.number, Caller("bob"), 1.0)
    lab.keep(lease.number, Caller("ann"), 50.0)
    assert lab.counts("a") == (0, 0), "it does not wait again"
    lab.tick(2999.0)
    assert lab.lease(lease.number).state is LeaseState.ACTIVE
    lab.tick(3000.0)
    assert lab.lease(lease.number).state is LeaseState.EXPIRED


def test_an_extension_goes_to_the_end_of_the_class_and_not_beyond() -> None:
    lab = scheduler("a1")
    holder, lease = ask(lab, "eve"), ask(lab, "ann", 1.0, for_s=3000.0)
    lab.end(holder.number, Caller("eve"), 50.0)
    assert lab.lease(lease.number).ends_at == 3050.0, "all of its time, from when it has its board"
    assert lab.extend(lease.number, Caller("ann"), 600.0, 60.0).ends_at == 50.0 + LONGEST_S
    with pytest.raises(UsageError, match="too long for a lease of class interactive"):
        lab.extend(lease.number, Caller("ann"), 1.0, 60.0)
    waiting = ask(lab, "ann", 61.0)
    with pytest.raises(UsageError, match="still in the queue"):
        lab.extend(waiting.number, Caller("ann"), 1.0, 62.0)


def test_a_lease_waits_as_long_as_it_was_told_and_not_longer() -> None:
    lab = scheduler("a1")
    ask(lab, "eve", for_s=3000.0)
    short, long = ask(lab, "ann", 1000.0, wait_s=60.0), ask(lab, "bob", 1000.0)
    lab.heartbeat(short.number, Caller("ann"), 1030.0)
    lab.tick(1059.0)
    assert lab.lease(short.number).state is LeaseState.QUEUED
    lab.tick(1060.0)
    ended = lab.lease(short.number)
    assert (ended.state, ended.why) == (LeaseState.TIMED_OUT, "waiting for a a: 1 of 1 lent")
    assert lab.lease(long.number).state is LeaseState.QUEUED


def test_a_lease_that_was_granted_while_nobody_asked_lapses_and_one_that_is_claimed_does_not() -> (
    None
):
    lab = scheduler("a1", "a2", rules=dataclasses.replace(RULES, pickup_s=100.0))
    holders = [ask(lab, "eve") for _ in range(2)]
    left, taken = ask(lab, "ann", 1.0, for_s=3000.0), ask(lab, "bob", 1.0, for_s=3000.0)
    for holder in holders:
        lab.end(holder.number, Caller("eve"), 50.0)
    lab.claim(taken.number)
    lab.tick(149.0)
    assert lab.lease(left.number).state is LeaseState.ACTIVE
    lab.tick(150.0)
    states = [lab.lease(one.number).state for one in (left, taken)]
    assert states == [LeaseState.LAPSED, LeaseState.ACTIVE]
    assert ask(lab, "dan", 151.0).boards == lab.lease(left.number).boards


def test_a_stranger_can_neither_end_nor_prolong_a_lease_and_an_administrator_revokes_it() -> None:
    lab = scheduler("a1")
    lease = ask(lab, "ann")
    for action in (lab.end, lab.heartbeat):
        with pytest.raises(UsageError, match="is not yours"):
            action(lease.number, Caller("bob"), 1.0)
    with pytest.raises(UsageError, match="is not yours"):
        lab.extend(lease.number, Caller("root", admin=True), 1.0, 1.0)
    revoked = lab.end(lease.number, Caller("root", admin=True), 2.0, "a new fan")
    assert (revoked.state, revoked.why) == (LeaseState.REVOKED, "a new fan")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kind": "aa"}, "no board is of kind 'aa'"),
        ({"board": "a9"}, "there is no board 'a9' of kind a"),
        ({"for_s": LONGEST_S + 1}, "1h1s is too long"),
        ({"rank": "urgent"}, "there is no class 'urgent'"),
    ],
)
def test_a_request_that_cannot_be_granted_is_refused_at_once(
    more: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ask(scheduler("a1"), "ann", **more)  # type: ignore[arg-type]


def test_a_request_that_is_sent_again_is_the_same_lease() -> None:
    lab = scheduler("a1")
    first = ask(lab, "ann", nonce="x")
    assert ask(lab, "ann", 5.0, nonce="x").number == first.number
    assert ask(lab, "bob", 5.0, nonce="x").number != first.number


def test_a_lab_that_starts_again_goes_on_with_its_leases_and_its_queue() -> None:
    lab = scheduler("a1")
    active, waiting = ask(lab, "ann", for_s=100.0), ask(lab, "bob", 1.0)
    later = ask(lab, "eve", 2.0)
    past = RestoredState(
        [lab.lease(one.number) for one in (active, waiting, later)],
        (),
        ["a"],
        {"eve": (0.0, 2.0)},
        4,
        9,
    )
    again = LeaseScheduler(RULES, (), past, 50.0)
    again.board_idle("a1", "a", 51.0)
    assert again.lease(active.number).boards == ("a1",) and again.counts("a") == (0, 2)
    assert [again.prospect(again.lease(one.number), 51.0).place for one in (waiting, later)] == [
        1,
        2,
    ]
    again.tick(100.0)
    assert again.lease(waiting.number).state is LeaseState.ACTIVE
    assert ask(again, "ann", 101.0).number == 4
    assert again.take().events[0].number == 9


def test_an_implicit_lease_lasts_until_its_board_offers_itself_again() -> None:
    lab = scheduler("a1")
    lease = ask(lab, "10.0.0.1", implicit=True)
    waiting = ask(lab, "ann", 1.0)
    assert lease.state is LeaseState.ACTIVE and lab.counts("a") == (0, 1)
    lab.tick(99999.0)
    assert lab.lease(lease.number).state is LeaseState.ACTIVE, (
        "its session may last; only the board knows"
    )
    lab.board_idle("a1", "a", 100000.0)
    assert lab.lease(waiting.number).boards == ("a1",)
    effects = lab.take()
    assert lease.number not in effects.leases and [one.number for one in effects.ended] == [
        lease.number
    ]


def test_an_implicit_request_for_an_unknown_kind_leaves_nothing_behind() -> None:
    lab = scheduler("a1")
    lease = ask(lab, "10.0.0.1", kind="zz", implicit=True)
    assert not lab.knows_kind("zz") and lab.counts("zz") == (0, 1)
    lab.withdraw(lease.number, 1.0)
    assert lab.kinds == ["a"] and lab.counts("zz") == (0, 0)


def test_a_board_of_the_inventory_is_shown_before_it_has_connected() -> None:
    lab = LeaseScheduler(RULES, [InventoryBoard("pi5-07", "pi5", "10.0.0.7:9090", ("fan",))])
    assert [(one.name, one.use, one.tags) for one in lab.boards()] == [("pi5-07", "away", ("fan",))]
    lease = ask(lab, "ann", kind="pi5")
    assert lab.prospect(lease, 1.0).reason == "1 of pi5 wanted, 0 connected"


def test_a_board_is_shown_with_its_use_and_with_who_has_it_until_when() -> None:
    lab = scheduler("a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8")
    ask(lab, "ann", 1.0, for_s=100.0, board="a2")
    lab.board_busy("a3")
    lab.board_hushed("a4")
    lab.board_silent("a5", "nothing heard", 1.0)
    lab.bar("a6", "a new fan", False, "good", 1.0)
    assert lab.take_for_check("a7", "key", 50.0, 2.0) is not None
    ask(lab, "10.0.0.1", 1.0, for_s=100.0, board="a8", implicit=True)
    shown = {one.name: (one.use, one.owner, one.until, one.barred) for one in lab.boards()}
    checks = shown.pop("a7")
    assert (checks[0], checks[2]) == ("checking", 52.0)
    assert shown == {
        "a1": ("free", "", None, ""),
        "a2": ("leased", "ann", 101.0, ""),
        "a3": ("in session", "", None, ""),
        "a4": ("silent", "", None, ""),
        "a5": ("silent", "", None, ""),
        "a6": ("out", "", None, "a new fan"),
        "a8": ("in session", "10.0.0.1", None, ""),
    }
    assert lab.counts("a") == (1, 0)
    lab.board_gone("a1", 3.0)
    assert "a1" not in {one.name for one in lab.boards()}, "it is in no inventory"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("7d", 604800), ("2H", 7200)]
)
def test_a_duration_is_read_and_shown(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "h", "5", "-5m", "1m1h", "0s", "1.5h", "9" * 5000 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        parse_duration(text)


def test_boards_that_a_lease_ahead_gathers_are_free_when_the_last_of_them_is() -> None:
    def waiting(number: int, count: int) -> Lease:
        return Lease(number, LeaseRequest("ann", "a", 50.0, count=count), "key", 0.0)

    pair, one, many = waiting(1, 2), waiting(2, 1), waiting(3, 5)
    assert guaranteed_starts([pair], [100.0, 200.0])[-1] == 200.0
    assert guaranteed_starts([pair, one], [100.0, 200.0])[-1] == 250.0
    assert guaranteed_starts([pair, one], [100.0, 200.0, 220.0])[-1] == 220.0
    assert guaranteed_starts([many, one], [100.0, 200.0])[-1] == 100.0, (
        "one that can never be had takes none"
    )
    assert guaranteed_starts([many], [100.0, 200.0])[-1] is None
