"""Who gets which board: offers, requests and their order. Nothing here waits, connects or prints.

A peer is a number, given to a connection by whoever owns it. A board offers itself, under a match
key, only while it is idle; so nothing here assumes that a board is free which has not said so.
Each method that may bring boards and clients together returns the grants, which are final.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm import sanitize
from farm.errors import closest_name

MOST_OFFERS = 4096  # of one connection: a proxy of TVM offers many boards
MOST_REQUESTS = 256  # of one connection that wait
MOST_REMEMBERED = 1000  # keys without a board, a request or a server
# All tunnels end at loopback. There, a server that was heard so lately is alive, and another one
# that says to be it is not. In a session, an agent of farm's tells a lab every 10 s that it lives.
ALIVE_S = 15.0
SILENT_S = 10.0  # an idle board of TVM's or ours is heard every 2 s
_MOST_SHOWN = 20  # keys, where somebody asks for one that is not there
_SERVER = "server:"


class TooManyError(Exception):
    """A peer has more offers or requests than any board or client has."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A board that one client can have for one session."""

    peer: int
    key: str
    host: str
    port: int | str
    match_key: str


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that has no board yet. `number` tells it from all others, and grows."""

    number: int
    peer: int
    key: str
    priority: float


@dataclass(frozen=True, slots=True)
class Grant:
    """A client that gets a board."""

    client: int
    offer: Offer


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client that gets none, and why."""

    client: int
    key: str
    why: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself: "server:KEY", and where clients find it."""

    name: str
    host: str
    port: int | str

    @property
    def key(self) -> str:
        """The key of its boards."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True)
