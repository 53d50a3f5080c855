"""Who is given which board now, and for how long: pure and synchronous; the time is an argument.

A board that is idle has said so, and nothing here assumes it (a board whose lease has ended may
still have a session). What is changed is collected in `SchedulerChanges`, which the caller takes,
keeps and then acts on.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from farm.lab import refusals
from farm.lab.durations import format_duration
from farm.lab.entities import (
    CHECKS_OWNER,
    BoardView,
    Caller,
    Event,
    InventoryBoard,
    Lease,
    LeaseBoardPeriod,
    LeaseRequest,
    LeaseState,
    QueuePosition,
    Reservation,
    ReservationRequest,
    ReservationState,
    SharingRules,
)
from farm.lab.scheduling.promises import ReservationPromises, can_be_counted_on, lately_s
from farm.lab.scheduling.queue_order import (
    DecayingUsageByOwner,
    Turn,
    guaranteed_starts,
    queue_sort_key,
)
from farm.lab.scheduling.registry import BoardKindQueue, BoardRegistry, RegisteredBoard
from farm.lab.scheduling.reservations import (
    KindReservations,
    ReservationBook,
)
from farm.lab.scheduling.scheduler_changes import MOST_ENDED, RestoredState, SchedulerChanges

_HeldByOwner = dict[tuple[str, str], int]  # boards by owner and class


@dataclasses.dataclass(frozen=True, slots=True)
class _FittingBoards:
    """The boards that a lease may be given.

    Of those that are connected: how many there are, are out of service, and are lent or in session.
    """

    boards: Sequence[RegisteredBoard]
    present: int
    barred: int
    lent: int


class LeaseScheduler:
    """The boards, the leases, the queue and the reservations of a lab."""

    def __init__(
        self,
        rules: SharingRules,
        inventory: Iterable[InventoryBoard] = (),
        past: RestoredState | None = None,
        now: float = 0.0,
    ) -> None:
        past = past or RestoredState()
        self.effects = SchedulerChanges()
        self.paused = False  # then nothing is lent
        self._rules = rules
        self._usage = DecayingUsageByOwner(rules.half_life_s)
        self._registry = BoardRegistry(past.kinds, inventory)
        self._live: dict[int, Lease] = {}
        self._timed: dict[int, None] = {}  # explicit leases, which have ends
        self._of_owner: dict[str, OrderedDict[int, None]] = {}
        self._ended: OrderedDict[int, Lease] = OrderedDict(
            (lease.number, lease) for lease in past.ended
        )
        self._nonces: dict[tuple[str, str], int] = {}
        self._gathering: dict[
            int, float
        ] = {}  # since when a lease of several boards is at the head
        self._short: dict[int, None] = {}  # leases with a board that is lost, the first first
        self._unclaimed: dict[int, float] = {}  # granted while nobody asked, by time
        self._next_lease, self._next_event = past.next_lease, past.next_event
        self._promises = ReservationPromises(
            rules,
            self._registry,
            self._live,
            ReservationBook(past.reservations, past.next_reservation, lately_s(rules)),
            self._reservation_changed,
            self.note,
        )
        for owner, (board_s, at) in past.used.items():
            self._usage.load(owner, board_s, at)
        for lease in past.leases:
            self._resume(lease, now)

    def take(self) -> SchedulerChanges:
        """Return what has changed since the last call."""
        self.effects.kinds, self._registry.new_kinds = self._registry.new_kinds, []
        taken, self.effects = self.effects, SchedulerChanges()
        return taken

    # boards

    def board_came(self, name: str, kind: str, now: float) -> None:
        """Note that a board is connected; nothing says yet that it has no session."""
        board = self._registry.board(name, kind)
        if not board.present:
            board.present = True
            self._event("board-came", now, board=name)

    def board_idle(self, name: str, kind: str, now: float) -> None:
        """Note that a board offers itself: it has no session. An implicit lease of it has ended."""
        self.board_came(name, kind, now)
        board = self._registry.boards[name]
        lease = self._holder_of(board)
        if lease is not None and lease.request.implicit:
            self._end(lease, LeaseState.RELEASED, now)
        board.idle, board.held = True, False
        self._registry.refresh(board)
        self._match(kind, now)

    def board_busy(self, name: str) -> None:
        """Note that a board is not to be lent: it has a session."""
        board = self._registry.boards[name]
        board.idle = board.held = False
        self._registry.refresh(board)

    def board_held(self, name: str, held: bool, now: float) -> None:
        """Note whether a board without a session is told not to offer itself."""
        board = self._registry.boards[name]
        board.held = held and not board.idle
        lease = self._holder_of(board)
        if board.held and lease is not None and lease.request.implicit:  # no offer will end it
            self._end(lease, LeaseState.RELEASED, now)

    def board_hushed(self, name: str) -> None:
        """Note that a board has not been heard as it should: it is not lent."""
        board = self._registry.boards[name]
        board.hushed = True
        self._registry.refresh(board)

    def bar(
        self,
        name: str,
        why: str,
        batch_only: bool,
        health: str,
        now: float,
        briefly: bool = False,
    ) -> None:
        """Set why a board is not lent, or is lent to batch work only. Its lease goes on.

        Reservations count on one that is barred `briefly`.
        """
        board = self._registry.boards.get(name)
        if board is None:
            return
        before = board.barred, board.batch_only, board.health, board.briefly
        board.barred, board.batch_only, board.health = why, batch_only, health
        board.briefly = briefly
        if before == (why, batch_only, health, briefly):
            return
        self._registry.refresh(board)
        self._match(board.kind, now)

    def board_bad(self, name: str, why: str, now: float) -> None:
        """Note that a leased board is not fit: its lease is told, and gets another."""
        board = self._registry.boards.get(name)
        lease = self._holder_of(board) if board else None
        if lease is not None and not lease.request.implicit and not lease.request.check:
            self._lose(lease, name, why, now)

    def take_for_check(self, name: str, key: str, for_s: float, now: float) -> Lease | None:
        """Return a lease of a board for its check, also of a barred one.

        None if it is used, or could be lent and is reserved for a time before the check's end.
        """
        board = self._registry.boards.get(name)
        usable = board is not None and board.idle and board.lease is None
        if self.paused or board is None or not usable or board.hushed or board.silent:
            return None
        if not board.barred and not self.can_be_missed(name, for_s, now):
            return None
        request = LeaseRequest(CHECKS_OWNER, board.kind, for_s, board=name, check=True)
        lease = Lease(self._next_lease, request, key, now, heard_at=now)
        self._next_lease += 1
        self._enter(lease)
        self._registry.queue(lease)
        self._grant(lease, [board], now)
        self.claim(lease.number)
        return self._live[lease.number]

    def can_be_missed(self, name: str, for_s: float, now: float) -> bool:
        """Return whether no reservation suffers if a board is not there for some time."""
        board = self._registry.boards.get(name)
        return (
            board is None
            or self._promises.who_suffers(board.kind, [name], now + for_s, now) is None
        )

    def is_present(self, name: str) -> bool:
        """Return whether a board is connected and heard."""
        board = self._registry.boards.get(name)
        return board is not None and board.present and not board.silent

    def board_silent(self, name: str, why: str, now: float) -> None:
        """Note that a board has not been heard for long: its lease is told, and gets another."""
        board = self._registry.boards.get(name)
        if board is None or board.silent:
            return
        board.silent = True
        self._registry.refresh(board)
        lease = self._holder_of(board)
        implicit = lease is not None and lease.request.implicit
        self._event("board-silent", now, None if implicit else lease, board=name, detail=why)
        if lease is not None and implicit:
            self._end(lease, LeaseState.LOST, now, f"its board is silent: {why}")
        elif lease is not None:
            self._lose(lease, name, why, now)

    def board_heard(self, name: str, now: float) -> None:
        """Note that a board that was hushed or silent is heard again."""
        board = self._registry.boards[name]
        was_silent, board.hushed, board.silent = board.silent, False, False
        self._registry.refresh(board)
        if was_silent:
            lease = self._holder_of(board)
            implicit = lease is not None and lease.request.implicit
            self._event("board-heard", now, None if implicit else lease, board=name)
            if lease is not None and name in lease.lost:
                left = {one: why for one, why in lease.lost.items() if one != name}
                self._put(dataclasses.replace(lease, lost=left))
        self._match(board.kind, now)

    def board_gone(self, name: str, now: float) -> None:
        """Note that a board has hung up. An implicit lease of it is lost; others go on."""
        board = self._registry.boards[name]
        board.present = board.idle = board.held = board.hushed = False
        self._registry.refresh(board)
        lease = self._holder_of(board)
        implicit = lease is None or lease.request.implicit
        self._event("board-gone", now, None if implicit else lease, board=name)
        if lease is not None and lease.request.implicit:
            self._end(lease, LeaseState.LOST, now, "its board hung up")
        self._registry.forget(board)

    def knows_kind(self, kind: str) -> bool:
        """Return whether a board of the kind is there, or has been."""
        return self._registry.knows(kind)

    @property
    def kinds(self) -> list[str]:
        """The kinds of boards that are known."""
        return self._registry.known_kinds

    @property
    def wanted_kinds(self) -> list[str]:
        """The kinds that are known or waited for."""
        return list(self._registry.kinds)

    def note(
        self, what: str, now: float, board: str, lease: int | None, who: str = "", detail: str = ""
    ) -> None:
        """Note an event of a board, which changes nothing here."""
        self.effects.events.append(Event(self._next_event, now, what, who, lease, board, detail))
        self._next_event += 1

    # leases

    def request(self, request: LeaseRequest, key: str, now: float) -> Lease:
        """Take a request in, and return its lease, which may be granted already.

        Raises UsageError.
        """
        if request.nonce and (number := self._nonces.get((request.owner, request.nonce))):
            return self.lease(number)
        self._check(request)
        lease = Lease(self._next_lease, request, key, now, heard_at=now)
        self._next_lease += 1
        self._enter(lease)
        self._registry.queue(lease)
        self._put(lease)
        self._event(
            "lease-queued",
            now,
            lease,
            detail=f"{request.count} of {request.kind} for {request.for_s:.0f} s",
        )
        self._match(request.kind, now)
        self.claim(lease.number)  # one that has its boards at once: the answer says so
        return self.lease(lease.number)

    def adopt(self, request: LeaseRequest, board: str, now: float) -> Lease:
        """Return an implicit lease for a session that a board has already."""
        lease = Lease(
            self._next_lease,
            request,
            "",
            now,
            LeaseState.ACTIVE,
            granted_at=now,
            ends_at=now + request.for_s,
            heard_at=now,
            boards=(board,),
        )
        self._next_lease += 1
        self._enter(lease)
        held = self._registry.boards[board]
        held.lease, held.idle = lease.number, False
        self._registry.refresh(held)
        return lease

    def claim(self, number: int) -> None:
        """Note that a lease is picked up: its owner asks for it, or has a session."""
        self._unclaimed.pop(number, None)
        lease = self._live.get(number)
        if lease is None or lease.state is not LeaseState.ACTIVE:
            return
        reservation = self._promises.of_lease(lease)
        if reservation is not None and not reservation.picked_up:
            self._promises.keep(dataclasses.replace(reservation, picked_up=True))

    def heartbeat(self, number: int, caller: Caller, now: float) -> Lease:
        """Note that a lease's owner is alive. Raises DeviceError if the lease has ended."""
        lease = dataclasses.replace(self._owned(number, caller), heard_at=now)
        self._live[number] = lease
        if lease.state is LeaseState.QUEUED:
            self._registry.queue(lease)
        return lease

    def keep(self, number: int, caller: Caller, now: float) -> Lease:
        """Let a lease last to its end without heartbeats: its owner has been told of its boards."""
        lease = self._owned(number, caller)
        lease = dataclasses.replace(
            lease, request=dataclasses.replace(lease.request, heartbeat_s=None), heard_at=now
        )
        self._put(lease)
        if lease.state is LeaseState.QUEUED:
            self._registry.queue(lease)
        return lease

    def take_back_keep(self, number: int, heartbeat_s: float | None, now: float) -> None:
        """Let a lease end again without heartbeats, as before `keep`, unless it has ended."""
        lease = self._live.get(number)
        if lease is None:
            return
        request = dataclasses.replace(lease.request, heartbeat_s=heartbeat_s)
        lease = dataclasses.replace(lease, request=request, heard_at=now)
        self._put(lease)
        if lease.state is LeaseState.QUEUED:
            self._registry.queue(lease)

    def extend(self, number: int, caller: Caller, by_s: float, now: float) -> Lease:
        """Move a lease's hard end.

        Raises UsageError beyond what the class allows, and into what is reserved.
        """
        lease = self._owned(number, caller)
        if lease.granted_at is None or lease.ends_at is None:
            raise refusals.lease_still_queued_error(lease)
        longest = self._rules.classes[lease.request.rank]
        ends_at = lease.ends_at + by_s
        if ends_at - lease.granted_at > longest.longest_s:
            raise refusals.lease_too_long_error(
                ends_at - lease.granted_at, lease.request.rank, longest, lease
            )
        self._promises.check_extension(lease, ends_at, now)
        lease = dataclasses.replace(lease, ends_at=ends_at, heard_at=now)
        self._put(lease)
        self._event("lease-extended", now, lease, who=caller.name, detail=f"by {by_s:.0f} s")
        return lease

    def take_back_extension(self, number: int, by_s: float, now: float, why: str) -> None:
        """Move the hard end of a lease that was just extended back, unless it has ended."""
        lease = self._live.get(number)
        if lease is None or lease.ends_at is None:
            return
        lease = dataclasses.replace(lease, ends_at=lease.ends_at - by_s)
        self._put(lease)
        self._event("lease-extension-taken-back", now, lease, detail=f"by {by_s:.0f} s: {why}")

    def end(self, number: int, caller: Caller, now: float, why: str = "") -> Lease:
        """End a lease: give its boards back, or leave the queue. Of another's: revoke it."""
        lease = self._owned(number, caller, for_admin=True)
        mine = LeaseState.CANCELLED if lease.state is LeaseState.QUEUED else LeaseState.RELEASED
        ended = self._end(
            lease,
            mine if caller.name == lease.request.owner else LeaseState.REVOKED,
            now,
            why,
            caller.name,
        )
        self._match(lease.request.kind, now)
        return ended

    def withdraw(self, number: int, now: float) -> None:
        """Take an implicit lease out of the queue: its client hung up, or is refused."""
        lease = self._live.get(number)
        if lease is not None and lease.state is LeaseState.QUEUED:
            self._end(lease, LeaseState.CANCELLED, now)
            self._match(lease.request.kind, now)

    def tick(self, now: float) -> None:
        """End what has lasted too long, and lend what may be lent now."""
        for lease in [self._live[number] for number in self._timed]:
            request = lease.request
            if lease.ends_at is not None and now >= lease.ends_at:
                self._end(lease, LeaseState.EXPIRED, now)
            elif request.heartbeat_s is not None and now - lease.heard_at > request.heartbeat_s:
                self._end(
                    lease,
                    LeaseState.ABANDONED,
                    now,
                    f"no heartbeat for {request.heartbeat_s:.0f} s",
                )
            elif lease.state is LeaseState.QUEUED and now >= _leaves_queue_at(lease):
                why = self._reason(lease, self._fitting_boards(request), {}, now)
                self._end(lease, LeaseState.TIMED_OUT, now, why)
        for number, since in list(self._unclaimed.items()):
            lease, pickup_s = self._live[number], self._rules.pickup_s
            if lease.request.reservation is not None:
                pickup_s = self._rules.reservations.pickup_s
            if now - since >= pickup_s:
                self._end(lease, LeaseState.LAPSED, now, f"not picked up for {pickup_s:.0f} s")
        for reservation in self._promises.due(now):
            self._begin(reservation, now)
        for kind in list(self._registry.kinds):
            self._match(kind, now)

    # reservations

    def reserve(self, request: ReservationRequest, key: str, now: float) -> Reservation:
        """Promise boards from a time on; `key` is that of the lease to be. Raises UsageError."""
        return self._promises.reserve(request, key, now)

    def cancel_reservation(
        self, number: int, caller: Caller, now: float, why: str = ""
    ) -> Reservation:
        """Give up a reservation that has not begun. Raises UsageError."""
        cancelled = self._promises.cancel(number, caller, now, why)
        self._match(cancelled.request.kind, now)
        return cancelled

    def prepare_cancellation(self, number: int, caller: Caller, now: float, why: str = "") -> None:
        """Let it be kept that a reservation is cancelled, which `cancel_reservation` then does.

        Raises UsageError.
        """
        self._reservation_changed(self._promises.cancelled(number, caller, now, why))

    def take_back_cancellation(self, number: int) -> None:
        """Let it be kept that a reservation is as it was, unless it is over."""
        if (reservation := self._promises.if_open(number)) is not None:
            self._reservation_changed(reservation)

    def reservation(self, number: int) -> Reservation:
        """Return a reservation that is not over. Raises UsageError."""
        return self._promises.find(number)

    def reservations(self) -> list[Reservation]:
        """Return the reservations that are not over, the first to begin first."""
        return self._promises.all()

    def missing(self, now: float) -> dict[int, int]:
        """Return how many boards reservations would lack as things stand, by their number."""
        return self._promises.missing(now)

    def lease_of_reservation(self, number: int, kind: str, caller: Caller, now: float) -> Lease:
        """Return the lease of a reservation of the caller's that has begun. Raises UsageError."""
        return self.lease(self._promises.begun(number, kind, caller, now))

    # what is shown

    def lease(self, number: int) -> Lease:
        """Return a lease, also one that has ended lately. Raises UsageError."""
        lease = self._live.get(number) or self._ended.get(number)
        if lease is None:
            raise refusals.unknown_lease_error(number)
        return lease

    def leases(self) -> list[Lease]:
        """Return the leases that have not ended."""
        return list(self._live.values())

    def remembered(self) -> list[Lease]:
        """Return the explicit leases that have not ended, or have lately."""
        return [
            *self._ended.values(),
            *(lease for lease in self._live.values() if not lease.request.implicit),
        ]

    def boards(self) -> list[BoardView]:
        """Return the boards as they are shown, by kind and name."""
        return [
            self._view(board)
            for board in sorted(
                self._registry.boards.values(), key=lambda one: (one.kind, one.name)
            )
        ]

    def holder(self, board: str) -> Lease | None:
        """Return the lease that has a board."""
        found = self._registry.boards.get(board)
        return self._holder_of(found) if found else None

    def kind_of(self, board: str) -> str | None:
        """Return the kind of a board that is known."""
        found = self._registry.boards.get(board)
        return found.kind if found else None

    def counts(self, kind: str) -> tuple[int, int]:
        """Return how many boards of a kind are free, and how many leases wait for one."""
        found = self._registry.kinds.get(kind)
        return (len(found.free), len(found.queue)) if found else (0, 0)

    def prospect(self, lease: Lease, now: float) -> QueuePosition:
        """Return the place of a waiting lease, why it waits, and when it surely has its boards."""
        return self.prospects([lease], now)[lease.number]

    def prospects(self, leases: Iterable[Lease], now: float) -> dict[int, QueuePosition]:
        """Return the same for several waiting leases, by their numbers.

        What leases share, such as the order of their queue, is computed once.
        """
        found: dict[int, QueuePosition] = {}
        held: _HeldByOwner = {}
        of_kinds: dict[str, list[Lease]] = {}
        for lease in leases:
            of_kinds.setdefault(lease.request.kind, []).append(lease)
        for kind, waiting in of_kinds.items():
            order = self._order(self._registry.kinds[kind], now)
            places = {one.number: place for place, one in enumerate(order, 1)}
            fitting_boards: dict[tuple[str, frozenset[str]], _FittingBoards] = {}
            starts: dict[tuple[str, tuple[str, ...]], dict[int, float | None]] = {}
            for lease in waiting:
                number, request = lease.number, lease.request
                wanted = request.board, frozenset(request.tags)
                if (fitting := fitting_boards.get(wanted)) is None:
                    fitting = fitting_boards[wanted] = self._fitting_boards(request)
                candidates = request.board, tuple(board.name for board in fitting.boards)
                if candidates not in starts:
                    starts[candidates] = self._starts(request, order, fitting.boards, now)
                reason = self._reason(lease, fitting, held, now)
                surely_by = starts[candidates][number]
                found[number] = QueuePosition(places[number], reason, surely_by)
        return found

    # inside

    def _fitting_boards(self, request: LeaseRequest) -> _FittingBoards:
        known = self._registry.kinds[request.kind].boards.values()
        boards = [board for board in known if request.fits(board.name, board.tags)]
        present = [board for board in boards if board.present and not board.silent]
        return _FittingBoards(
            boards,
            len(present),
            sum(bool(board.barred) and board.lease is None for board in present),
            sum(not board.idle or board.lease is not None for board in present),
        )

    def _starts(
        self,
        request: LeaseRequest,
        order: Sequence[Lease],
        fitting: Sequence[RegisteredBoard],
        now: float,
    ) -> dict[int, float | None]:
        """Return when leases that want the same boards surely have theirs, by their numbers."""
        until = [
            self._free_at(board, now)
            for board in fitting
            if board.present or board.lease is not None
        ]
        queue = [
            one for one in order if not request.board or one.request.board in ("", request.board)
        ]
        busy = self._promises.busy_periods(request.kind, fitting, now)
        starts = guaranteed_starts(queue, until, busy)
        return {one.number: start for one, start in zip(queue, starts, strict=True)}

    def _reason(self, lease: Lease, fitting: _FittingBoards, held: _HeldByOwner, now: float) -> str:
        request = lease.request
        present, barred, lent = fitting.present, fitting.barred, fitting.lent
        if self._over_limit(lease, held):
            most = self._rules.classes[request.rank].boards
            return f"your limit of {most} {'board' if most == 1 else 'boards'} at once"
        if present < request.count:
            return f"{request.count} of {request.board or request.kind} wanted, {present} connected"
        if lease.number in self._gathering and (got := present - lent):
            return f"{got} of {request.count} gathered"
        free = self._fitting(request)
        if len(free) >= request.count and request.reservation is None:
            names, until = [board.name for board in free], now + request.for_s
            reserved = self._promises.who_needs(request.kind, names, request.count, until)
            if reserved is not None:
                return refusals.reserved_for(reserved, now)
        out = f", {barred} out of service or being checked" if barred else ""
        wanted = request.board or f"a {request.kind}"
        return f"waiting for {wanted}: {lent} of {present} lent{out}"

    def _holder_of(self, board: RegisteredBoard) -> Lease | None:
        return self._live.get(board.lease) if board.lease is not None else None

    def _lose(self, lease: Lease, board: str, why: str, now: float) -> None:
        """Note that a lease's board is lost; another takes its place once one is free."""
        lease = dataclasses.replace(lease, lost={**lease.lost, board: why})
        self._put(lease)
        self._short[lease.number] = None
        self._make_up(lease.request.kind, now)

    def _make_up(self, name: str, now: float) -> None:
        """Give free boards of a kind to leases that have lost theirs, before all others."""
        if self.paused:
            return
        for number in list(self._short):
            lease = self._live[number]
            if lease.request.kind != name or lease.request.board:
                continue
            for lost in [one for one in lease.boards if one in lease.lost]:
                if (other := self._to_make_up(lease, now)) is not None:
                    self._swap(number, lost, other, now)
            while _boards_short(lease := self._live[number]):
                if (other := self._to_make_up(lease, now)) is None:
                    break
                self._give(lease, other, now, "it was missing when the reservation began")
            if not (set(lease.boards) & set(lease.lost) or _boards_short(lease)):
                del self._short[number]

    def _to_make_up(self, lease: Lease, now: float) -> RegisteredBoard | None:
        """Return a free board for a lease that has too few, which no reservation would lack."""
        until = lease.ends_at or now
        for board in self._fitting(lease.request):
            if self._promises.who_suffers(lease.request.kind, [board.name], until, now) is None:
                return board
        return None

    def _give(self, lease: Lease, board: RegisteredBoard, now: float, why: str) -> None:
        """Give a further board to a lease that is in force."""
        given = {**lease.given_at, board.name: now}
        lease = dataclasses.replace(lease, boards=(*lease.boards, board.name), given_at=given)
        self._put(lease)
        board.lease = lease.number
        self._registry.refresh(board)
        self._event("lease-board-given", now, lease, board=board.name, detail=why)
        self.effects.granted.append(lease)

    def _swap(self, number: int, lost: str, other: RegisteredBoard, now: float) -> None:
        lease, old = self._live[number], self._registry.boards[lost]
        since = lease.given_at.get(lost, lease.granted_at or now)
        self.effects.taken.append(LeaseBoardPeriod(number, lost, since, now))
        boards = tuple(other.name if one == lost else one for one in lease.boards)
        given = {one: at for one, at in lease.given_at.items() if one != lost}
        why = f"in the place of {lost}: {lease.lost[lost]}"
        left = {one: reason for one, reason in lease.lost.items() if one != other.name}
        given[other.name] = now
        lease = dataclasses.replace(lease, boards=boards, given_at=given, lost=left)
        self._put(lease)
        old.lease, other.lease = None, number
        self._registry.refresh(old)
        self._registry.refresh(other)
        self._registry.forget(old)
        self._event("lease-board-given", now, lease, board=other.name, detail=why)
        self.effects.granted.append(lease)

    def _free_at(self, board: RegisteredBoard, now: float) -> float:
        lease = self._holder_of(board)
        return now if lease is None or lease.ends_at is None else max(now, lease.ends_at)

    def _view(self, board: RegisteredBoard) -> BoardView:
        lease = self._holder_of(board)
        use = (
            "away"
            if not board.present
            else "silent"
            if board.silent or board.hushed
            else "checking"
            if lease and lease.request.check
            else "leased"
            if lease and board.idle
            else "out"
            if board.barred and (board.idle or board.held)
            else "free"
            if board.idle
            else "in session"
        )
        owner, until = (
            (lease.request.owner, None if lease.request.implicit else lease.ends_at)
            if lease
            else ("", None)
        )
        return BoardView(
            board.name,
            board.kind,
            board.tags,
            use,
            board.lease,
            owner,
            until,
            board.health,
            board.barred,
        )

    def _check(self, request: LeaseRequest) -> None:
        longest = self._rules.classes.get(request.rank)
        if longest is None:
            raise refusals.unknown_class_error(request.rank)
        if not request.implicit and not self.knows_kind(request.kind):
            raise refusals.unknown_kind_error(request.kind, self.kinds)
        kind = self._registry.kinds.get(request.kind, BoardKindQueue())
        if request.board and request.board not in kind.boards:
            raise refusals.unknown_board_of_kind_error(request.board, request.kind, kind.boards)
        boards = kind.boards.values()
        if request.tags and not any(request.fits(one.name, one.tags) for one in boards):
            raise refusals.no_board_with_tags_error(
                request, {tag for one in boards for tag in one.tags}
            )
        if request.for_s > longest.longest_s:
            raise refusals.lease_too_long_error(request.for_s, request.rank, longest)
        if longest.boards and request.count > longest.boards:
            raise refusals.too_many_boards_error(request.count, request.rank, longest)
        waiting = sum(
            self._live[number].state is LeaseState.QUEUED
            for number in self._of_owner.get(request.owner, ())
        )
        if waiting >= self._rules.queue:
            raise refusals.too_many_queued_leases_error(request.owner, self._rules.queue)

    def _owned(self, number: int, caller: Caller, for_admin: bool = False) -> Lease:
        lease = self.lease(number)
        if lease.request.owner != caller.name and not (for_admin and caller.admin):
            raise refusals.lease_of_another_error(lease)
        if lease.state.ended:
            raise refusals.lease_ended_error(lease)
        return lease

    def _resume(self, lease: Lease, now: float) -> None:
        """Go on with a lease of an earlier server; its owner has all its time to be heard again."""
        lease = dataclasses.replace(lease, heard_at=now)
        self._enter(lease)
        kind = self._registry.kind(lease.request.kind)
        if lease.state is LeaseState.QUEUED:
            kind.queue[lease.number] = lease
        for name in lease.boards:
            self._registry.board(name, lease.request.kind).lease = lease.number
        if set(lease.boards) & set(lease.lost) or _boards_short(lease):
            self._short[lease.number] = None
        reservation = self._promises.of_lease(lease)
        if lease.boards and reservation is not None and not reservation.picked_up:
            self._unclaimed[lease.number] = now

    def _enter(self, lease: Lease) -> None:
        self._live[lease.number] = lease
        self._of_owner.setdefault(lease.request.owner, OrderedDict())[lease.number] = None
        if not lease.request.implicit:
            self._timed[lease.number] = None
        if lease.request.nonce:
            self._nonces[lease.request.owner, lease.request.nonce] = lease.number

    def _put(self, lease: Lease) -> None:
        self._live[lease.number] = lease
        if not lease.request.implicit:
            self.effects.leases[lease.number] = lease

    def _event(
        self,
        what: str,
        now: float,
        lease: Lease | None = None,
        who: str = "",
        board: str = "",
        detail: str = "",
    ) -> None:
        if lease is not None and lease.request.implicit:
            return
        owner, number = (lease.request.owner, lease.number) if lease else ("", None)
        self.note(what, now, board, number, who or owner, detail)

    def _use(self, owner: str, now: float) -> float:
        running = 0.0
        for number in self._of_owner.get(owner, ()):
            lease = self._live[number]
            if lease.granted_at is not None:
                running += len(lease.boards) * max(0.0, now - lease.granted_at)
        return self._usage.of(owner, now) + running

    def _order(self, kind: BoardKindQueue, now: float) -> list[Lease]:
        use = {
            owner: self._use(owner, now)
            for owner in {lease.request.owner for lease in kind.queue.values()}
        }

        def key(lease: Lease) -> Turn:
            return queue_sort_key(lease, use[lease.request.owner], self._rules, now)

        return sorted(kind.queue.values(), key=key)

    def _over_limit(self, lease: Lease, held: _HeldByOwner) -> bool:
        """Return whether a lease exceeds its owner's limit; `held` is what was counted before."""
        request = lease.request
        most = self._rules.classes[request.rank].boards
        if not most:
            return False
        if (of_rank := (request.owner, request.rank)) not in held:
            owned = (self._live[number] for number in self._of_owner[request.owner])
            held[of_rank] = sum(
                len(one.boards) for one in owned if one.request.rank == request.rank
            )
        return held[of_rank] + request.count > most

    def _match(self, name: str, now: float) -> None:
        """Lend the free boards of a kind to those whose turn it is."""
        kind = self._registry.kinds.get(name)
        if self.paused or kind is None or not kind.free:
            return
        if self._short:
            self._make_up(name, now)
        granted = True
        while granted and kind.free and kind.queue:  # each grant changes its owner's use
            granted = self._grant_next(kind, now)

    def _grant_next(self, kind: BoardKindQueue, now: float) -> bool:
        kept: set[str] = set()
        refused: list[Lease] = []
        reserved: KindReservations | None = None
        held: _HeldByOwner = {}
        for lease in self._order(kind, now):
            request = lease.request
            if request.reservation is None and self._over_limit(lease, held):
                continue
            reserved = reserved or self._promises.of_kind(request.kind, now)
            fitting = [board for board in self._fitting(request) if board.name not in kept]
            if request.reservation is not None:
                chosen = self._boards_of_reservation(lease, kind, fitting, reserved, now)
            elif any(_wants_no_less(request, one.request) for one in refused):
                continue
            elif len(fitting) < request.count:
                if fitting and self._may_gather(lease, fitting, reserved, now):
                    kept.update(board.name for board in fitting)
                chosen = []
            else:
                chosen = _unreserved(lease, fitting, reserved, now)
                if not chosen:
                    refused.append(lease)
            if chosen:
                self._grant(lease, chosen, now)
                return True
            if len(kept) == len(kind.free):
                return False
        return False

    def _boards_of_reservation(
        self,
        lease: Lease,
        kind: BoardKindQueue,
        fitting: Sequence[RegisteredBoard],
        reserved: KindReservations,
        now: float,
    ) -> Sequence[RegisteredBoard]:
        """Return the boards with which the lease of a reservation begins; none if it waits.

        It waits for those that must be free any moment, for some time, and not for others.
        """
        request = lease.request
        if len(fitting) >= request.count:
            return _unreserved(lease, fitting, reserved, now)
        awaited = any(
            board.lease is None
            and not board.idle
            and not board.held
            and can_be_counted_on(board)
            and request.fits(board.name, board.tags)
            for board in kind.boards.values()
        )
        if awaited and now - lease.asked_at < self._rules.gather_s:
            return []
        promised = reserved.promised(request.until or now, request.reservation)
        return [board for board in fitting if board.name not in promised]

    def _may_gather(
        self,
        lease: Lease,
        fitting: Sequence[RegisteredBoard],
        reserved: KindReservations,
        now: float,
    ) -> bool:
        """Return whether a lease that has too few free boards keeps these from others."""
        names, until = [board.name for board in fitting], now + lease.request.for_s
        if reserved.first_to_suffer(names, until) is not None:
            return False
        return self._gathers(lease, now)

    def _fitting(self, request: LeaseRequest) -> list[RegisteredBoard]:
        """Return the free boards that a lease may be given."""
        return [
            board
            for board in self._registry.kinds[request.kind].free.values()
            if request.fits(board.name, board.tags)
            and (not board.batch_only or request.rank == "batch" or request.any_health)
        ]

    def _gathers(self, lease: Lease, now: float) -> bool:
        """Return whether free boards are kept for a lease of several, which has too few of them.

        It keeps them for some time, then lets others by for as long; once it has aged, it keeps
        them until it has all.
        """
        since = self._gathering.setdefault(lease.number, now)
        if now - lease.asked_at >= 3 * self._rules.aging_s:
            return True
        return int((now - since) / self._rules.gather_s) % 2 == 0

    def _grant(self, lease: Lease, boards: Sequence[RegisteredBoard], now: float) -> None:
        names = tuple(board.name for board in boards)
        lease = dataclasses.replace(
            lease,
            state=LeaseState.ACTIVE,
            granted_at=now,
            ends_at=lease.request.until or now + lease.request.for_s,
            heard_at=max(lease.heard_at, now),
            boards=names,
        )
        del self._registry.kinds[lease.request.kind].queue[lease.number]
        self._gathering.pop(lease.number, None)
        if not lease.request.implicit and lease.request.heartbeat_s is None:
            self._unclaimed[lease.number] = now
        if len(boards) < lease.request.count:
            self._short[lease.number] = None
        for board in boards:
            board.lease = lease.number
            board.idle = (
                board.idle and not lease.request.implicit
            )  # an implicit lease is for a session, now
            self._registry.refresh(board)
        self._put(lease)
        self._event("lease-granted", now, lease, detail=", ".join(names))
        self.effects.granted.append(lease)

    def _end(
        self, lease: Lease, state: LeaseState, now: float, why: str = "", who: str = ""
    ) -> Lease:
        request = lease.request
        ended = dataclasses.replace(lease, state=state, ended_at=now, why=why)
        self._put(ended)
        del self._live[lease.number]
        self._timed.pop(lease.number, None)
        self._gathering.pop(lease.number, None)
        self._short.pop(lease.number, None)
        self._unclaimed.pop(lease.number, None)
        self._registry.leave_queue(lease)
        owned = self._of_owner[request.owner]
        del owned[lease.number]
        if not owned:
            del self._of_owner[request.owner]
        if lease.granted_at is not None:
            used = len(lease.boards) * max(0.0, now - lease.granted_at)
            self.effects.used[request.owner] = self._usage.add(request.owner, used, now), now
        self._event(f"lease-{state.value.replace(' ', '-')}", now, ended, who, detail=why)
        self.effects.ended.append(ended)
        self._remember(ended)
        if (reservation := self._promises.of_lease(ended)) is not None:
            lapsed = state in (LeaseState.LAPSED, LeaseState.TIMED_OUT)
            over = ReservationState.LAPSED if lapsed else ReservationState.ENDED
            self._promises.finish(reservation, over, why, now)
        for name in lease.boards:
            board = self._registry.boards[name]
            board.lease = None
            self._registry.refresh(board)
            self._registry.forget(board)
        return ended

    def _reservation_changed(self, reservation: Reservation) -> None:
        self.effects.reservations[reservation.number] = reservation

    def _remember(self, lease: Lease) -> None:
        if lease.request.implicit:
            return
        self._ended[lease.number] = lease
        while len(self._ended) > MOST_ENDED:
            _, oldest = self._ended.popitem(last=False)
            self._nonces.pop((oldest.request.owner, oldest.request.nonce), None)

    def _begin(self, reservation: Reservation, now: float) -> None:
        """Let the lease of a reservation wait for its boards, before all others."""
        wanted = reservation.request
        if now >= wanted.until:
            why = f"there was no server from {format_duration(wanted.for_s)} before its end on"
            self._promises.finish(reservation, ReservationState.LAPSED, why, now)
            return
        request = LeaseRequest(
            wanted.owner,
            wanted.kind,
            wanted.for_s,
            wanted.rank,
            wanted.count,
            labels=wanted.labels,
            tags=wanted.tags,
            reservation=reservation.number,
            until=wanted.until,
        )
        lease = Lease(self._next_lease, request, reservation.key, now, heard_at=now)
        self._next_lease += 1
        began = dataclasses.replace(reservation, state=ReservationState.BEGAN, lease=lease.number)
        self._promises.keep(began)
        self._promises.event("reservation-began", now, began)
        self._enter(lease)
        self._registry.queue(lease)
        self._put(lease)
        boards = f"{request.count} of {request.kind} until the end of its reservation"
        self._event("lease-queued", now, lease, detail=boards)


