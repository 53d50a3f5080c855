"""Entities of a lab: leases, reservations, boards, rules. Times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from farm.tracker.agent_messages import BoardState

CHECKS_OWNER = "farm:check"  # of the leases for checks; no account has a colon in its name
RANKS = ("interactive", "ci", "batch")  # the classes of leases, the most urgent first
HOUR_S = 3600.0


class LeaseState(Enum):
    """Where a lease is in its life: it waits, is in force, or has ended in one of several ways."""

    QUEUED = "queued"
    ACTIVE = "active"
    RELEASED = "released"  # by its owner, or by the end of the one session that it was for
    EXPIRED = "expired"  # its hard end was reached
    ABANDONED = "abandoned"  # no heartbeat
    REVOKED = "revoked"  # by an administrator
    CANCELLED = "cancelled"  # by its owner, in the queue
    TIMED_OUT = "timed out"  # in the queue
    LAPSED = "lapsed"  # granted while its owner was away, and not picked up
    LOST = "lost"  # its board hung up or fell silent; of implicit leases

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to the lease any more."""
        return self not in (LeaseState.QUEUED, LeaseState.ACTIVE)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. An administrator may end the leases of others, with a reason.

    The door runs as the account of the server, `is_server`, and speaks for others.
    """

    name: str
    admin: bool = False
    is_server: bool = False


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a lease is to be.

    `board` is the one wanted, or empty for any of the kind that has all of `tags`. With
    `heartbeat_s`, a lease without a heartbeat for so long is abandoned. `wait_s` limits the time in
    the queue. `nonce` makes asking again harmless. An implicit request is made for a client of
    TVM's, which knows of no leases. A `check` is the lab's own, to see whether a board is fit.
    With `any_health` a board in probation will do, which else is for batch work. The lease of a
    `reservation` ends at `until`, whenever it has its boards.
    """

    owner: str
    kind: str
    for_s: float
    rank: str = "interactive"
    count: int = 1
    board: str = ""
    wait_s: float | None = None
    heartbeat_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""
    priority: float = 0.0
    implicit: bool = False
    tags: tuple[str, ...] = ()
    check: bool = False
    any_health: bool = False
    reservation: int | None = None
    until: float | None = None

    def fits(self, board: str, tags: Iterable[str]) -> bool:
        """Return whether a board of the kind is one that is wanted."""
        return self.board in ("", board) and set(self.tags) <= set(tags)


@dataclass(frozen=True, slots=True)
class Lease:
    """A request that was taken in.

    `number` only grows; `key` is what its owner asks the tracker for. A board that is lost (silent,
    or bad) is in `lost` with the reason; as soon as another is free the lease has that instead.
    `given_at` has the boards that it did not have from the beginning.
    """

    number: int
    request: LeaseRequest
    key: str
    asked_at: float
    state: LeaseState = LeaseState.QUEUED
    granted_at: float | None = None
    ends_at: float | None = None
    ended_at: float | None = None
    heard_at: float = 0.0
    boards: tuple[str, ...] = ()
    why: str = ""
    given_at: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


