"""Where the tracker's connections meet the leases: boards that offer themselves, clients that ask.

A client that asks for a kind gets an implicit lease for one session. One that asks for the key of a
lease gets a session on a board of that lease. Nobody is answered before the journal has what led to
the answer. TVM's protocol tells no names of boards: one that is in no inventory is called by its
kind and address, and further ones behind the same address by a number.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from farm import ownership
from farm.errors import UsageError
from farm.lab.board_records import BoardRecords, OpenSession
from farm.lab.board_sessions import OpenSessions, SessionEnd
from farm.lab.entities import (
    AgentInfo,
    Event,
    InventoryBoard,
    Lease,
    LeaseRequest,
    LeaseState,
    SharingRules,
)
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.scheduling.scheduler_changes import SchedulerChanges
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.metrics import Histogram
from farm.tracker.agent_messages import (
    HEARTBEAT_S,
    AgentHello,
    AgentRequests,
    BoardSession,
    Heartbeat,
    SessionEnded,
)
from farm.tracker.scheduler import (
    Grant,
    KeyQueue,
    Offer,
    Refusal,
    ServerInfo,
    Summary,
    TooManyError,
    TrackerScheduler,
    WaitingRequest,
    is_loopback,
)

MOST_REQUESTS = 256  # of one connection that wait
MOST_BOARDS = 10_000  # that are connected
MOST_BOARDS_OF_ONE = 256  # of one connection: a proxy of TVM's has several, an agent has one
LOOPBACK = "127.0.0.1"  # who connects from another of its addresses, of which there are millions
_SILENT_BEATS = 2.5  # without a word for so many heartbeats a board is silent: 25 s
_MOST_KEYS = 1 << 16  # before those of leases that are forgotten are looked for


class AnswerSender(Protocol):
    """Whoever answers the tracker's clients."""

    def __call__(self, grants: Iterable[Grant], refusals: Iterable[Refusal] = ()) -> None:
        """Answer requests."""


@dataclass(slots=True)
class _Request:
    """A request that waits: for its implicit lease, or for a board of a lease that it knows."""

    waiting: WaitingRequest
    lease: int
    implicit: bool


class BoardHealthObserver(Protocol):
    """Whoever looks after the health of boards."""

    def before_idle(self, board: str, had_session: bool) -> None:
        """Say whether a board that is about to be idle may be lent."""

    def session_ended(self, board: str, session: OpenSession | None, ended: SessionEnded) -> str:
        """Take in how a session has ended; return the board's own fault, or ""."""

    def fault(self, board: str, owner: str, what: str) -> None:
        """Take in a fault of a board in a session."""

    def holds(self, board: str) -> bool:
        """Return whether nobody, the lab's checks included, is to have a board now."""


