"""Snapshot of a lab for its page. Nothing else of the page reads the lab's state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from farm.lab.entities import BoardView, Caller, Lease, LeaseState, QueuePosition
from farm.lab.health import BAD, HANDS
from farm.lab.lender import LabLender

_MOST_SHOWN = 200  # of the queue: what a person reads, and the scheduler works out


@dataclass(frozen=True, slots=True)
class LabSnapshot:
    """The boards by kind and name, the leases in force, and the queue by kind and place."""

    at: float
    boards: tuple[BoardView, ...]
    active: tuple[Lease, ...]
    queue: tuple[tuple[Lease, QueuePosition], ...]
    waiting: int

    @property
    def uses(self) -> Counter[str]:
        """How many boards there are of each use."""
        return Counter(board.use for board in self.boards)

    def of(self, caller: Caller | None) -> list[tuple[Lease, QueuePosition | None]]:
        """Return the leases of a person, those that wait, too."""
        if caller is None:
            return []
        mine: list[tuple[Lease, QueuePosition | None]] = [
            (lease, None) for lease in self.active if lease.request.owner == caller.name
        ]
        return mine + [
            (lease, prospect)
            for lease, prospect in self.queue
            if lease.request.owner == caller.name
        ]

    def wants_hands(self) -> list[tuple[str, str]]:
        """Return what a person has to look after: a board or a kind, and what is the matter."""
        found = []
        for board in self.boards:
            if board.use == "away":
                holder = (
                    f"; lease {board.lease} of {board.owner} has it"
                    if board.lease is not None
                    else ""
                )
                found.append((board.name, f"it is away{holder}"))
            elif board.health in (BAD, HANDS):
                found.append((board.name, board.barred))
        connected = Counter(board.kind for board in self.boards if board.use != "away")
        wanted = {lease.request.kind: lease for lease, _ in self.queue}
        found += [
            (kind, f"lease {one.number} waits, and no board of this kind is connected")
            for kind, one in wanted.items()
            if not connected[kind]
        ]
        return found


def take_snapshot(lender: LabLender, now: float) -> LabSnapshot:
    """Read a lab."""
    leases = sorted(lender.scheduler.leases(), key=lambda one: one.number)
    queued = [lease for lease in leases if lease.state is LeaseState.QUEUED]
    queue = [(lease, lender.scheduler.prospect(lease, now)) for lease in queued[:_MOST_SHOWN]]
    queue.sort(key=lambda one: (one[0].request.kind, one[1].place))
    active = tuple(lease for lease in leases if lease.state is LeaseState.ACTIVE)
    return LabSnapshot(now, tuple(lender.scheduler.boards()), active, tuple(queue), len(queued))
