"""Who had which board in the last hours and days, read from the journal and kept for a while."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from farm.lab.entities import HOUR_S
from farm.lab.storage.lab_database import BoardUsePeriod, LabDatabase

DAY_S = 24 * HOUR_S
_HOURS = 24
_OLD_S = 600.0  # after which it is read again
MOST = 20_000  # leases, and sessions without one
_LEAST_SHARE = 0.05  # of an hour that is drawn at all


@dataclass(frozen=True, slots=True)
class OwnerUse:
    """How long an owner had boards of a kind, in seconds of one board."""

    owner: str
    kind: str
    board_s: float
    leases: int


class LabHistory:
    """The past of a lab as its journal has it."""

    def __init__(self, journal: LabDatabase) -> None:
        self._journal = journal
        self._read_at = float("-inf")
        self._sparks: dict[str, str] = {}

    async def refresh(self) -> None:
        """Read the last day again if what is known is old."""
        if time.monotonic() - self._read_at < _OLD_S:
            return
        self._read_at = time.monotonic()
        now = time.time()
        found = await self.stretches(now - DAY_S)
        self._sparks = await asyncio.get_running_loop().run_in_executor(
            None, hourly_use_digits, found, now
        )

    def spark(self, board: str) -> str:
        """Return the shares of the last 24 hours in which a board was used, as digits.

        "" if it was not.
        """
        return self._sparks.get(board, "")

    async def stretches(
        self, since: float, board: str | None = None, most: int = MOST
    ) -> list[BoardUsePeriod]:
        """Return who had which board after a time."""
        return await asyncio.get_running_loop().run_in_executor(
            None, self._journal.stretches, since, most, board
        )


def hourly_use_digits(found: Iterable[BoardUsePeriod], now: float) -> dict[str, str]:
    """Return for each board 24 digits, from 0 to 9: how much of each hour it was used."""
    since = now - _HOURS * HOUR_S
    hours: dict[str, list[float]] = defaultdict(lambda: [0.0] * _HOURS)
    for one in found:
        start, end = max(0.0, one.since - since), min(now, one.until or now) - since
        for hour in range(int(start // HOUR_S), min(_HOURS, int(end // HOUR_S) + 1)):
            hours[one.board][hour] += max(
                0.0, min(end, (hour + 1) * HOUR_S) - max(start, hour * HOUR_S)
            )
    return {board: "".join(_digit(used / HOUR_S) for used in row) for board, row in hours.items()}


def use_by_owner(found: Iterable[BoardUsePeriod], since: float, now: float) -> list[OwnerUse]:
    """Return the use by owner and kind since a time, the most first."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    leases: dict[tuple[str, str], set[int | float]] = defaultdict(set)
    for one in found:
        seconds[one.owner, one.kind] += max(0.0, min(now, one.until or now) - max(since, one.since))
        leases[one.owner, one.kind].add(one.since if one.lease is None else one.lease)
    made = [
        OwnerUse(owner, kind, board_s, len(leases[owner, kind]))
        for (owner, kind), board_s in seconds.items()
    ]
    return sorted(made, key=lambda one: (-one.board_s, one.owner, one.kind))


def _digit(share: float) -> str:
    return "0" if share < _LEAST_SHARE else str(max(1, min(9, round(9 * share))))