class LabLender:
    """The lab's side of TVM's tracker protocol: a `BoardLender` and an `AgentManager`.

    `clock` is the time of leases. `tell` gets what was kept: leases that changed, and events.
    """

    def __init__(
        self,
        scheduler: LeaseScheduler,
        writer: LabDatabaseWriter,
        rules: SharingRules,
        inventory: Iterable[InventoryBoard],
        clock: Callable[[], float],
        tell: Callable[[list[Lease], list[Event]], None],
        records: BoardRecords | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.scheduler = scheduler
        self.deliver: AnswerSender = _nobody
        self.hang_up: Callable[[int, str], None] = lambda _peer, _why: None
        self.connection_of: Callable[[int], ownership.SocketLike | None] = lambda _peer: None
        self.records = records or BoardRecords(())
        self.sessions = OpenSessions(scheduler, writer, self.records, rules, clock)
        self.keeper: BoardHealthObserver | None = None
        self.endings: Counter[tuple[str, str]] = Counter()  # of sessions, by kind and how
        self.silent_s = _SILENT_BEATS * heartbeat_s  # without a word, after which a board is
        self._now: float | None = None  # of the tracker
        self._agents: dict[int, AgentInfo] = {}  # by peer
        self._silent: set[str] = set()  # boards that have not been heard for long
        self._gone: dict[str, float] = {}  # boards of leases that hung up, since when
        self._writer = writer
        self._rules = rules
        self._clock = clock
        self._tell = tell
        known = tuple(inventory)
        self._names = {(one.kind, one.address): one.name for one in known}
        self._listed = frozenset(one.name for one in known)
        self._places = {one.name: one.address for one in known}  # where boards serve
        self._connections = (
            TrackerScheduler()
        )  # without any request: who is connected, and what they offer
        self._numbers = itertools.count(1)
        self._offers: dict[str, Offer] = {}  # open ones, by board
        self._boards: dict[tuple[int, str], str] = {}  # by peer and match key of an open offer
        self._peer_of: dict[str, int] = {}  # the peer that last offered a board
        self._boards_of: dict[int, set[str]] = {}
        self._requests: dict[int, OrderedDict[int, _Request]] = {}  # by peer, then number
        self._of_lease: dict[int, OrderedDict[int, _Request]] = {}  # requests by lease, then number
        self._hushed: set[str] = set()  # boards with an offer that were not heard as they should
        self._keys = {lease.key: lease.number for lease in scheduler.remembered()}

    # of the control socket

    @property
    def disk_full(self) -> bool:
        """Return whether the disk is full, so that nothing can be stored."""
        return self._writer.full is not None

    @property
    def commit_s(self) -> Histogram:
        """How long transactions took."""
        return self._writer.commit_s

    def settle(self) -> None:
        """Keep what has changed in the scheduler; then tell it, and answer who waited for it."""
        effects = self.scheduler.take()
        for lease in effects.leases.values():
            if lease.request.reservation is not None and not lease.state.ended:
                self.know(lease)
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
        if self._now is None:
            self._expect_boards(now)
        self._now = now
        for board, offer in self._offers.items():
            if board not in self._hushed and self._connections.is_silent(offer.peer, now):
                self._hushed.add(board)
                self.scheduler.board_hushed(board)
        self._find_silent(now)
        self.scheduler.tick(self._clock())
        self.settle()
        self._writer.note_boards(self.records.take())
        self._writer.flush()

    def address(self, board: str) -> str:
        """Return where a board serves, or "" if that is not known."""
        return self._places.get(board, "")

    def is_listed(self, board: str) -> bool:
        """Return whether the inventory says that a board serves where it does."""
        return (self.scheduler.kind_of(board), self.address(board)) in self._names

    def connection(self, board: str) -> ownership.SocketLike | None:
        """Return the connection of a board to the tracker; None if it is away."""
        peer = self.peer_of(board)
        return None if peer is None else self.connection_of(peer)

    def agent(self, board: str) -> AgentInfo | None:
        """Return the agent of a board; None for TVM's own server, and one that is away."""
        return self._agents.get(self._peer_of.get(board, -1))

    def origin_of(self, board: str) -> str:
        """Return the address from which a board is offered; "" if it is away."""
        peer = self.peer_of(board)
        return "" if peer is None or peer not in self._boards_of else self._connections.origin(peer)

    def peer_of(self, board: str) -> int | None:
        """Return the connection of a board."""
        return self._peer_of.get(board)

    def last_word_s(self, board: str) -> float | None:
        """Return how long ago the server of a board has spoken; None if it is away."""
        peer = self._peer_of.get(board)
        if peer is None or self._now is None:
            return None
        return max(0.0, self._now - self._connections.heard_at(peer))

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
        last_word = self._connections.heard_at(peer)
        agent = self._agents.get(peer)
        for board in sorted({agent.board} if agent else self._boards_of.get(peer, ())):
            self._blame(board, "its agent hung up" if agent else "its server hung up")
        self._agents.pop(peer, None)
        self._connections.disconnect(peer)
        for board in self._boards_of.pop(peer, ()):
            self._lose(board)
            self._gone[board] = last_word if agent or self._now is None else self._now
        self.settle()

    def register(self, peer: int, server: ServerInfo) -> int | None:
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
        had_session = self.sessions.of(board) is not None
        self.sessions.end(board)
        self._gone.pop(board, None)
        self.scheduler.board_came(board, offer.key, self._clock())
        if self.keeper:
            self.keeper.before_idle(board, had_session)
        self.scheduler.board_idle(board, offer.key, self._clock())
        self._hear_again(board)
        self._serve(board)
        self.settle()
        return []

    def request(
        self, peer: int, key: str, priority: float, now: float
    ) -> tuple[WaitingRequest, list[Grant]]:
        """Take in a request, which is answered by `deliver`. Raises TooManyError."""
        if len(self._requests.get(peer, ())) >= MOST_REQUESTS:
            raise TooManyError(f"more than {MOST_REQUESTS} requests at once")
        del now  # leases have a clock of their own
        waiting = WaitingRequest(next(self._numbers), peer, key, priority)
        if (number := self._keys.get(key)) is not None:
            self._request_of_lease(waiting, number)
        else:
            self._request_of_kind(waiting)
        self.settle()
        return waiting, []

    def heard(self, peer: int, now: float, ping: bool) -> list[Grant]:
        """Note that a peer has spoken; boards that were silent can be lent again."""
        self._now = now
        self._connections.heard(peer, now, ping)
        if self._hushed or self._silent:
            quiet = (self._hushed | self._silent) & self._boards_of.get(peer, set())
            for board in quiet:
                self._hear_again(board)
                self._serve(board)
            if quiet:
                self.settle()
        return []

    def has_had_board(self, key: str) -> bool:
        """Return whether a key is of a lease, or of a kind that is known."""
        return key in self._keys or self.scheduler.knows_kind(key)

    def refuse_unknown(self, request: WaitingRequest) -> Refusal | None:
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
        queues = {
            kind: KeyQueue(*self.scheduler.counts(kind)) for kind in self.scheduler.wanted_kinds
        }
        return Summary(queues, self._connections.summary(now).servers)

    # of farm's agents

    def knows(self, peer: int) -> bool:
        """Return whether a peer is an agent."""
        return peer in self._agents

    def hello(self, peer: int, server: ServerInfo, hello: AgentHello, now: float) -> None:
        """Take in an agent that has registered. One that has a session is joined with its lease.

        Raises TooManyError.
        """
        address = f"{server.host}:{server.port}"
        board = self._name_of_agent(peer, server.key, address, hello)
        if peer in self._agents and self._agents[peer].board != board:
            raise TooManyError("a second board, and an agent has one")
        self._make_room(peer, board)
        self._now = now
        self._boards_of.setdefault(peer, set()).add(board)
        self._peer_of[board] = peer
        self._agents[peer] = AgentInfo(board, server.key, hello.version, hello.boot)
        self._places[board] = address
        self._gone.pop(board, None)
        self.scheduler.board_came(board, server.key, self._clock())
        self._hear_again(board)
        if hello.session:
            self._join(board, server.key, hello.session)
        self.settle()

    def heartbeat(self, peer: int, heartbeat: Heartbeat) -> AgentRequests:
        """Take in the whole state of a board; return what its agent is to do."""
        agent = self._agents[peer]
        agent.state = heartbeat.state
        if heartbeat.session is None:
            return AgentRequests(hold=self._holds(agent.board))
        self._join(agent.board, agent.kind, heartbeat.session)
        return AgentRequests(self.sessions.to_end(agent.board, heartbeat.session))

    def session_ended(self, peer: int, ended: SessionEnded) -> AgentRequests:
        """Take in how a session has ended; return what the agent is to do."""
        agent = self._agents[peer]
        self.endings[agent.kind, ended.how] += 1
        known, fault = self.sessions.of(agent.board), ""
        if known and known.match_key == ended.match_key:
            if self.keeper:
                fault = self.keeper.session_ended(agent.board, known, ended)
                self.keeper.before_idle(agent.board, True)
            self.sessions.end(agent.board)
            self.settle()
        self.sessions.note_end(ended.match_key, SessionEnd(agent.board, ended.how, fault))
        return AgentRequests(hold=self._holds(agent.board))

    # inside

    def _join(self, board: str, kind: str, session: BoardSession) -> None:
        """Note that a board has a session; it may be one that is known."""
        known = self.sessions.of(board)
        if known and known.match_key == session.match_key:
            return
        if board in self._offers:
            self._withdraw(board)
        self.scheduler.board_busy(board)
        self.sessions.join(board, kind, session.match_key)
        self.settle()

    def _name_of_agent(self, peer: int, kind: str, address: str, hello: AgentHello) -> str:
        """Return the name of an agent's board: that of the inventory, or its own, or its address.

        A board of that name that is connected is another one, which keeps its name; unless it is
        the same one that has been started again, by the boot of its system. All boards behind
        tunnels connect from loopback: there one that is back is known by its port alone.
        """
        known = self._names.get((kind, address))
        base = known or hello.board or f"{kind}@{address}"
        for name in itertools.chain([base], (f"{base}#{number}" for number in itertools.count(2))):
            if self.scheduler.kind_of(name) not in (None, kind):
                continue
            other = self._peer_of.get(name)
            if other is not None and other != peer and self._is_near(name, peer):
                before = self._agents.get(other)
                is_tunnel = is_loopback(self._connections.origin(peer))
                if before and hello.boot and before.boot != hello.boot and not is_tunnel:
                    self.hang_up(other, f"the board {name} has been started again")
            if self._peer_of.get(name) in (None, peer):
                return name
        raise AssertionError("there is no end of names")

    def _hear_again(self, board: str) -> None:
        if board in self._hushed or board in self._silent:
            self._hushed.discard(board)
            self._silent.discard(board)
            self.scheduler.board_heard(board, self._clock())

    def _expect_boards(self, now: float) -> None:
        """Expect the boards of leases to come back; TVM's own do so after their sessions."""
        for lease in self.scheduler.leases():
            for board in lease.boards:
                record = self.records.of(board)
                if record and record.agent and board not in self._peer_of:
                    self._gone[board] = now

    def _find_silent(self, now: float) -> None:
        for peer, agent in self._agents.items():
            if now - self._connections.heard_at(peer) > self.silent_s:
                self._fall_silent(agent.board, f"nothing heard for {self.silent_s:.0f} s")
        for board in self._hushed - self._silent:
            offer = self._offers.get(board)
            if offer and now - self._connections.heard_at(offer.peer) > self.silent_s:
                self._fall_silent(board, f"nothing heard for {self.silent_s:.0f} s")
        for board, since in list(self._gone.items()):
            if now - since > self.silent_s:
                del self._gone[board]
                if self.scheduler.holder(board) is not None:
                    self._fall_silent(board, "its connection is lost")

    def _fall_silent(self, board: str, why: str) -> None:
        if board not in self._silent and self.scheduler.kind_of(board) is not None:
            self._silent.add(board)
            self._blame(board, why)
            self.scheduler.board_silent(board, why, self._clock())

    def _blame(self, board: str, what: str) -> None:
        """Count what happened in a session as the board's fault."""
        if (session := self.sessions.of(board)) is None:
            return
        self.sessions.note_end(session.match_key, SessionEnd(board, fault=f"{what}, in a session"))
        if self.keeper:
            self.keeper.fault(board, session.owner, f"{what}, in a session")

    def _holds(self, board: str) -> bool:
        """Return whether an agent is not to offer its board, and note that it does not."""
        holds = self.keeper is not None and self.keeper.holds(board)
        self.scheduler.board_held(board, holds, self._clock())
        return holds

    def _withdraw(self, board: str) -> Offer:
        offer = self._offers.pop(board)
        del self._boards[offer.peer, offer.match_key]
        self._connections.take_back(offer.peer, offer.match_key)
        return offer

    def _lose(self, board: str) -> None:
        """Note that a board is no longer connected."""
        if offer := self._offers.pop(board, None):
            del self._boards[offer.peer, offer.match_key]
        self._hushed.discard(board)
        del self._peer_of[board]
        self.sessions.cut(board)
        self.scheduler.board_gone(board, self._clock())
        if self.scheduler.holder(board) is None and board not in self._listed:
            del self._places[board]

    def _slot(self, peer: int, offer: Offer) -> str:
        """Return the name of the board that offers itself: one without an open offer.

        A connection from elsewhere gets a name of its own: or strangers could replace boards.
        """
        agent = self._agents.get(peer)
        if agent is not None and agent.kind == offer.key:
            if agent.board in self._offers:
                self._withdraw(agent.board)
            return agent.board
        address = f"{offer.host}:{offer.port}"
        base = self._names.get((offer.key, address), f"{offer.key}@{address}")
        for name in itertools.chain([base], (f"{base}#{number}" for number in itertools.count(2))):
            if name not in self._offers and self._is_near(name, peer):
                break
        self._make_room(peer, name)
        if (before := self._peer_of.get(name)) is not None:
            self._boards_of[before].discard(name)
        self._peer_of[name] = peer
        self._boards_of.setdefault(peer, set()).add(name)
        return name

    def _make_room(self, peer: int, board: str) -> None:
        """Raise TooManyError if a connection is to have no further board.

        Where there are too many boards in all, the connection with the most of them gives way.
        """
        has = self._boards_of.get(peer, set())
        if board in has:
            return
        if len(has) >= MOST_BOARDS_OF_ONE:
            raise TooManyError(f"more than {MOST_BOARDS_OF_ONE} boards")
        if len(self._peer_of) < MOST_BOARDS or board in self._peer_of:
            return
        largest = max(self._boards_of, key=lambda one: len(self._boards_of[one]))
        if len(self._boards_of[largest]) <= len(has) + 1:
            raise TooManyError(f"a board where there are {MOST_BOARDS} already")
        self.hang_up(largest, f"there are {MOST_BOARDS} boards, most of them its own")

    def _is_near(self, board: str, peer: int) -> bool:
        """Return whether a board is connected from the address of a peer, or not at all."""
        other = self._peer_of.get(board)
        return other is None or self._connections.origin(other) == self._connections.origin(peer)

    def _request_of_kind(self, waiting: WaitingRequest) -> None:
        origin = self._connections.origin(waiting.peer)
        owner = f"address:{LOOPBACK if is_loopback(origin) else origin}"
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

    def _request_of_lease(self, waiting: WaitingRequest, number: int) -> None:
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
            or board in self._silent
            or not (waiting := self._of_lease.get(view.number))
        ):
            return
        request = next((one for one in waiting.values() if not one.implicit), None)
        if request is None:
            return
        self._forget(request)
        self._hand_out(board)
        self.scheduler.board_busy(board)
        grant = Grant(request.waiting.peer, offer)
        if self.disk_full and not self._writer.waits_for_space(view.number):
            self.deliver([grant])  # the lease was kept before
        else:
            self._say([grant], [])

    def _of_effects(self, effects: SchedulerChanges) -> tuple[list[Grant], list[Refusal]]:
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
                    if agent := self.agent(board):
                        now = self._clock()
                        self.records.change(board, agent.kind, now, agent=agent.version)
                    self._serve(board)
            elif waiting := self._of_lease.get(lease.number):
                request = next(iter(waiting.values()))
                self._forget(request)
                grants.append(Grant(request.waiting.peer, self._hand_out(lease.boards[0], lease)))
        return grants, refusals

    def _hand_out(self, board: str, lease: Lease | None = None) -> Offer:
        offer = self._withdraw(board)
        holder = lease or self.scheduler.holder(board)
        if holder:
            agent = self.agent(board)
            version = agent.version if agent else ""
            self.sessions.hand_out(board, offer.key, offer.match_key, holder, version)
        return offer

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


def _refusal(waiting: WaitingRequest, lease: Lease) -> Refusal:
    state = (
        "was released" if lease.state is LeaseState.RELEASED else f"has ended: {lease.state.value}"
    )
    return Refusal(
        waiting.peer,
        waiting.key,
        f"lease {lease.number} {state}{f' ({lease.why})' if lease.why else ''}",
    )


def _nobody(grants: Iterable[Grant], refusals: Iterable[Refusal] = ()) -> None:
    """Answer nobody: there is no tracker yet."""
