"""Reservations, and the plan of which boards each will have: pure and synchronous.

A reservation is promised a number of boards, not certain ones. The plan is the proof that it can
have them: boards that are free at its time. What would leave it without them is not lent. A plan
that holds is kept, so that what could be promised once stays so as long as its boards live.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.lab.entities import Reservation, ReservationState
from farm.lab.shared_places import person_of

LATELY_S = 30 * 24 * 3600.0  # in which reservations that are over count for their owner, at most
Plan = Mapping[int, tuple[str, ...]]  # boards by the number of the reservation


@dataclass(frozen=True, slots=True)
class BoardForecast:
    """A board that can be counted on, and when it is free at the latest."""

    name: str
    tags: tuple[str, ...]
    free_at: float
    batch_only: bool = False


@dataclass(frozen=True, slots=True)
class ReservedPeriod:
    """The boards that a reservation is still to have: how many, from when, until when."""

    reservation: int
    starts_at: float
    until: float
    count: int
    tags: tuple[str, ...] = ()
    rank: str = "interactive"

    @property
    def wants(self) -> tuple[bool, tuple[str, ...]]:
        """Which boards are wanted: two periods that say the same fit the same."""
        return self.rank == "batch", self.tags

    def fits(self, board: BoardForecast) -> bool:
        """Return whether a board is one that is wanted."""
        if board.batch_only and self.rank != "batch":
            return False
        return not self.tags or set(self.tags) <= set(board.tags)

    def overlaps(self, starts_at: float, until: float) -> bool:
        """Return whether it has a time in common with another period."""
        return self.starts_at < until and starts_at < self.until


def period_of(reservation: Reservation, now: float) -> ReservedPeriod:
    """Return what a reservation is to have, from now on if its time has come."""
    request = reservation.request
    starts_at = max(now, request.starts_at)
    return ReservedPeriod(
        reservation.number, starts_at, request.until, request.count, request.tags, request.rank
    )


def plan_boards(
    periods: Sequence[ReservedPeriod], boards: Mapping[str, BoardForecast], before: Plan
) -> Plan:
    """Return which boards each reservation is to have; too few where there are not enough.

    What holds of the plan `before` is kept, unless a new one serves more. Without tags there is
    a whole plan if this finds none with too few boards; with tags this may miss one.
    """
    order = sorted(periods, key=lambda one: (one.starts_at, one.reservation))
    kept = _filled(order, boards, before)
    if not missing_boards(periods, kept):
        return kept
    orders = [order]
    if any(one.tags for one in order) or any(one.batch_only for one in boards.values()):
        orders.append(sorted(order, key=lambda one: -len(one.tags)))
        orders.append(sorted(order, key=lambda one: one.reservation))
    anew = [_filled(one, boards, {}) for one in orders]
    return min((kept, *anew), key=lambda plan: sum(missing_boards(periods, plan).values()))


def missing_boards(periods: Iterable[ReservedPeriod], plan: Plan) -> dict[int, int]:
    """Return how many boards each reservation lacks by a plan, without those that lack none."""
    return {
        one.reservation: one.count - len(plan[one.reservation])
        for one in periods
        if len(plan[one.reservation]) < one.count
    }


class _Taken:
    """When the boards of a plan are taken, by board."""

    def __init__(self) -> None:
        self._starts: dict[str, list[float]] = {}
        self._ends: dict[str, list[float]] = {}

    def is_free(self, name: str, period: ReservedPeriod) -> bool:
        """Return whether a board is free for a period: only its neighbours can overlap it."""
        starts = self._starts.get(name)
        if not starts or self._ends[name][-1] <= period.starts_at:
            return True
        at = bisect.bisect_left(starts, period.until)
        return at == 0 or self._ends[name][at - 1] <= period.starts_at

    def take(self, name: str, period: ReservedPeriod) -> None:
        """Note that a board is taken for a period."""
        starts = self._starts.get(name)
        if starts is None:
            self._starts[name], self._ends[name] = [period.starts_at], [period.until]
            return
        ends, at = self._ends[name], len(starts)
        if starts[-1] > period.starts_at:
            at = bisect.bisect_right(starts, period.starts_at)
        starts.insert(at, period.starts_at)
        ends.insert(at, period.until)


def _filled(
    order: Sequence[ReservedPeriod], boards: Mapping[str, BoardForecast], before: Plan
) -> Plan:
    """Give each reservation in turn what it may keep of a plan, then each what is free."""
    taken = _Taken()
    plan: dict[int, list[str]] = {one.reservation: [] for one in order}
    wanted: Counter[str] = Counter()

    def can_have(period: ReservedPeriod, board: BoardForecast | None) -> bool:
        return (
            board is not None
            and board.free_at <= period.starts_at
            and period.fits(board)
            and taken.is_free(board.name, period)
        )

    def give(period: ReservedPeriod, names: Iterable[str]) -> None:
        for name in names:
            taken.take(name, period)
            plan[period.reservation].append(name)

    for period in order:
        held = [
            name
            for name in before.get(period.reservation, ())
            if can_have(period, boards.get(name))
        ]
        give(period, held[: period.count])
    if any(len(plan[one.reservation]) < one.count for one in order):
        if len({one.wants for one in order}) > 1:  # or all want the same boards
            for wants, count in Counter(one.wants for one in order).items():
                period = next(one for one in order if one.wants == wants)
                for board in boards.values():
                    if period.fits(board):
                        wanted[board.name] += count
        for period in order:
            left = period.count - len(plan[period.reservation])
            if left > 0:
                names = [board.name for board in boards.values() if can_have(period, board)]
                give(period, sorted(names, key=wanted.__getitem__)[:left])
    return {number: tuple(names) for number, names in plan.items()}


class RoomFinder:
    """The room that the reservations of a kind leave, at one moment, for a further one.

    That there are too few boards is found by counting; only where they suffice, a plan is made.
    """

    def __init__(
        self,
        periods: Sequence[ReservedPeriod],
        boards: Mapping[str, BoardForecast],
        before: Plan,
    ) -> None:
        self._periods, self._boards = periods, boards
        self._plan = plan_boards(periods, boards, before)
        self._counts: dict[tuple[bool, tuple[str, ...]], tuple[_Steps, _Steps]] = {}

    def plan(self, period: ReservedPeriod) -> Plan | None:
        """Return a plan with a further reservation; None if that or another would suffer."""
        if not self.has_room(period):
            return None
        other = plan_boards([*self._periods, period], self._boards, self._plan)
        suffers = any(len(other[number]) < len(names) for number, names in self._plan.items())
        return None if suffers or missing_boards([period], other) else other

    def has_room(self, period: ReservedPeriod) -> bool:
        """Return whether there may be a plan: at no time more boards are promised than there are.

        Counted are those that fit, and the reservations that can have none but these.
        """
        if period.wants not in self._counts:
            self._counts[period.wants] = self._count(period)
        supply, demand = self._counts[period.wants]
        if supply.at(period.starts_at) < period.count:
            return False
        times = [period.starts_at, *demand.changes(period.starts_at, period.until)]
        return all(demand.at(at) + period.count <= supply.at(at) for at in times)

    def _count(self, period: ReservedPeriod) -> tuple[_Steps, _Steps]:
        """Return how many boards that fit are there, and promised to others, over time."""
        fitting = {board.name for board in self._boards.values() if period.fits(board)}
        within = {
            other.wants: all(
                board.name in fitting for board in self._boards.values() if other.fits(board)
            )
            for other in {one.wants: one for one in self._periods}.values()
        }
        steps = []
        for one in self._periods:
            count = len(self._plan[one.reservation])
            if within[one.wants] and one.starts_at < one.until:
                steps += [(one.starts_at, count), (one.until, -count)]
        return _Steps([(self._boards[name].free_at, 1) for name in fitting]), _Steps(steps)


class _Steps:
    """A number that changes over time."""

    def __init__(self, changes: Iterable[tuple[float, int]]) -> None:
        by_time: Counter[float] = Counter()
        for at, by in changes:
            by_time[at] += by
        self._times = sorted(by_time)
        self._values = list(itertools.accumulate(by_time[at] for at in self._times))

    def at(self, time: float) -> int:
        """Return the number at a time."""
        found = bisect.bisect_right(self._times, time)
        return self._values[found - 1] if found else 0

    def changes(self, after: float, before: float) -> Sequence[float]:
        """Return the times between two others at which it changes."""
        first = bisect.bisect_right(self._times, after)
        return self._times[first : bisect.bisect_left(self._times, before)]


class ReservationBook:
    """The reservations of a lab that are not over, and the plan of each kind.

    Those that had boards, and were over within `lately_s`, are remembered for their owner.
    """

    def __init__(
        self,
        past: Iterable[Reservation] = (),
        next_number: int = 1,
        lately_s: float = LATELY_S,
    ) -> None:
        self._open: dict[int, Reservation] = {}
        self._lately: dict[str, deque[Reservation]] = {}  # by person, the first to end first
        self._lately_s = min(lately_s, LATELY_S)
        for one in sorted(past, key=lambda one: one.ended_at or 0.0):
            if one.state.over:
                self._remember(one)
            else:
                self._open[one.number] = one
        self._nonces = {
            (one.request.owner, one.request.nonce): one.number
            for one in self._open.values()
            if one.request.nonce
        }
        self.next_number = next_number
        self._plans: dict[str, Plan] = {}

    def put(self, reservation: Reservation) -> None:
        """Note a reservation, or that it has changed. One that is over is forgotten."""
        nonce = reservation.request.owner, reservation.request.nonce
        self.next_number = max(self.next_number, reservation.number + 1)
        if reservation.state.over:
            self._open.pop(reservation.number, None)
            self._nonces.pop(nonce, None)
            if reservation.lease is not None and reservation.ended_at is not None:
                self._remember(reservation)
            return
        self._open[reservation.number] = reservation
        if reservation.request.nonce:
            self._nonces[nonce] = reservation.number

    def find(self, number: int) -> Reservation | None:
        """Return a reservation that is not over."""
        return self._open.get(number)

    def asked_before(self, owner: str, nonce: str) -> Reservation | None:
        """Return the reservation that was made when this was asked the first time."""
        number = self._nonces.get((owner, nonce)) if nonce else None
        return None if number is None else self._open.get(number)

    def all(self) -> list[Reservation]:
        """Return the reservations that are not over, the first to begin first."""
        return sorted(self._open.values(), key=lambda one: (one.request.starts_at, one.number))

    def lately(self, person: str) -> Collection[Reservation]:
        """Return a person's reservations that had boards and are over, of the last hours."""
        return self._lately.get(person, ())

    def forget_old(self, person: str, now: float) -> None:
        """Forget a person's reservations that have been over for long."""
        lately = self._lately.get(person, deque())
        while lately and (lately[0].ended_at or 0.0) <= now - self._lately_s:
            lately.popleft()
        if not lately:
            self._lately.pop(person, None)

    def _remember(self, reservation: Reservation) -> None:
        person = person_of(reservation.request.owner)
        self.forget_old(person, reservation.ended_at or 0.0)
        self._lately.setdefault(person, deque()).append(reservation)

    def planned(self, kind: str) -> list[Reservation]:
        """Return the reservations of a kind that have not begun."""
        return [
            one
            for one in self._open.values()
            if one.request.kind == kind and one.state is ReservationState.PLANNED
        ]

    def due(self, now: float) -> list[Reservation]:
        """Return the reservations whose time has come, the first first."""
        return [
            one
            for one in self.all()
            if one.state is ReservationState.PLANNED and one.request.starts_at <= now
        ]

    def plan(
        self,
        kind: str,
        periods: Sequence[ReservedPeriod],
        boards: Mapping[str, BoardForecast],
    ) -> Plan:
        """Return the plan of a kind as things stand, and keep it."""
        self._plans[kind] = plan_boards(periods, boards, self._plans.get(kind, {}))
        return self._plans[kind]

    def who_needs(
        self, kind: str, boards: Iterable[str], count: int, until: float
    ) -> Reservation | None:
        """Return for whom boards are kept, of which others want so many until a time.

        By the last plan. None if enough of them are promised to nobody.
        """
        left, found = set(boards), None
        for number, names in self._plans.get(kind, {}).items():
            reservation = self._open.get(number)
            if reservation is None or reservation.request.starts_at >= until:
                continue
            if not left.isdisjoint(names):
                left -= set(names)
                first = found is None or reservation.request.starts_at < found.request.starts_at
                found = reservation if first else found
        return found if len(left) < count else None

    def room(
        self,
        kind: str,
        periods: Sequence[ReservedPeriod],
        boards: Mapping[str, BoardForecast],
    ) -> RoomFinder:
        """Return what room there is beside the reservations of a kind."""
        return RoomFinder(periods, boards, self._plans.get(kind, {}))

    def keep_plan(self, kind: str, plan: Plan) -> None:
        """Keep to a plan from now on."""
        self._plans[kind] = plan


