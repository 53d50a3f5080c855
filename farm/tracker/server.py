"""The tracker's side of all connections.

Their limits, what they ask, and what they are answered.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from farm import ownership
from farm.tracker import protocol
from farm.tracker.admission import ConnectionAdmission, ConnectionLimits
from farm.tracker.agent_messages import (
    HEARTBEAT_S,
    AgentHello,
    AgentRequests,
    Heartbeat,
    SessionEnded,
)
from farm.tracker.limited_log import LimitedLog
from farm.tracker.peer import PeerConnection
from farm.tracker.scheduler import (
    Grant,
    Offer,
    Refusal,
    ServerInfo,
    Summary,
    TrackerScheduler,
    WaitingRequest,
)

UNKNOWN_KEY_S = 10.0  # TVM's client asks five times, so a board that boots has 50 s to register
_UNFINISHED_S = 10.0  # for a greeting or a message that has begun
_MOST_HELD_BYTES = 32 << 20  # of incomplete messages, of all connections
_LITTLE_HELD_BYTES = 1024  # held at any rate: messages of boards and clients are smaller
_TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class TrackerServerSettings:
    """What an operator may choose."""

    unknown_key_s: float = UNKNOWN_KEY_S
    heartbeat_s: float = HEARTBEAT_S  # of farm's agents, which a lab asks for
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class BoardLender(Protocol):
    """Who decides which peer gets which board: a Scheduler, or a lab."""

    def connect(self, peer: int, origin: str, now: float) -> None:
        """Take in a peer that connects from an address."""

    def disconnect(self, peer: int) -> None:
        """Withdraw all that a peer has offered and asked for."""

    def register(self, peer: int, server: ServerInfo) -> int | None:
        """Note what a server says of itself; return the older connection of the same server."""

    def offer(self, peer: int, offer: Offer, now: float) -> list[Grant]:
        """Take in an offer."""

    def request(
        self, peer: int, key: str, priority: float, now: float
    ) -> tuple[WaitingRequest, list[Grant]]:
        """Take in a request."""

    def heard(self, peer: int, now: float, ping: bool) -> list[Grant]:
        """Note that a peer has spoken, and whether it asked for its offers, as boards do."""

    def has_had_board(self, key: str) -> bool:
        """Return whether a board of this key is connected, or has been."""

    def refuse_unknown(self, request: WaitingRequest) -> Refusal | None:
        """Give up a request that still waits for a key that no board has had."""

    def open_match_keys(self, peer: int) -> list[str]:
        """Return the match keys that a peer has offered and nobody has been given."""

    def summary(self, now: float) -> Summary:
        """Return the queues and the servers."""


class AgentManager(Protocol):
    """Who looks after farm's agents: a lab. A tracker without one is TVM's to them."""

    def hello(self, peer: int, server: ServerInfo, hello: AgentHello, now: float) -> None:
        """Take in an agent that has registered."""

    def knows(self, peer: int) -> bool:
        """Return whether a peer is an agent."""

    def heartbeat(self, peer: int, heartbeat: Heartbeat) -> AgentRequests:
        """Take in the state of an agent's board; return what it is to do."""

    def session_ended(self, peer: int, ended: SessionEnded) -> AgentRequests:
        """Take in how a session has ended; return what the agent is to do."""


