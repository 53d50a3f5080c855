"""Keep the records of the boards: agent, open session, and health.

A server that starts again knows by it which lease a session belongs to.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from farm.lab.care.health_state_machine import Health, health_from_json

MOST_RECORDS = 10_000
FORGOTTEN_S = 90 * 86400.0  # after which a board that nobody named is not known any more


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that a board has, or was to have: `lease` is None for one without a lease.

    An implicit lease ends with its session, and is not kept.
    """

    match_key: str
    owner: str
    since: float
    lease: int | None = None
    implicit: bool = False


@dataclass(frozen=True, slots=True)
class BoardRecord:
    """A board as it is kept. `agent` is the version of farm's agent; "" for a server of TVM's."""

    name: str
    kind: str
    agent: str = ""
    seen_at: float = 0.0
    session: OpenSession | None = None
    health: Health | None = None


class BoardRecords:
    """The records of all boards, and which have changed since they were last kept.

    Where there are too many, those of boards that are `listed`, or that an administrator has taken
    out of service, stay: anybody who reaches the tracker may have offered the others.
    """

    def __init__(self, past: Iterable[BoardRecord], listed: Collection[str] = ()) -> None:
        self._listed = frozenset(listed)
        self._records = OrderedDict((one.name, one) for one in past)
        self._changed: dict[str, BoardRecord] = {}

    def of(self, board: str) -> BoardRecord | None:
        """Return the record of a board."""
        return self._records.get(board)

    def all(self) -> list[BoardRecord]:
        """Return the records of all boards."""
        return list(self._records.values())

    def change(self, board: str, kind: str, now: float, **fields: Any) -> None:
        """Change fields of a board's record, which is made if there is none yet."""
        before = self._records.get(board)
        if before is None and len(self._records) >= MOST_RECORDS:
            self._forget_one()
        record = before or BoardRecord(board, kind)
        record = dataclasses.replace(record, kind=kind, seen_at=now, **fields)
        self._records[board] = self._changed[board] = record
        self._records.move_to_end(board)

    def _forget_one(self) -> None:
        """Forget the board that was seen longest ago of those that may go; of all if none may."""
        may_go = (
            name
            for name, record in self._records.items()
            if name not in self._listed and not (record.health and record.health.out)
        )
        del self._records[next(may_go, next(iter(self._records)))]

    def take(self) -> dict[str, BoardRecord]:
        """Return the records that have changed since the last call."""
        taken, self._changed = self._changed, {}
        return taken


def record_to_json(record: BoardRecord) -> dict[str, Any]:
    """Return a record as JSON."""
    return dataclasses.asdict(record)


def record_from_json(body: Mapping[str, Any]) -> BoardRecord:
    """Return the record of `record_to_json`; keys of a newer farm are left out."""
    found = _known(BoardRecord, body)
    if found.get("session"):
        found["session"] = OpenSession(**_known(OpenSession, found["session"]))
    if found.get("health"):
        found["health"] = health_from_json(found["health"])
    return BoardRecord(**found)


def _known(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in dataclasses.fields(kind)}
    return {name: value for name, value in body.items() if name in names}