def _unreserved(
    lease: Lease, fitting: Sequence[RegisteredBoard], reserved: KindReservations, now: float
) -> Sequence[RegisteredBoard]:
    """Return boards for a lease by which no reservation suffers; none if there are too few."""
    request = lease.request
    until = request.until or now + request.for_s
    promised = reserved.promised(until, request.reservation)
    chosen = sorted(fitting, key=lambda board: board.name in promised)[: request.count]
    names = [board.name for board in chosen]
    suffers = reserved.first_to_suffer(names, until, request.reservation)
    return chosen if suffers is None else []


def _wants_no_less(request: LeaseRequest, other: LeaseRequest) -> bool:
    """Return whether reservations suffer from a request as they do from another one."""
    return (
        request.for_s >= other.for_s
        and request.count >= other.count
        and request.board == other.board
        and set(request.tags) == set(other.tags)
        and request.any_health == other.any_health
        and request.rank == other.rank
    )


def _leaves_queue_at(lease: Lease) -> float:
    """Return when a lease has waited too long for its boards."""
    request = lease.request
    if request.until is not None:
        return request.until
    return math.inf if request.wait_s is None else lease.asked_at + request.wait_s


def _boards_short(lease: Lease) -> bool:
    """Return whether the lease of a reservation began with fewer boards than were reserved."""
    return (
        lease.request.reservation is not None
        and lease.state is LeaseState.ACTIVE
        and len(lease.boards) < lease.request.count
    )
