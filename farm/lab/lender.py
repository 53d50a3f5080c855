"""Where the tracker's connections meet the leases: boards that offer themselves, clients that ask.

A client that asks for a kind gets an implicit lease for one session. One that asks for the key of a
lease gets a session on a board of that lease. Nobody is answered before the journal has what led to
the answer. TVM's protocol tells no names of boards: one that is in no inventory is called by its
kind and address, and further ones behind the same address by a number.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from farm.errors import UsageError
from farm.lab.effects import Effects
from farm.lab.entities import Event, KnownBoard, Lease, LeaseRequest, Rules, State
from farm.lab.journal import Session
from farm.lab.scheduler import LeaseScheduler
from farm.lab.writer import Writer
from farm.tracker.scheduler import (
    Grant,
    Offer,
    Queue,
    Refusal,
    Scheduler,
    Server,
    Summary,
    TooManyError,
    Waiting,
)

MOST_REQUESTS = 256  # of one connection that wait
_MOST_KEYS = 1 << 16  # before those of leases that are forgotten are looked for


class Deliver(Protocol):
    """Whoever answers the tracker's clients."""

    def __call__(self, grants: Iterable[Grant], refusals: Iterable[Refusal] = ()) -> None:
        """Answer requests."""


@dataclass(slots=True)
class _Request:
    """A request that waits: for its implicit lease, or for a board of a lease that it knows."""

    waiting: Waiting
    lease: int
    implicit: bool


