"""What a step of the scheduler changes, and what an earlier server has left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm.lab.board_records import BoardRecord
from farm.lab.entities import Event, Lease, LeaseBoardPeriod, Reservation

MOST_ENDED = 1000  # leases that have ended, of which the lab still says how


@dataclass(slots=True)
class SchedulerChanges:
    """What has changed: to keep (all but implicit leases), and to tell."""

    leases: dict[int, Lease] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    used: dict[str, tuple[float, float]] = field(
        default_factory=dict
    )  # by owner: board seconds, when
    granted: list[Lease] = field(default_factory=list)  # or given another board
    taken: list[LeaseBoardPeriod] = field(
        default_factory=list
    )  # of leases that go on without the board
    ended: list[Lease] = field(default_factory=list)

    @property
    def durable(self) -> bool:
        """Return whether this is kept before anybody is told: not so that a board came."""
        return bool(self.leases or self.reservations)


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The state that an earlier server kept.

    `next_event`, `next_lease` and `next_reservation` have never been used.
    """

    leases: Sequence[Lease] = ()
    ended: Sequence[Lease] = ()
    kinds: Sequence[str] = ()
    used: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    next_lease: int = 1
    next_event: int = 1
    boards: Sequence[BoardRecord] = ()
    reservations: Sequence[Reservation] = ()  # that are not over, or had boards lately
    next_reservation: int = 1