class ReservationState(Enum):
    """The states of a reservation: it waits for its time, has a lease, or is over."""

    PLANNED = "planned"  # its time has not come
    BEGAN = "began"  # its lease was made, and has not ended
    ENDED = "ended"  # as its lease has
    CANCELLED = "cancelled"  # before its time
    LAPSED = "lapsed"  # its lease was not picked up, or there were no boards for it

    @property
    def over(self) -> bool:
        """Return whether nothing can happen to the reservation any more."""
        return self not in (ReservationState.PLANNED, ReservationState.BEGAN)


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A request for boards from a time on: of a kind, any that have all of `tags`.

    `nonce` makes asking again harmless.
    """

    owner: str
    kind: str
    starts_at: float
    for_s: float
    rank: str = "interactive"
    count: int = 1
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""

    @property
    def until(self) -> float:
        """When it ends."""
        return self.starts_at + self.for_s


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation that was taken in.

    `number` only grows. At its time it gets a `lease`, whose key is `key`. It is `picked_up` once
    its owner has asked for the lease's boards, or used one.
    """

    number: int
    request: ReservationRequest
    key: str
    made_at: float
    state: ReservationState = ReservationState.PLANNED
    lease: int | None = None
    picked_up: bool = False
    ended_at: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class LeaseBoardPeriod:
    """A board that a lease had for some time."""

    lease: int
    board: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A lease's place in the queue, from 1; why it waits.

    And when it has its boards at the latest.
    """

    place: int
    reason: str
    surely_by: float | None


@dataclass(frozen=True, slots=True)
class BoardView:
    """A board as it is shown.

    `use` is free, leased, in session, checking, out, silent, or away. `barred` is why it is out.
    """

    name: str
    kind: str
    tags: tuple[str, ...]
    use: str
    lease: int | None = None
    owner: str = ""
    until: float | None = None
    health: str = ""
    barred: str = ""


@dataclass(slots=True)
class AgentInfo:
    """One of farm's agents: its board, its version, the boot of its system, and its last state."""

    board: str
    kind: str
    version: str
    boot: str
    state: BoardState = field(default_factory=BoardState)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened, numbered without gaps in the order in which it did."""

    number: int
    at: float
    what: str
    who: str = ""
    lease: int | None = None
    board: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LeaseClass:
    """The longest lease of a class, and how many boards an owner may have at once.

    0 is no limit.
    """

    longest_s: float = 2 * HOUR_S
    boards: int = 0


@dataclass(frozen=True, slots=True)
class CooldownRule:
    """How long a board rests after a session: until it is below a temperature, if it tells one."""

    at_most_s: float
    below_c: float | None = None


@dataclass(frozen=True, slots=True)
class InventoryBoard:
    """A board of the inventory, found by its kind and the address that its server names.

    `profile` is what its checks are built for, `power` the command that cycles its power.
    """

    name: str
    kind: str
    address: str
    tags: tuple[str, ...] = ()
    profile: str = ""
    power: tuple[str, ...] = ()
    cooldown: CooldownRule | None = None


@dataclass(frozen=True, slots=True)
class NoticeChannels:
    """How people are told: a url for a POST of JSON with `text`, a command, both or neither."""

    webhook: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReservationRules:
    """How boards are reserved: how far ahead, and how many times by one owner.

    In any `within_s`, or longer if leases are, an owner reserves no more of the time of a kind's
    boards than `share`; 1 is no limit.

    The lease of a reservation lapses if its owner does not ask for it, or use it, within
    `pickup_s`.
    """

    ahead_s: float = 14 * 24 * HOUR_S
    of_owner: int = 8
    pickup_s: float = 600.0
    share: float = 0.5
    within_s: float = 12 * HOUR_S


@dataclass(frozen=True, slots=True)
class SharingRules:
    """How boards are shared.

    A lease counts as one class more urgent after each `aging_s` in the queue; one that has aged
    past the most urgent class goes before all others. An owner's use of boards halves in
    `half_life_s`, and counts by the owner's share. A lease of several boards keeps free ones for
    itself for `gather_s`, then lets others by for as long. A lease without heartbeats that has its
    boards after a wait lapses if its owner does not ask for it, or use it, within `pickup_s`.
    """

    classes: Mapping[str, LeaseClass] = field(
        default_factory=lambda: {rank: LeaseClass() for rank in RANKS}
    )
    shares: Mapping[str, float] = field(default_factory=dict)
    aging_s: float = HOUR_S / 2
    half_life_s: float = 24 * HOUR_S
    gather_s: float = 600.0
    pickup_s: float = 300.0
    queue: int = 256  # of one owner
    implicit_rank: str = "batch"
    reservations: ReservationRules = field(default_factory=ReservationRules)

    def share(self, owner: str) -> float:
        """Return the share of an owner; 1 if none is set."""
        return self.shares.get(owner, 1.0)