class TrackerServer:
    """A tracker in an event loop. `say` takes a line for the operator."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: TrackerServerSettings,
        say: Callable[[str], None],
        lender: BoardLender | None = None,
        agents: AgentManager | None = None,
    ) -> None:
        self._agents = agents
        self._loop = loop
        self._settings = settings
        self._scheduler = lender or TrackerScheduler()
        self._admission = ConnectionAdmission(settings.limits)
        self._notices = LimitedLog(say)
        self._numbers = itertools.count(1)
        self._peers: dict[int, PeerConnection] = {}
        self._unfinished: OrderedDict[int, float] = OrderedDict()  # since when; the oldest first
        self._held: dict[int, int] = {}
        self._held_bytes = 0
        self._tick()

    def connection(self) -> PeerConnection:
        """Return the protocol of a new connection."""
        return PeerConnection(self, next(self._numbers), self._loop)

    def summary(self) -> Summary:
        """Return the queues and the servers."""
        return self._scheduler.summary(self._loop.time())

    def close(self) -> None:
        """End all connections."""
        for peer in list(self._peers.values()):
            peer.abort()

    def deliver(self, grants: Iterable[Grant], refusals: Iterable[Refusal] = ()) -> None:
        """Answer requests; those of peers that have gone are left out."""
        for grant in grants:
            if peer := self._peers.get(grant.client):
                peer.send(
                    protocol.granted_answer(
                        grant.offer.host, grant.offer.port, grant.offer.match_key
                    )
                )
        for refusal in refusals:
            if peer := self._peers.get(refusal.client):
                peer.send(protocol.refused_answer(refusal.why))

    def connection_of(self, peer: int) -> ownership.SocketLike | None:
        """Return the socket of a connection; None if there is none of this number."""
        found = self._peers.get(peer)
        return found.socket if found else None

    def hang_up(self, peer: int, why: str) -> None:
        """End a connection that another has replaced."""
        if found := self._peers.get(peer):
            found.fail(why)

    def admit(self, peer: PeerConnection) -> bool:
        """Return whether a new connection may stay; another may have to give way to it."""
        decision = self._admission.enter(peer.number, peer.address)
        if decision.gives_way is not None:
            self._peers[decision.gives_way].fail("it has said nothing, and others need its place")
        if not decision.admitted:
            self._notices.note(
                f"{peer.address} is turned away: there are too many connections", self._loop.time()
            )
            return False
        now = self._loop.time()
        self._peers[peer.number] = peer
        self._unfinished[peer.number] = now
        self._scheduler.connect(peer.number, peer.address, now)
        return True

    def lose(self, peer: PeerConnection) -> None:
        """Withdraw what a connection has offered and asked for."""
        del self._peers[peer.number]
        self._unfinished.pop(peer.number, None)
        self._held_bytes -= self._held.pop(peer.number, 0)
        self._admission.leave(peer.number)
        self._scheduler.disconnect(peer.number)

    def hold(self, peer: PeerConnection, held: int) -> None:
        """Note how much of an incomplete message a connection holds.

        End it where all hold too much.
        """
        if held:
            self._unfinished.setdefault(peer.number, self._loop.time())
        elif peer.greeted:
            self._unfinished.pop(peer.number, None)
        before = self._held.pop(peer.number, 0)
        self._held_bytes += held - before
        if held:
            self._held[peer.number] = held
        if held > _LITTLE_HELD_BYTES and self._held_bytes > _MOST_HELD_BYTES:
            peer.fail("its message is incomplete, as are too many")

    def complain(self, peer: PeerConnection, why: str) -> None:
        """Tell the operator why a connection is closed."""
        self._notices.note(f"the connection of {peer.address} is closed: {why}", self._loop.time())

    def handle(self, peer: PeerConnection, message: protocol.Message) -> None:
        """Carry out a message."""
        now = self._loop.time()
        self._admission.trust(peer.number)
        self._unfinished.pop(peer.number, None)
        self.deliver(
            self._scheduler.heard(
                peer.number, now, isinstance(message, protocol.AskPendingMatchKeys)
            )
        )
        match message:
            case protocol.AskPendingMatchKeys():
                peer.send(
                    protocol.pending_match_keys_answer(self._scheduler.open_match_keys(peer.number))
                )
            case protocol.Put():
                self._offer(peer, message, now)
            case protocol.Request():
                self._request(peer, message, now)
            case protocol.UpdateInfo():
                self._register(peer, message)
            case protocol.AskSummary():
                peer.send(protocol.summary_answer(self._scheduler.summary(now)))
            case protocol.Ping():
                lab = self._agents is not None and self._agents.knows(peer.number)
                heartbeat_s = self._settings.heartbeat_s
                peer.send(
                    protocol.welcome_answer(heartbeat_s)
                    if lab
                    else protocol.frame_message(protocol.SUCCESS)
                )
            case protocol.Stop():
                peer.send(protocol.frame_message(protocol.FAIL))
            case Heartbeat() | SessionEnded():
                self._hear_agent(peer, message)

    def _hear_agent(self, peer: PeerConnection, message: Heartbeat | SessionEnded) -> None:
        if self._agents is None or not self._agents.knows(peer.number):
            peer.fail("it sent what only farm's agents send, and only to a lab")
        elif isinstance(message, Heartbeat):
            peer.send(protocol.agent_requests_answer(self._agents.heartbeat(peer.number, message)))
        else:
            peer.send(
                protocol.agent_requests_answer(self._agents.session_ended(peer.number, message))
            )

    def _offer(self, peer: PeerConnection, message: protocol.Put, now: float) -> None:
        host = peer.address if message.place.host is None else message.place.host
        offer = Offer(peer.number, message.key, host, message.place.port, message.match_key)
        self.deliver(self._scheduler.offer(peer.number, offer, now))
        peer.send(protocol.frame_message(protocol.SUCCESS))

    def _request(self, peer: PeerConnection, message: protocol.Request, now: float) -> None:
        waiting, grants = self._scheduler.request(peer.number, message.key, message.priority, now)
        self.deliver(grants)
        if not self._scheduler.has_had_board(message.key):
            self._notices.note(
                f"{peer.address} asks for the key {message.key[:100]!r}, which no board has", now
            )
            self._loop.call_later(self._settings.unknown_key_s, self._refuse_unknown, waiting)

    def _register(self, peer: PeerConnection, message: protocol.UpdateInfo) -> None:
        host = peer.address if message.place.host is None else message.place.host
        server = ServerInfo(message.name, host, message.place.port)
        older = self._scheduler.register(peer.number, server)
        if older is not None:
            self._peers[older].fail(
                f"{message.name} at {host}:{message.place.port} has connected anew"
            )
        if self._agents is not None and message.agent:
            self._agents.hello(peer.number, server, message.agent, self._loop.time())
        peer.send(protocol.frame_message(protocol.SUCCESS))

    def _refuse_unknown(self, waiting: WaitingRequest) -> None:
        if refusal := self._scheduler.refuse_unknown(waiting):
            self.deliver([], [refusal])

    def _tick(self) -> None:
        now = self._loop.time()
        self._notices.tick(now)
        while self._unfinished:
            number, since = next(iter(self._unfinished.items()))
            if now - since < _UNFINISHED_S:
                break
            self._peers[number].fail(
                f"for {_UNFINISHED_S:.0f} s it has not completed a message, or not read an answer"
            )
        self._loop.call_later(_TICK_S, self._tick)
