"""The best choices that were measured, by core and workload: a table in SQLite, and JSON lines to carry them elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from farm.errors import FarmError, UsageError
from farm.store.database import Database, text
from farm.store.files import data_root
from farm.types import Record

SCHEMA = "farm/record/1"
_VERSION = 1
_TABLE = """
CREATE TABLE records (
    core TEXT NOT NULL,
    workload TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (core, workload)
)
"""
_KINDS = {"core": str, "workload": str, "choice": dict, "measured_at": str, "device": str, "cpu": str, "versions": dict}
_REQUIRED = ("core", "workload", "choice", "seconds", "default_s", "runs", "measured_at", "device")


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of imported records: how many were new, faster than those there, or not."""

    new: int = 0
    faster: int = 0
    left: int = 0


class RecordStore:
    """The records in one file, which is made when the first is kept. Raises FarmError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path, "the record of choices", "records", _TABLE, _VERSION)

    @classmethod
    def of_user(cls) -> RecordStore:
        """What tuning has found for this user, on this machine or elsewhere."""
        return cls(data_root() / "records.sqlite")

    def keep(self, record: Record) -> None:
        """Keep a record in the place of the one there: it was measured against that one. It is on the disk when this returns."""
        with self._database.open() as db:
            _put(db, record)

    def merge(self, records: Iterable[Record]) -> Merged:
        """Take records from elsewhere, all or none: of two for one core and workload the faster stays, of equals the one that was there."""
        new = faster = left = 0
        with self._database.open() as db:
            db.execute("BEGIN IMMEDIATE")
            for record in records:
                row = db.execute("SELECT body FROM records WHERE core = ? AND workload = ?", _key(record)).fetchone()
                there = self._record(row[0]) if row else None
                if there is not None and there.seconds <= record.seconds:
                    left += 1
                    continue
                new, faster = new + (there is None), faster + (there is not None)
                _put(db, record)
            db.execute("COMMIT")
        return Merged(new, faster, left)

    def records(self, core: str | None = None, operator: str | None = None) -> list[Record]:
        """All records, or those with a text in the name of their core, of an operator: by core, then workload."""
        found = [record for record in self._all() if core is None or core in record.core]
        return [record for record in found if operator is None or record.workload.partition(" ")[0] == operator]

    def remove(self, core: str | None, operator: str | None) -> int:
        """Remove what `records` gives, and return how many these were."""
        found = self.records(core, operator)
        if found:
            with self._database.open() as db:
                db.executemany("DELETE FROM records WHERE core = ? AND workload = ?", [_key(record) for record in found])
        return len(found)

    def forget(self, core: str, workload: str) -> None:
        """Remove a record, if it is there."""
        with self._database.open() as db:
            db.execute("DELETE FROM records WHERE core = ? AND workload = ?", (text(core), text(workload)))

    def _all(self) -> list[Record]:
        if not self.path.exists():
            return []
        with self._database.open() as db:
            rows = db.execute("SELECT body FROM records ORDER BY core, workload").fetchall()
        return [self._record(body) for (body,) in rows]

    def choices(self, core: str) -> dict[str, Mapping[str, object]]:
        """The choices of a core, by workload."""
        return {record.workload: record.choice for record in self._all() if record.core == core}

    def _record(self, body: str) -> Record:
        try:
            return record_from_json(json.loads(body))
        except ValueError as exc:
            raise self._database.error(f"malformed row: {exc}") from exc


def record_to_json(record: Record) -> dict[str, Any]:
    return {"schema": SCHEMA, **asdict(record)}


def record_from_json(body: Any) -> Record:
    """What `record_to_json` gave; unknown keys are ignored. Raises ValueError, with the reason, for what is no record of this schema."""
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    if body.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {body.get('schema')!r}, this farm reads {SCHEMA!r}")
    if missing := [name for name in _REQUIRED if name not in body]:
        raise ValueError(f"it has no {', '.join(missing)}")
    given = {field.name: body[field.name] for field in fields(Record) if field.name in body}
    for name, kind in _KINDS.items():
        if name in given and not isinstance(given[name], kind):
            raise ValueError(f"`{name}` is {given[name]!r:.40}")
    for name in ("seconds", "default_s"):
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"`{name}` is {value!r:.40}, no time above 0")
    for name, least in (("runs", 1), ("threads", 0)):
        value = given.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"`{name}` is {value!r:.40}, no whole number from {least}")
    return Record(**given)


def write_records(path: Path, records: Sequence[Record]) -> None:
    """A line of JSON for each. Raises FarmError where the file cannot be written."""
    try:
        path.write_text("".join(json.dumps(record_to_json(record), sort_keys=True) + "\n" for record in records))
    except OSError as exc:
        raise FarmError(f"{path} cannot be written", exc.strerror or str(exc), "name a file in a folder that you may write to") from exc


def read_records(path: Path) -> list[Record]:
    """What `write_records` wrote. Raises UsageError that names the first line which is no record."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read", str(exc), "name a file that farm records export has written") from exc
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(record_from_json(json.loads(line)))
        except ValueError as exc:
            why = f"not JSON: {exc}" if isinstance(exc, json.JSONDecodeError) else str(exc)
            raise UsageError(
                f"{path}, line {number}: no record", why, "nothing was imported; remove the line, or export the file again"
            ) from exc
    return found


def _put(db: Any, record: Record) -> None:
    db.execute(
        "INSERT OR REPLACE INTO records (core, workload, body) VALUES (?, ?, ?)", (*_key(record), json.dumps(record_to_json(record)))
    )


def _key(record: Record) -> tuple[str, str]:
    return text(record.core), text(record.workload)