class LabLender:
    """The lab's side of TVM's tracker protocol; `tracker.server.Lender` is its form.

    `clock` is the time of leases. `tell` gets what was kept: leases that changed, and events.
    """

    def __init__(
        self,
        scheduler: LeaseScheduler,
        writer: Writer,
        rules: Rules,
        inventory: Iterable[KnownBoard],
        clock: Callable[[], float],
        tell: Callable[[list[Lease], list[Event]], None],
    ) -> None:
        self.scheduler = scheduler
        self.deliver: Deliver = _nobody
        self._writer = writer
        self._rules = rules
        self._clock = clock
        self._tell = tell
        known = tuple(inventory)
        self._names = {(one.kind, one.address): one.name for one in known}
        self._listed = frozenset(one.name for one in known)
        self._places = {one.name: one.address for one in known}  # where boards serve
        self._connections = (
            Scheduler()
        )  # without any request: who is connected, and what they offer
        self._numbers = itertools.count(1)
        self._offers: dict[str, Offer] = {}  # open ones, by board
        self._boards: dict[tuple[int, str], str] = {}  # by peer and match key of an open offer
        self._peer_of: dict[str, int] = {}  # the peer that last offered a board
        self._boards_of: dict[int, set[str]] = {}
        self._requests: dict[int, OrderedDict[int, _Request]] = {}  # by peer, then number
        self._of_lease: dict[int, OrderedDict[int, _Request]] = {}  # requests by lease, then number
        self._hushed: set[str] = set()  # boards with an offer that are silent
        self._sessions: dict[str, Session] = {}  # that run, as far as is known
        self._keys = {lease.key: lease.number for lease in scheduler.remembered()}

    # of the control socket

    def settle(self) -> None:
        """Keep what has changed in the scheduler; then tell it, and answer who waited for it."""
        effects = self.scheduler.take()
        self._writer.put(effects)
        grants, refusals = self._of_effects(effects)
        told = [
            lease
            for lease in (*effects.leases.values(), *effects.granted, *effects.ended)
            if not lease.request.implicit
        ]
        if told or effects.events:
            self._writer.once_kept(lambda: self._tell(told, effects.events))
        self._say(grants, refusals)

    def know(self, lease: Lease) -> None:
        """Let clients ask for the boards of a lease, by its key."""
        self._keys[lease.key] = lease.number
        if len(self._keys) > _MOST_KEYS:
            self._keys = {one.key: one.number for one in self.scheduler.remembered()}

    def tick(self, now: float) -> None:
        """End what has lasted too long, and pass over boards that are silent.

        `now` is the tracker's.
        """
        for board, offer in self._offers.items():
            if board not in self._hushed and self._connections.is_silent(offer.peer, now):
                self._hushed.add(board)
                self.scheduler.board_busy(board)
        self.scheduler.tick(self._clock())
        self.settle()
        self._writer.flush()

    def address(self, board: str) -> str:
        """Return where a board serves, or "" if that is not known."""
        return self._places.get(board, "")

    # of the tracker

    def connect(self, peer: int, origin: str, now: float) -> None:
        """Take in a peer that connects from an address."""
        self._connections.connect(peer, origin, now)

    def disconnect(self, peer: int) -> None:
        """Withdraw all that a peer has offered and asked for."""
        for request in list(self._requests.get(peer, {}).values()):
            self._forget(request)
            if request.implicit:
                self.scheduler.withdraw(request.lease, self._clock())
        self._connections.disconnect(peer)
        for board in self._boards_of.pop(peer, ()):
            self._lose(board)
        self.settle()

    def register(self, peer: int, server: Server) -> int | None:
        """Note what a server says of itself; return the older connection of the same server."""
        return self._connections.register(peer, server)

    def offer(self, peer: int, offer: Offer, now: float) -> list[Grant]:
        """Take in an offer. Raises TooManyError."""
        self._connections.offer(peer, offer, now)
        board = self._boards.get((peer, offer.match_key))
        if (
            board is not None and self._offers[board].key != offer.key
        ):  # another kind under the same match key
            self._boards_of[peer].discard(board)
            self._lose(board)
            board = None
        board = board or self._slot(peer, offer)
        self._offers[board] = offer
        self._places[board] = f"{offer.host}:{offer.port}"
        self._boards[peer, offer.match_key] = board
        self._end_session(board)
        self.scheduler.board_idle(board, offer.key, self._clock())
        self._serve(board)
        self.settle()
        return []

    def request(
        self, peer: int, key: str, priority: float, now: float
    ) -> tuple[Waiting, list[Grant]]:
        """Take in a request, which is answered by `deliver`. Raises TooManyError."""
        if len(self._requests.get(peer, ())) >= MOST_REQUESTS:
            raise TooManyError(f"more than {MOST_REQUESTS} requests at once")
        del now  # leases have a clock of their own
        waiting = Waiting(next(self._numbers), peer, key, priority)
        if (number := self._keys.get(key)) is not None:
            self._request_of_lease(waiting, number)
        else:
            self._request_of_kind(waiting)
        self.settle()
        return waiting, []

    def heard(self, peer: int, now: float, ping: bool) -> list[Grant]:
        """Note that a peer has spoken; boards that were silent can be lent again."""
        self._connections.heard(peer, now, ping)
        hushed = self._hushed & self._boards_of.get(peer, set()) if self._hushed else set()
        for board in hushed:
            self._hushed.discard(board)
            self.scheduler.board_idle(board, self._offers[board].key, self._clock())
            self._serve(board)
        if hushed:
            self.settle()
        return []

    def has_had_board(self, key: str) -> bool:
        """Return whether a key is of a lease, or of a kind that is known."""
        return key in self._keys or self.scheduler.knows_kind(key)

    def refuse_unknown(self, request: Waiting) -> Refusal | None:
        """Give up a request that still waits for a kind that no board has had."""
        ours = self._requests.get(request.peer)
        found = ours.get(request.number) if ours else None
        if found is None or not found.implicit or self.scheduler.knows_kind(request.key):
            return None
        self._forget(found)
        self.scheduler.withdraw(found.lease, self._clock())
        self.settle()
        return Refusal(request.peer, request.key, self._connections.why_unknown(request.key))

    def open_match_keys(self, peer: int) -> list[str]:
        """Return the match keys that a peer has offered and nobody has been given."""
        return self._connections.open_match_keys(peer)

    def summary(self, now: float) -> Summary:
        """Return the queues by kind, and the servers that are connected."""
        queues = {kind: Queue(*self.scheduler.counts(kind)) for kind in self.scheduler.wanted_kinds}
        return Summary(queues, self._connections.summary(now).servers)

    # inside

    def _lose(self, board: str) -> None:
        """Note that a board is no longer connected."""
        if offer := self._offers.pop(board, None):
            del self._boards[offer.peer, offer.match_key]
        self._hushed.discard(board)
        del self._peer_of[board]
        self._end_session(board)
        self.scheduler.board_gone(board, self._clock())
        if self.scheduler.holder(board) is None and board not in self._listed:
            del self._places[board]

    def _slot(self, peer: int, offer: Offer) -> str:
        """Return the name of the board that offers itself: one without an open offer.

        A connection from elsewhere gets a name of its own: or strangers could replace boards.
        """
        address = f"{offer.host}:{offer.port}"
        base = self._names.get((offer.key, address), f"{offer.key}@{address}")
        for name in itertools.chain([base], (f"{base}#{number}" for number in itertools.count(2))):
            if name not in self._offers and self._is_near(name, peer):
                break
        if (before := self._peer_of.get(name)) is not None:
            self._boards_of[before].discard(name)
        self._peer_of[name] = peer
        self._boards_of.setdefault(peer, set()).add(name)
        return name

    def _is_near(self, board: str, peer: int) -> bool:
        """Return whether a board is connected from the address of a peer, or not at all."""
        other = self._peer_of.get(board)
        return other is None or self._connections.origin(other) == self._connections.origin(peer)

    def _request_of_kind(self, waiting: Waiting) -> None:
        owner = f"address:{self._connections.origin(waiting.peer)}"
        rank = self._rules.implicit_rank
        for_s = self._rules.classes[rank].longest_s
        request = LeaseRequest(
            owner, waiting.key, for_s, rank, priority=waiting.priority, implicit=True
        )
        try:
            lease = self.scheduler.request(request, "", self._clock())
        except UsageError as exc:
            self._say([], [Refusal(waiting.peer, waiting.key, f"{exc.what}: {exc.why}")])
            return
        self._wait(_Request(waiting, lease.number, implicit=True))

    def _request_of_lease(self, waiting: Waiting, number: int) -> None:
        try:
            lease = self.scheduler.lease(number)
        except UsageError as exc:
            self._say([], [Refusal(waiting.peer, waiting.key, exc.what)])
            return
        if lease.state.ended:
            self._say([], [_refusal(waiting, lease)])
            return
        self._wait(_Request(waiting, number, implicit=False))
        for board in lease.boards:
            self._serve(board)

    def _serve(self, board: str) -> None:
        """Give a board that is idle to who waits for its lease."""
        view = self.scheduler.holder(board)
        offer = self._offers.get(board)
        if (
            view is None
            or offer is None
            or board in self._hushed
            or not (waiting := self._of_lease.get(view.number))
        ):
            return
        request = next((one for one in waiting.values() if not one.implicit), None)
        if request is None:
            return
        self._forget(request)
        self._hand_out(board)
        self.scheduler.board_busy(board)
        self._say([Grant(request.waiting.peer, offer)], [])

    def _of_effects(self, effects: Effects) -> tuple[list[Grant], list[Refusal]]:
        """Return the answers to requests that leases which began or ended bring."""
        grants, refusals = [], []
        for lease in effects.ended:
            for request in list(self._of_lease.get(lease.number, {}).values()):
                self._forget(request)
                if not request.implicit:
                    refusals.append(_refusal(request.waiting, lease))
        for lease in effects.granted:
            if not lease.request.implicit:
                for board in lease.boards:
                    self._serve(board)
            elif waiting := self._of_lease.get(lease.number):
                request = next(iter(waiting.values()))
                self._forget(request)
                grants.append(Grant(request.waiting.peer, self._hand_out(lease.boards[0], lease)))
        return grants, refusals

    def _hand_out(self, board: str, lease: Lease | None = None) -> Offer:
        offer = self._offers.pop(board)
        del self._boards[offer.peer, offer.match_key]
        self._connections.take_back(offer.peer, offer.match_key)
        holder = lease or self.scheduler.holder(board)
        if holder:
            number = None if holder.request.implicit else holder.number
            self._sessions[board] = Session(
                board, offer.key, holder.request.owner, self._clock(), 0.0, number
            )
        return offer

    def _end_session(self, board: str) -> None:
        if began := self._sessions.pop(board, None):
            self._writer.note(
                Session(
                    began.board, began.kind, began.owner, began.since, self._clock(), began.lease
                )
            )

    def _wait(self, request: _Request) -> None:
        waiting = request.waiting
        self._requests.setdefault(waiting.peer, OrderedDict())[waiting.number] = request
        self._of_lease.setdefault(request.lease, OrderedDict())[waiting.number] = request

    def _forget(self, request: _Request) -> None:
        waiting = request.waiting
        for table, key in ((self._requests, waiting.peer), (self._of_lease, request.lease)):
            table[key].pop(waiting.number, None)
            if not table[key]:
                del table[key]

    def _say(self, grants: list[Grant], refusals: list[Refusal]) -> None:
        if grants or refusals:
            self._writer.after(lambda: self.deliver(grants, refusals))


def _refusal(waiting: Waiting, lease: Lease) -> Refusal:
    state = "was released" if lease.state is State.RELEASED else f"has ended: {lease.state.value}"
    return Refusal(
        waiting.peer,
        waiting.key,
        f"lease {lease.number} {state}{f' ({lease.why})' if lease.why else ''}",
    )


def _nobody(grants: Iterable[Grant], refusals: Iterable[Refusal] = ()) -> None:
    """Answer nobody: there is no tracker yet."""
