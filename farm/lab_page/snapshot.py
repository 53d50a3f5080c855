"""Snapshot of a lab for its page. Nothing else of the page reads the lab's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.lab.care.health_state_machine import BAD, HANDS
from farm.lab.entities import BoardView, Caller, Lease, LeaseState, QueuePosition, Reservation
from farm.lab.lender import LabLender

_MOST_SHARE = 1000.0  # of the usual latency, in hundredths
_MOST_SHOWN = 200  # of the queue: what a person reads, and the scheduler works out


@dataclass(frozen=True, slots=True)
class BoardHealthCell:
    """What a row of the page says of a board beside its use.

    `latencies` are those of its last checks, as a share of its usual one, in hundredths.
    """

    state: str = ""
    verdict: str = ""
    checked_at: float | None = None
    latencies: tuple[int, ...] = ()
    reduced_stability: bool = False
    temperature_c: int | None = None


@dataclass(frozen=True, slots=True)
class LabSnapshot:
    """The boards by kind and name, the leases in force, and the queue by kind and place.

    And the reservations by time, each with the number of boards that it lacks as things stand.
    """

    at: float
    boards: tuple[BoardView, ...]
    active: tuple[Lease, ...]
    queue: tuple[tuple[Lease, QueuePosition], ...]
    waiting: int
    healths: Mapping[str, BoardHealthCell] = field(default_factory=dict)
    reservations: tuple[tuple[Reservation, int], ...] = ()

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
            elif board.use == "silent":
                found.append((board.name, "it is silent"))
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
    prospects = lender.scheduler.prospects(queued[:_MOST_SHOWN], now)
    queue = [(lease, prospects[lease.number]) for lease in queued[:_MOST_SHOWN]]
    queue.sort(key=lambda one: (one[0].request.kind, one[1].place))
    active = tuple(lease for lease in leases if lease.state is LeaseState.ACTIVE)
    boards = tuple(lender.scheduler.boards())
    healths = {board.name: board_health_cell(lender, board, now) for board in boards}
    missing = lender.scheduler.missing(now)
    reserved = lender.scheduler.reservations()[:_MOST_SHOWN]
    reservations = tuple((one, missing.get(one.number, 0)) for one in reserved)
    return LabSnapshot(now, boards, active, tuple(queue), len(queued), healths, reservations)


def board_health_cell(lender: LabLender, board: BoardView, now: float) -> BoardHealthCell:
    """Return what a row of the page says of the health of a board."""
    record, agent = lender.records.of(board.name), lender.agent(board.name)
    warm = agent.state.temperature_c if agent else None
    temperature = None if warm is None else round(warm)
    health = record.health if record else None
    if health is None:
        return BoardHealthCell(board.health, temperature_c=temperature)
    last = health.checks[-1] if health.checks else None
    usual_s = health.usual_s or (last.median_s if last else None)
    return BoardHealthCell(
        board.health or health.state,
        last.verdict if last else "",
        last.at if last else None,
        tuple(
            round(min(_MOST_SHARE, 100 * one.median_s / usual_s))
            for one in health.checks
            if one.median_s and usual_s
        ),
        health.reduced_stability(now),
        temperature,
    )
