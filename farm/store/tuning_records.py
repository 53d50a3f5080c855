"""The fastest kernel configurations measured, by CPU model and workload.

They are a table in SQLite; `write_records_file` and `read_records_file` transfer them as lines of
JSON.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import UsageError
from farm.store import sqlite_file
from farm.store.artifact_store import user_data_dir
from farm.store.upsert import insert_or_replace
from farm.types import TuningRecord

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table

    from farm.store.database import MigratedDatabase

SCHEMA = "farm/record/1"
_KINDS = {
    "core": str,
    "workload": str,
    "choice": dict,
    "measured_at": str,
    "device": str,
    "cpu": str,
    "versions": dict,
}
_MIGRATIONS: tuple[Callable[[Connection], None], ...] = ()
_REQUIRED = ("core", "workload", "choice", "seconds", "default_s", "runs", "measured_at", "device")


@functools.cache
def _table() -> Table:
    from sqlalchemy import Column, MetaData, Table

    from farm.store.database import CodePointText

    key = (Column(name, CodePointText, primary_key=True) for name in ("core", "workload"))
    return Table("records", MetaData(), *key, Column("body", CodePointText, nullable=False))


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Counts of imported records: new, faster than the stored ones, or left out."""

    new: int = 0
    faster: int = 0
    left: int = 0


class TuningRecordStore:
    """The records in one file, which is created when the first record is stored.

    Raises FarmError if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_user(cls) -> TuningRecordStore:
        """Return the store of this user's tuning records, measured on this machine or imported."""
        return cls(user_data_dir() / "records.sqlite")

    def keep(self, record: TuningRecord) -> None:
        """Store a record, replacing the stored one, against which it was measured.

        The record is on disk at return.
        """
        self._database.change(lambda db: insert_or_replace(db, _table(), [_row(record)]))

    def merge(self, records: Iterable[TuningRecord]) -> MergeCounts:
        """Import records, all or none, and return how many were new, faster or left out.

        If two records have the same core and workload, the faster stays; if they are equal, the
        stored one.
        """
        records = list(records)

        def change(db: Connection) -> MergeCounts:
            new = faster = left = 0
            for record in records:
                body = db.scalar(
                    _table()
                    .select()
                    .with_only_columns(_table().c.body)
                    .where(*_is(record.core, record.workload))
                )
                if body is not None and self._record(body).seconds <= record.seconds:
                    left += 1
                    continue
                new, faster = new + (body is None), faster + (body is not None)
                insert_or_replace(db, _table(), [_row(record)])
            return MergeCounts(new, faster, left)

        return self._database.change(change)

    def records(self, core: str | None = None, operator: str | None = None) -> list[TuningRecord]:
        """Return all records, sorted by core, then workload.

        `core`: only those whose core's name contains this text. `operator`: only those of this
        operator.
        """
        found = [record for record in self._all() if core is None or core in record.core]
        return [
            record
            for record in found
            if operator is None or record.workload.partition(" ")[0] == operator
        ]

    def remove(self, core: str | None, operator: str | None) -> int:
        """Remove the records that `records` returns for these arguments; return their number."""
        found = self.records(core, operator)
        return (
            self._database.change(
                lambda db: sum(_delete(db, record.core, record.workload) for record in found)
            )
            if found
            else 0
        )

    def forget(self, core: str, workload: str) -> None:
        """Remove a record if it exists."""
        self._database.change(lambda db: _delete(db, core, workload))

    def choices(self, core: str) -> dict[str, Mapping[str, object]]:
        """Return the kernel configurations for a CPU model, by workload."""
        return {record.workload: record.choice for record in self._all() if record.core == core}

    def cores(self) -> list[str]:
        """Return the CPU models of which there are configurations, sorted."""
        return sorted({record.core for record in self._all()})

    def _all(self) -> list[TuningRecord]:
        if not self.path.exists():
            return []
        statement = "SELECT body FROM records ORDER BY core, workload"
        bodies = sqlite_file.transact(
            self.path,
            1 + len(_MIGRATIONS),
            sqlite_file.ASK,
            lambda db: [body for (body,) in db.execute(statement)],
        )
        if bodies is None:
            key = _table().primary_key
            query = _table().select().with_only_columns(_table().c.body).order_by(*key)
            bodies = self._database.ask(lambda db: list(db.scalars(query)))
        return [self._record(body) for body in bodies]

    def _record(self, body: str) -> TuningRecord:
        try:
            return record_from_json(json.loads(body))
        except ValueError as exc:
            raise self._database.error(f"malformed row: {exc}") from exc

    @property
    def _database(self) -> MigratedDatabase:
        from farm.store.backends import SqliteBackend
        from farm.store.database import MigratedDatabase

        return MigratedDatabase(
            SqliteBackend(self.path),
            "the record of choices",
            "records",
            _table().metadata,
            _MIGRATIONS,
        )


def record_to_json(record: TuningRecord) -> dict[str, Any]:
    """Return a record as a JSON object of schema `SCHEMA`."""
    return {"schema": SCHEMA, **asdict(record)}


def record_from_json(body: Any) -> TuningRecord:
    """Return the record that `record_to_json` encoded; ignore unknown keys.

    Raises ValueError, with the reason, if `body` is not a record of this schema.
    """
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    if body.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {body.get('schema')!r}, this farm reads {SCHEMA!r}")
    if missing := [name for name in _REQUIRED if name not in body]:
        raise ValueError(f"it has no {', '.join(missing)}")
    given = {field.name: body[field.name] for field in fields(TuningRecord) if field.name in body}
    for name, kind in _KINDS.items():
        if name in given and not isinstance(given[name], kind):
            raise ValueError(f"`{name}` is {given[name]!r:.40}")
    for name in ("seconds", "default_s"):
        value = given[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or value <= 0
        ):
            raise ValueError(f"`{name}` is {value!r:.40}, no time above 0")
    for name, least in (("runs", 1), ("threads", 0)):
        value = given.get(name, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"`{name}` is {value!r:.40}, no whole number from {least}")
    return TuningRecord(**given)


def write_records_file(path: Path, records: Sequence[TuningRecord]) -> None:
    """Write one line of JSON per record. Raises UsageError if the file cannot be written."""
    try:
        path.write_text(
            "".join(json.dumps(record_to_json(record), sort_keys=True) + "\n" for record in records)
        )
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be written",
            exc.strerror or str(exc),
            "name a file in a folder that you may write to",
        ) from exc


def read_records_file(path: Path) -> list[TuningRecord]:
    """Return the records that `write_records_file` wrote.

    Raises UsageError that names the first line that is not a record.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or str(exc)
        raise UsageError(
            f"{path} cannot be read", why, "name a file that farm records export has written"
        ) from exc
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(record_from_json(json.loads(line)))
        except ValueError as exc:
            why = f"not JSON: {exc}" if isinstance(exc, json.JSONDecodeError) else str(exc)
            raise UsageError(
                f"{path}, line {number}: no record",
                why,
                "nothing was imported; remove the line, or export the file again",
            ) from exc
    return found


def _row(record: TuningRecord) -> dict[str, str]:
    return {
        "core": record.core,
        "workload": record.workload,
        "body": json.dumps(record_to_json(record)),
    }


def _is(core: str, workload: str) -> tuple[ColumnElement[bool], ...]:
    return _table().c.core == core, _table().c.workload == workload


def _delete(db: Connection, core: str, workload: str) -> int:
    return db.execute(_table().delete().where(*_is(core, workload))).rowcount