class KeyQueue:
    """The boards of a key that can be had at once, and the requests that wait."""

    free: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The queues by key, and the servers that are connected."""

    queues: Mapping[str, KeyQueue]
    servers: Sequence[ServerInfo]


@dataclass(slots=True)
class _Peer:
    heard_at: float
    origin: str
    server: ServerInfo | None = None
    pings: bool = False
    offers: OrderedDict[str, Offer] = field(default_factory=OrderedDict)  # by match key
    requests: dict[int, WaitingRequest] = field(default_factory=dict)

    def silent(self, now: float) -> bool:
        """Return whether it is frozen.

        Each server of TVM's or ours asks for its open offers regularly.
        """
        return (self.pings or self.server is not None) and now - self.heard_at > SILENT_S


@dataclass(slots=True)
class _Kind:
    """The offers and requests of one key. Requests are in order within their priority."""

    offers: OrderedDict[Offer, None] = field(default_factory=OrderedDict)
    requests: dict[float, OrderedDict[int, WaitingRequest]] = field(default_factory=dict)
    servers: int = 0
    had_board: bool = False

    def first(self) -> WaitingRequest | None:
        """Return the request that is next."""
        if not self.requests:
            return None
        return next(iter(self.requests[max(self.requests)].values()))

    def add(self, request: WaitingRequest) -> None:
        """Let a request wait."""
        self.requests.setdefault(request.priority, OrderedDict())[request.number] = request

    def remove(self, request: WaitingRequest) -> None:
        """Let a request wait no longer."""
        same = self.requests[request.priority]
        del same[request.number]
        if not same:
            del self.requests[request.priority]

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self.requests.values()))

    @property
    def in_use(self) -> bool:
        """Whether anything holds it."""
        return bool(self.offers or self.requests or self.servers)


class TrackerScheduler:
    """The offers and requests of all peers.

    `now` is in seconds of any clock that never goes back.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._registered: dict[tuple[str, ServerInfo], int] = {}
        self._peers: dict[int, _Peer] = {}
        self._kinds: dict[str, _Kind] = {}
        self._remembered: OrderedDict[str, None] = OrderedDict()  # keys that nothing holds

    def connect(self, peer: int, origin: str, now: float) -> None:
        """Take in a peer that connects from an address."""
        self._peers[peer] = _Peer(now, origin)

    def register(self, peer: int, server: ServerInfo) -> int | None:
        """Note what a server says of itself.

        Return the older connection of the same server, which is dead: a board that has lost its
        power and is back. Only one from the same address counts, or strangers could end others; on
        loopback, only one that is silent.
        """
        ours = self._peers[peer]
        self._unregister(ours, peer)
        if not server.name.startswith(_SERVER):
            return None
        older = self._registered.get((ours.origin, server))
        if (
            older is not None
            and is_loopback(ours.origin)
            and ours.heard_at - self._peers[older].heard_at < ALIVE_S
        ):
            older = None  # and stays the one that is registered
        else:
            self._registered[ours.origin, server] = peer
        ours.server = server
        kind = self._hold(server.key)
        kind.servers += 1
        kind.had_board = True
        return older

    def offer(self, peer: int, offer: Offer, now: float) -> list[Grant]:
        """Take in an offer. Raises TooManyError."""
        ours = self._peers[peer]
        if offer.match_key in ours.offers:
            self._withdraw(ours, offer.match_key)
        if len(ours.offers) >= MOST_OFFERS:
            raise TooManyError(f"more than {MOST_OFFERS} offers")
        ours.offers[offer.match_key] = offer
        kind = self._hold(offer.key)
        kind.had_board = True
        kind.offers[offer] = None
        return self._match(offer.key, now)

    def request(
        self, peer: int, key: str, priority: float, now: float
    ) -> tuple[WaitingRequest, list[Grant]]:
        """Take in a request; it has its board if it is among the grants. Raises TooManyError."""
        ours = self._peers[peer]
        if len(ours.requests) >= MOST_REQUESTS:
            raise TooManyError(f"more than {MOST_REQUESTS} requests at once")
        waiting = WaitingRequest(next(self._numbers), peer, key, priority)
        ours.requests[waiting.number] = waiting
        self._hold(key).add(waiting)
        return waiting, self._match(key, now)

    def heard(self, peer: int, now: float, ping: bool) -> list[Grant]:
        """Note that a peer has spoken, and whether it asked for its offers, as boards do."""
        ours = self._peers[peer]
        was_silent = ours.silent(now)
        ours.heard_at = now
        ours.pings |= ping
        if not was_silent:
            return []
        return [
            grant
            for key in dict.fromkeys(offer.key for offer in ours.offers.values())
            for grant in self._match(key, now)
        ]

    def disconnect(self, peer: int) -> None:
        """Withdraw all that a peer has offered and asked for."""
        ours = self._peers.pop(peer)
        self._unregister(ours, peer)
        for match_key in list(ours.offers):
            self._withdraw(ours, match_key)
        for request in ours.requests.values():
            self._kinds[request.key].remove(request)
            self._release(request.key)

    def has_had_board(self, key: str) -> bool:
        """Return whether a board of this key is connected, or has been and is remembered."""
        kind = self._kinds.get(key)
        return kind is not None and kind.had_board

    def refuse_unknown(self, request: WaitingRequest) -> Refusal | None:
        """Give up a request that still waits for a key that no board has had."""
        ours = self._peers.get(request.peer)
        if ours is None or request.number not in ours.requests or self.has_had_board(request.key):
            return None
        del ours.requests[request.number]
        self._kinds[request.key].remove(request)
        self._release(request.key)
        return Refusal(request.peer, request.key, self.why_unknown(request.key))

    def why_unknown(self, key: str) -> str:
        """Return what to tell somebody who asks for a key that no board has."""
        known = sorted(name for name, kind in self._kinds.items() if kind.had_board)
        shown = ", ".join(sanitize.sanitized_line(name[:100]) for name in known[:_MOST_SHOWN])
        more = f" and {len(known) - _MOST_SHOWN} more" if len(known) > _MOST_SHOWN else ""
        close = closest_name(key, known)
        meant = f" (did you mean {sanitize.sanitized_line(close[:100])}?)" if close else ""
        there = f"there are: {shown}{more}{meant}" if known else "no board has registered"
        return f"no board has the key {sanitize.sanitized_line(key[:100])!r}; {there}"

    def open_match_keys(self, peer: int) -> list[str]:
        """Return the match keys that a peer has offered and nobody has been given."""
        return list(self._peers[peer].offers)

    def take_back(self, peer: int, match_key: str) -> None:
        """Withdraw an open offer of a peer."""
        self._withdraw(self._peers[peer], match_key)

    def is_silent(self, peer: int, now: float) -> bool:
        """Return whether a server is frozen."""
        return self._peers[peer].silent(now)

    def heard_at(self, peer: int) -> float:
        """Return when a peer has spoken last."""
        return self._peers[peer].heard_at

    def origin(self, peer: int) -> str:
        """Return the address that a peer connects from."""
        return self._peers[peer].origin

    def summary(self, now: float) -> Summary:
        """Return the queues and the servers; a frozen board is not free."""
        silent = {number for number, peer in self._peers.items() if peer.silent(now)}
        free = {
            key: sum(offer.peer not in silent for offer in kind.offers)
            for key, kind in self._kinds.items()
        }
        queues = {key: KeyQueue(free[key], kind.waiting) for key, kind in self._kinds.items()}
        return Summary(queues, [peer.server for peer in self._peers.values() if peer.server])

    def _match(self, key: str, now: float) -> list[Grant]:
        kind = self._kinds[key]
        grants = []
        for offer in itertools.takewhile(
            lambda _: kind.requests, list(kind.offers) if kind.requests else ()
        ):
            if self._peers[offer.peer].silent(now):
                continue
            request = kind.first()
            assert request
            kind.remove(request)
            del self._peers[request.peer].requests[request.number]
            self._withdraw(self._peers[offer.peer], offer.match_key)
            grants.append(Grant(request.peer, offer))
        self._release(key)
        return grants

    def _withdraw(self, peer: _Peer, match_key: str) -> None:
        offer = peer.offers.pop(match_key)
        del self._kinds[offer.key].offers[offer]
        self._release(offer.key)

    def _unregister(self, peer: _Peer, number: int) -> None:
        if not peer.server:
            return
        if self._registered.get((peer.origin, peer.server)) == number:
            del self._registered[peer.origin, peer.server]
        self._kinds[peer.server.key].servers -= 1
        self._release(peer.server.key)
        peer.server = None

    def _hold(self, key: str) -> _Kind:
        self._remembered.pop(key, None)
        return self._kinds.setdefault(key, _Kind())

    def _release(self, key: str) -> None:
        """Forget a key that nothing holds: at once if no board had it, else the oldest of many."""
        kind = self._kinds.get(key)
        if kind is None or kind.in_use:
            return
        if not kind.had_board:
            del self._kinds[key]
            return
        self._remembered[key] = None
        self._remembered.move_to_end(key)
        if len(self._remembered) > MOST_REMEMBERED:
            oldest, _ = self._remembered.popitem(last=False)
            del self._kinds[oldest]


def is_loopback(origin: str) -> bool:
    """Return whether a peer connects from this machine, or by a tunnel that ends here."""
    try:
        return ipaddress.ip_address(origin).is_loopback
    except ValueError:
        return False
