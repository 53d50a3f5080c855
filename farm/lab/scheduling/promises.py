"""Decide which boards a reservation can count on, and what may be lent beside it.

Pure and synchronous, as the scheduler, whose boards and leases it reads and never changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from farm.lab import refusals
from farm.lab.entities import (
    HOUR_S,
    Caller,
    Lease,
    Reservation,
    ReservationRequest,
    ReservationState,
    SharingRules,
)
from farm.lab.scheduling.queue_order import BusyPeriod
from farm.lab.scheduling.registry import BoardRegistry, RegisteredBoard
from farm.lab.scheduling.reservations import (
    LATELY_S,
    BoardForecast,
    KindReservations,
    ReservationBook,
    ReservedPeriod,
    RoomFinder,
    missing_boards,
    period_of,
)
from farm.lab.scheduling.reserved_share import OwnedPeriod, most_board_seconds
from farm.lab.shared_places import person_of

_GAP_S = 2 * HOUR_S  # between two reservations of an owner; a shorter time counts as reserved
_ROUNDING_S = 1.0  # times are sums
_MOST_PLANS = 5  # that are made to say when a reservation could be had
_MOST_SHARES = 100  # that are computed to say it
_MOST_LATELY = 500  # reservations of a person that are remembered: more are refused
NoteEvent = Callable[[str, float, str, int | None, str, str], None]


class ReservationPromises:
    """The reservations of a lab, and the proof that each will have its boards.

    `leases` are those that have not ended. `changed` is told of each reservation that is made or
    changes, `note` of events: what, when, board, lease, who, detail.
    """

    def __init__(
        self,
        rules: SharingRules,
        registry: BoardRegistry,
        leases: Mapping[int, Lease],
        book: ReservationBook,
        changed: Callable[[Reservation], None],
        note: NoteEvent,
    ) -> None:
        self._rules = rules
        self._registry = registry
        self._leases = leases
        self._book = book
        self._changed = changed
        self._note = note

    def reserve(self, request: ReservationRequest, key: str, now: float) -> Reservation:
        """Promise boards from a time on; `key` is that of the lease to be. Raises UsageError."""
        before = self._book.asked_before(request.owner, request.nonce)
        if before is not None:
            return before
        self._check_reservation(request, now)
        periods = self._periods(request.kind, now)
        boards = self._forecasts(request.kind, now, with_away=True)
        room = self._book.room(request.kind, periods, boards)
        if (plan := room.plan(self._period(request, now))) is None:
            whose = self._who_has_boards(request, now)
            times = {one.until for one in periods} | {one.free_at for one in boards.values()}
            free_from = self._next_free(request, room, times, now)
            raise refusals.not_free_then_error(request, whose, free_from, now)
        self._book.keep_plan(request.kind, plan)
        reservation = Reservation(self._book.next_number, request, key, now)
        self.keep(reservation)
        what = f"{request.count} of {request.kind} for {request.for_s:.0f} s"
        self.event("reservation-made", now, reservation, what)
        return reservation

    def cancel(self, number: int, caller: Caller, now: float, why: str = "") -> Reservation:
        """Give up a reservation that has not begun. Raises UsageError."""
        cancelled = self.cancelled(number, caller, now, why)
        self.keep(cancelled)
        self.event("reservation-cancelled", now, cancelled, why, caller.name)
        return cancelled

    def cancelled(self, number: int, caller: Caller, now: float, why: str = "") -> Reservation:
        """Return a reservation as it is once it is cancelled. Raises UsageError."""
        reservation = self.find(number)
        if reservation.request.owner != caller.name:
            if not caller.admin:
                raise refusals.reservation_of_another_error(reservation)
            if not why:
                raise refusals.reason_needed_error(reservation)
        if reservation.state is not ReservationState.PLANNED:
            raise refusals.reservation_began_error(reservation)
        return dataclasses.replace(
            reservation, state=ReservationState.CANCELLED, ended_at=now, why=why
        )

    def find(self, number: int) -> Reservation:
        """Return a reservation that is not over. Raises UsageError."""
        found = self._book.find(number)
        if found is None:
            raise refusals.unknown_reservation_error(number)
        return found

    def if_open(self, number: int) -> Reservation | None:
        """Return a reservation, unless it is over."""
        return self._book.find(number)

    def all(self) -> list[Reservation]:
        """Return the reservations that are not over, the first to begin first."""
        return self._book.all()

    def due(self, now: float) -> list[Reservation]:
        """Return the reservations whose time has come, the first first."""
        return self._book.due(now)

    def missing(self, now: float) -> dict[int, int]:
        """Return how many boards reservations would lack as things stand, by their number."""
        found: dict[int, int] = {}
        for name in {one.request.kind for one in self._book.all()}:
            periods, boards = self._periods(name, now), self._forecasts(name, now)
            found |= missing_boards(periods, self._book.plan(name, periods, boards))
        return found

    def of_lease(self, lease: Lease) -> Reservation | None:
        """Return the reservation that a lease is of, unless it is over."""
        number = lease.request.reservation
        return None if number is None else self._book.find(number)

    def begun(self, number: int, kind: str, caller: Caller, now: float) -> int:
        """Return the lease of a reservation of the caller's that has begun. Raises UsageError."""
        reservation = self.find(number)
        if reservation.request.owner != caller.name:
            raise refusals.reservation_of_another_error(reservation)
        if reservation.request.kind != kind:
            raise refusals.reservation_of_another_kind_error(reservation, kind)
        if reservation.lease is None:
            raise refusals.reservation_not_begun_error(reservation, now)
        return reservation.lease

    def keep(self, reservation: Reservation) -> None:
        """Note a reservation, or that it has changed."""
        self._book.put(reservation)
        self._changed(reservation)

    def finish(
        self, reservation: Reservation, state: ReservationState, why: str, now: float
    ) -> None:
        """Note that a reservation is over, and why."""
        over = dataclasses.replace(reservation, state=state, ended_at=now, why=why)
        self.keep(over)
        if state is ReservationState.LAPSED:
            self.event("reservation-lapsed", now, over, why)

    def event(
        self, what: str, now: float, reservation: Reservation, detail: str = "", who: str = ""
    ) -> None:
        """Note an event of a reservation."""
        said = f"reservation {reservation.number}{f': {detail}' if detail else ''}"
        self._note(what, now, "", reservation.lease, who or reservation.request.owner, said)

    def who_suffers(
        self, name: str, boards: Sequence[str], until: float, now: float
    ) -> Reservation | None:
        """Return a reservation that lacks a board if some are lent until a time."""
        number = self.of_kind(name, now).first_to_suffer(boards, until)
        return None if number is None else self._book.find(number)

    def check_extension(self, lease: Lease, ends_at: float, now: float) -> None:
        """Raise UsageError if a reservation lacks a board if a lease lasts until a time."""
        if lease.ends_at is None or (reserved := self._suffers_from(lease, ends_at, now)) is None:
            return
        planned = self._book.planned(lease.request.kind)
        starts = {one.request.starts_at for one in planned}
        between = [at for at in starts if lease.ends_at < at < ends_at]
        good = [at for at in between if self._suffers_from(lease, at, now) is None]
        most_s = max(good, default=lease.ends_at) - lease.ends_at
        raise refusals.extension_reserved_error(lease, reserved, most_s, now)

    def who_needs(
        self, kind: str, boards: Sequence[str], count: int, until: float
    ) -> Reservation | None:
        """Return for whom boards are kept, of which others want so many until a time."""
        return self._book.who_needs(kind, boards, count, until)

    def of_kind(self, name: str, now: float) -> KindReservations:
        """Return the reservations of a kind, as things stand."""
        return KindReservations(
            self._book,
            name,
            self._periods(name, now),
            lambda: self._forecasts(name, now),
        )

    def busy_periods(
        self, name: str, fitting: Sequence[RegisteredBoard], now: float
    ) -> list[BusyPeriod]:
        """Return when some of the boards that a lease may be given are reserved, at most how many.

        Of those with certain tags it may be any.
        """
        found = []
        for one in self._periods(name, now, queued=False):
            count = min(len(fitting), one.count)
            if one.tags:
                count = sum(set(one.tags) <= set(board.tags) for board in fitting)
            found.append(BusyPeriod(one.starts_at, one.until, count))
        return found

    def _check_reservation(self, request: ReservationRequest, now: float) -> None:
        """Raise UsageError if boards cannot be reserved, whatever others have."""
        rules, longest = self._rules.reservations, self._rules.classes.get(request.rank)
        if longest is None:
            raise refusals.unknown_class_error(request.rank)
        if not self._registry.knows(request.kind):
            raise refusals.unknown_kind_error(request.kind, self._registry.known_kinds)
        if request.starts_at <= now:
            raise refusals.reservation_past_error(request, now)
        if request.starts_at > now + rules.ahead_s:
            raise refusals.reservation_too_far_error(rules.ahead_s)
        if request.for_s > longest.longest_s:
            raise refusals.lease_too_long_error(request.for_s, request.rank, longest)
        if longest.boards and request.count > longest.boards:
            raise refusals.too_many_boards_error(request.count, request.rank, longest)
        has = len(self._boards_with(request))
        if request.count > has:
            raise refusals.too_few_boards_error(request, has)
        self._check_owners_share(request, longest.boards, now)

    def _check_owners_share(self, request: ReservationRequest, most: int, now: float) -> None:
        """Raise UsageError if an owner has reserved too often, or too much at once."""
        person = person_of(request.owner)
        owned = [one for one in self._book.all() if person_of(one.request.owner) == person]
        planned = [one for one in owned if one.state is ReservationState.PLANNED]
        if len(planned) >= self._rules.reservations.of_owner:
            raise refusals.too_many_reservations_error(request.owner, len(planned))
        self._book.forget_old(person, now)
        if (had := len(self._book.lately(person))) >= _MOST_LATELY:
            within_s = min(LATELY_S, lately_s(self._rules))
            raise refusals.too_many_lately_error(request, had, within_s)
        reserved = sum(
            one.request.count
            for one in owned
            if one.request.rank == request.rank
            and one.request.starts_at < request.until
            and request.starts_at < one.request.until
        )
        if most and reserved + request.count > most:
            raise refusals.too_many_reserved_error(request, reserved, most)
        most_s, within_s = self._most_board_seconds(request)
        if (board_s := self._board_seconds(request, self._owned(request))) > most_s:
            hours = board_s / HOUR_S, most_s / HOUR_S
            raise refusals.too_large_a_share_error(request, *hours, within_s)

    def _most_board_seconds(self, request: ReservationRequest) -> tuple[float, float]:
        """Return how many board seconds an owner may reserve, and within which time."""
        rules = self._rules.reservations
        within_s = _within_s(self._rules, request.rank)
        most_s = rules.share * within_s * len(self._boards_with(request))
        return most_s + _ROUNDING_S, within_s

    def _owned(self, request: ReservationRequest) -> list[OwnedPeriod]:
        """Return what an owner has, or had lately, of the boards that are wanted.

        Those that had others with these tags, or with more.
        """
        person, boards = person_of(request.owner), self._boards_with(request)
        owned = []
        for one in (*self._book.all(), *self._book.lately(person)):
            other = one.request
            if person_of(other.owner) != person or other.kind != request.kind:
                continue
            if other.tags != request.tags and not self._boards_with(other) <= boards:
                continue
            until = other.until if one.ended_at is None else one.ended_at
            lease = None if one.lease is None else self._leases.get(one.lease)
            if lease is not None and lease.ends_at is not None:
                until = lease.ends_at
            if until > other.starts_at:
                owned.append(OwnedPeriod(other.starts_at, until, other.count))
        return owned

    def _board_seconds(self, request: ReservationRequest, owned: Sequence[OwnedPeriod]) -> float:
        """Return the most board seconds that an owner would have, with a further reservation."""
        wanted = OwnedPeriod(request.starts_at, request.until, request.count)
        gap_s = min(_GAP_S, self._rules.classes[request.rank].longest_s)
        return most_board_seconds(owned, wanted, self._most_board_seconds(request)[1], gap_s)

    def _boards_with(self, request: ReservationRequest) -> set[str]:
        """Return the boards of a kind with all tags that are wanted."""
        known = self._registry.kinds[request.kind].boards.values()
        return {board.name for board in known if set(request.tags) <= set(board.tags)}

    def _period(self, request: ReservationRequest, now: float) -> ReservedPeriod:
        return period_of(Reservation(self._book.next_number, request, "", now), now)

    def _next_free(
        self, request: ReservationRequest, room: RoomFinder, times: set[float], now: float
    ) -> float | None:
        """Return a later time, a full minute, from which the boards could be promised."""
        minutes = sorted({60.0 * math.ceil(at / 60) for at in times if at > request.starts_at})
        plans = shares = 0
        owned, (most_s, _) = self._owned(request), self._most_board_seconds(request)
        for at in minutes:
            later = dataclasses.replace(request, starts_at=at)
            period = self._period(later, now)
            if not room.has_room(period):
                continue
            shares += 1
            if self._board_seconds(later, owned) <= most_s:
                if room.plan(period) is not None:
                    return at
                plans += 1
            if plans == _MOST_PLANS or shares == _MOST_SHARES:
                break
        return None

    def _who_has_boards(self, request: ReservationRequest, now: float) -> list[str]:
        """Return who has boards of a kind for a part of the time for which some are wanted."""
        found = []
        for period in self._periods(request.kind, now):
            if period.overlaps(request.starts_at, request.until):
                whose = self.find(period.reservation).request
                found.append(refusals.reserved_until(whose, now))
        for lease in self._leases.values():
            ends_at = lease.ends_at or now
            if lease.request.kind == request.kind and lease.boards and ends_at > request.starts_at:
                found.append(refusals.leased_until(lease, ends_at, now))
        return [*found[:3], f"and {len(found) - 3} more"] if len(found) > 4 else found

    def _periods(self, name: str, now: float, queued: bool = True) -> list[ReservedPeriod]:
        """Return what reservations of a kind are still to have.

        With those `queued`, which wait for their boards already.
        """
        found = [period_of(one, now) for one in self._book.planned(name)]
        kind = self._registry.kinds.get(name)
        if kind is not None and queued:
            waiting = (self.of_lease(lease) for lease in kind.queue.values())
            found += [period_of(one, now) for one in waiting if one is not None]
        return found

    def _forecasts(
        self, name: str, now: float, with_away: bool = False
    ) -> Mapping[str, BoardForecast]:
        """Return the boards of a kind that reservations can count on, and when they are free.

        `with_away` has those that may well be back by then, too.
        """
        kind = self._registry.kinds.get(name)
        return {
            board.name: BoardForecast(
                board.name,
                board.tags,
                self._surely_free_at(board, now),
                board.batch_only and not with_away,
            )
            for board in (kind.boards.values() if kind else ())
            if can_be_counted_on(board) or (with_away and (board.briefly or not board.barred))
        }

    def _surely_free_at(self, board: RegisteredBoard, now: float) -> float:
        """Return when a board is free at the latest; a session without a lease may last long."""
        lease = self._holder_of(board)
        ends_at = None if lease is None else lease.ends_at
        if ends_at is not None and ends_at > now:
            return ends_at
        idle = board.idle or board.held or not board.present
        return now if idle else now + self._rules.classes[self._rules.implicit_rank].longest_s

    def _suffers_from(self, lease: Lease, ends_at: float, now: float) -> Reservation | None:
        """Return a reservation that lacks a board if a lease lasts until a time."""
        return self.who_suffers(lease.request.kind, lease.boards, ends_at, now)

    def _holder_of(self, board: RegisteredBoard) -> Lease | None:
        return self._leases.get(board.lease) if board.lease is not None else None


def lately_s(rules: SharingRules) -> float:
    """Return for how long a reservation that is over counts for its owner."""
    return max((_within_s(rules, rank) for rank in rules.classes), default=0.0) + 2 * _GAP_S


def _within_s(rules: SharingRules, rank: str) -> float:
    """Return the time within which an owner's reservations of a class are counted."""
    reservations = rules.reservations
    return max(reservations.within_s, rules.classes[rank].longest_s / reservations.share)


def can_be_counted_on(board: RegisteredBoard) -> bool:
    """Return whether a board is there, and fit or soon known to be."""
    return board.present and not board.silent and (not board.barred or board.briefly)