class KindReservations:
    """The reservations of a kind at one moment, which tell what may be lent beside them.

    `boards` returns the boards that can be counted on; most questions are answered without them.
    """

    def __init__(
        self,
        book: ReservationBook,
        kind: str,
        periods: Sequence[ReservedPeriod],
        boards: Callable[[], Mapping[str, BoardForecast]],
    ) -> None:
        self._book = book
        self._kind = kind
        self._periods = sorted(periods, key=lambda one: (one.starts_at, one.reservation))
        self._boards = functools.cache(boards)
        self._first_at = min((one.starts_at for one in periods), default=math.inf)

    def promised(self, until: float, without: int | None = None) -> set[str]:
        """Return the boards of reservations that begin before a time, but for one reservation."""
        if self._first_at >= until:
            return set()
        plan = self._book.plan(self._kind, self._periods, self._boards())
        return {
            name
            for one in self._periods
            if one.starts_at < until and one.reservation != without
            for name in plan[one.reservation]
        }

    def first_to_suffer(
        self, taken: Iterable[str], until: float, without: int | None = None
    ) -> int | None:
        """Return a reservation that would lack a board if some were lent until a time.

        None if all, but for the one that they are for, have the boards that they would have
        otherwise: then the plan is from now on one with which these are lent.
        """
        names = set(taken)
        if self.promised(until, without).isdisjoint(names):
            return None
        boards = self._boards()
        plan = self._book.plan(self._kind, self._periods, boards)
        lent = {
            name: dataclasses.replace(boards[name], free_at=max(boards[name].free_at, until))
            for name in names & boards.keys()
        }
        others = [one for one in self._periods if one.reservation != without]
        other = plan_boards(others, {**boards, **lent}, plan)
        for period in others:
            if len(other[period.reservation]) < len(plan[period.reservation]):
                return period.reservation
        self._book.keep_plan(self._kind, other)
        return None
