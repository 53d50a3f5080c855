"""Whose turn it is.

Classes, aging, decayed use by owner, and when a waiting lease has its boards.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.lab.entities import RANKS, Lease, SharingRules

Turn = tuple[float, float, float, float, int]


_MOST_AHEAD = 50  # leases in the queue, beyond which a start between reservations is not told


@dataclass(frozen=True, slots=True)
class BusyPeriod:
    """A time in which so many boards are reserved at most."""

    starts_at: float
    until: float
    count: int


@dataclass(slots=True)
class _Used:
    board_s: float = 0.0
    at: float = 0.0


class DecayingUsageByOwner:
    """The board seconds of each owner: those of the past count half after each half-life."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._used: dict[str, _Used] = {}

    def load(self, owner: str, board_s: float, at: float) -> None:
        """Set the use of an owner, as it was at a time."""
        self._used[owner] = _Used(board_s, at)

    def add(self, owner: str, board_s: float, now: float) -> float:
        """Count use that ends now; return the sum."""
        total = self.of(owner, now) + board_s
        self._used[owner] = _Used(total, now)
        return total

    def of(self, owner: str, now: float) -> float:
        """Return the use of an owner."""
        used = self._used.get(owner)
        if used is None:
            return 0.0
        return float(used.board_s * 0.5 ** (max(0.0, now - used.at) / self._half_life_s))


def queue_sort_key(lease: Lease, use: float, rules: SharingRules, now: float) -> Turn:
    """Return what waiting leases are sorted by; the least is next."""
    request = lease.request
    if request.reservation is not None:  # its time has come
        return (-2.0, lease.asked_at, 0.0, 0.0, lease.number)
    lifted = int(max(0.0, now - lease.asked_at) / rules.aging_s)
    level = RANKS.index(request.rank) - lifted
    if lifted >= len(RANKS):  # whatever the class: so the longest wait has a bound
        return (-1.0, lease.asked_at, 0.0, 0.0, lease.number)
    return (
        max(0.0, float(level)),
        use / rules.share(request.owner),
        -request.priority,
        lease.asked_at,
        lease.number,
    )


def guaranteed_starts(
    queue: Sequence[Lease], free_at: Iterable[float], reserved: Sequence[BusyPeriod] = ()
) -> list[float | None]:
    """Return when each lease of a queue has its boards if all before it keep theirs to the end.

    `free_at` is when each board of the kind is free. None if there are too few boards. A lease
    begins only where its end comes before what is `reserved`.
    """
    boards = list(free_at)
    if reserved:
        return _starts_between(queue, boards, reserved)
    heapq.heapify(boards)
    starts: list[float | None] = []
    for lease in queue:
        count = lease.request.count
        if count > len(boards):
            starts.append(None)
            continue
        taken = [heapq.heappop(boards) for _ in range(count)]
        starts.append(taken[-1])
        for _ in taken:
            heapq.heappush(boards, taken[-1] + lease.request.for_s)
    return starts


def _starts_between(
    queue: Sequence[Lease], free_at: Sequence[float], reserved: Sequence[BusyPeriod]
) -> list[float | None]:
    """Return the same for leases between reservations: by how many boards are busy when."""
    told = queue[: _MOST_AHEAD + 1] if free_at else ()
    first = min(free_at, default=0.0)
    busy = Counter({first: 0})  # by time: how many more boards are busy from then on
    for at in free_at:
        busy[first] += 1
        busy[at] -= 1
    for period in reserved:
        busy[max(first, period.starts_at)] += period.count
        busy[max(first, period.until)] -= period.count
    starts: list[float | None] = []
    for lease in told:
        request = lease.request
        start = _first_gap(busy, len(free_at) - request.count, request.for_s)
        if start is not None:
            busy[start] += request.count
            busy[start + request.for_s] -= request.count
        starts.append(start if request.count <= len(free_at) else None)
    return starts + [None] * (len(queue) - len(starts))


def _first_gap(busy: Mapping[float, int], most: int, for_s: float) -> float | None:
    """Return the first time from which at most so many boards are busy, for so long."""
    since: float | None = None
    count = 0
    for at in sorted(busy):
        if since is not None and at - since >= for_s:
            return since
        count += busy[at]
        if count > most:
            since = None
        elif since is None:
            since = at
    return since
