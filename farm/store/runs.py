"""The record of runs: a table in SQLite. Each run is kept the moment it is known, failed ones too, by any number of processes.

A row holds what is asked for (model, device, time), the raw samples as little-endian float64, and all the rest as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from farm.deadline import Deadline
from farm.errors import FarmError, InternalError
from farm.store.codec import run_from_json, run_to_json
from farm.types import Run

SCHEMA_VERSION = 1
BUSY_S = 30.0

_SCHEMA = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    started_at TEXT NOT NULL,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    seconds BLOB NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX runs_by_time ON runs (started_at, number);
"""

# What SQLite or the system says, and what to do about it; the first that fits.
_REMEDIES = (
    ("locked", f"another farm has been writing for {BUSY_S:.0f} s; try again when it has ended"),
    ("full", "free space on the disk of {path}, or keep runs elsewhere: export FARM_DATA=/path"),
    ("No space", "free space on the disk of {path}, or keep runs elsewhere: export FARM_DATA=/path"),
    ("malformed", "move it away, and a new one is begun: mv {path} {path}.broken"),
    ("not a database", "move it away, and a new one is begun: mv {path} {path}.broken"),
    ("", "make {path} and its folder readable and writable, or keep runs elsewhere: export FARM_DATA=/path"),
)


class RunStore:
    """The runs in one file, which is made when the first run is kept. Raises FarmError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, run: Run) -> None:
        """Keep a run, on the disk when this returns."""
        body = run_to_json(run)
        seconds: tuple[float, ...] = ()
        if run.samples:
            seconds, body["samples"]["seconds"] = run.samples.seconds, []
        row = (_text(run.id), run.started_at, _text(run.device), _text(run.model))
        packed = struct.pack(f"<{len(seconds)}d", *seconds)
        with self._open() as db:
            try:
                db.execute(
                    "INSERT INTO runs (id, started_at, device, model, seconds, body) VALUES (?, ?, ?, ?, ?, ?)",
                    (*row, packed, json.dumps(body, allow_nan=False)),
                )
            except sqlite3.IntegrityError as exc:
                raise InternalError(f"run {run.id} is kept already", str(exc)) from exc

    def runs(self, model: str | None = None, device: str | None = None, limit: int | None = None) -> list[Run]:
        """The runs of a model, on a device, or all; newest first."""
        wanted = [(column, _text(name)) for column, name in (("model", model), ("device", device)) if name is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in wanted) or "1"
        return self._select(
            f"WHERE {where} ORDER BY started_at DESC, number DESC LIMIT ?", *(name for _, name in wanted), -1 if limit is None else limit
        )

    def get(self, id: str) -> Run | None:  # noqa: A002
        return next(iter(self._select("WHERE id = ?", _text(id))), None)

    def _select(self, clause: str, *values: str | int) -> list[Run]:
        if not self.path.exists():
            return []
        with self._open() as db:
            rows = db.execute(f"SELECT seconds, body FROM runs {clause}", values).fetchall()
        return [self._run(seconds, body) for seconds, body in rows]

    def _run(self, seconds: bytes, body: str) -> Run:
        try:
            run = run_from_json(json.loads(body))
            samples = struct.unpack(f"<{len(seconds) // 8}d", seconds)
        except (ValueError, struct.error) as exc:
            raise self._error(f"malformed row: {exc}") from exc
        return dataclasses.replace(run, samples=dataclasses.replace(run.samples, seconds=samples)) if run.samples else run

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one piece of work: cheap, and safe whatever forks meanwhile."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)) as db:
                self._prepare(db)
                yield db
        except (sqlite3.Error, OSError) as exc:
            raise self._error(str(exc)) from exc

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = self._version(db)
        if version > SCHEMA_VERSION:
            raise FarmError(
                f"{self.path} was written by a newer farm",
                f"its schema is version {version}, this farm knows {SCHEMA_VERSION}",
                "install a newer farm, or keep runs elsewhere: export FARM_DATA=/path",
            )
        if version == SCHEMA_VERSION:
            return
        _use_write_ahead_log(db)
        db.execute("BEGIN IMMEDIATE")
        if self._version(db) == 0:  # no other process was faster
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")

    def _version(self, db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    def _error(self, why: str) -> FarmError:
        remedy = next(remedy for sign, remedy in _REMEDIES if sign in why)
        return FarmError("the record of runs cannot be used", f"{self.path}: {why}", remedy.format(path=self.path))


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    """Readers then never wait for writers. SQLite does not apply its busy timeout to this switch: two at once need a retry."""
    deadline = Deadline(BUSY_S)
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or deadline.expired:
                raise
            time.sleep(0.01)


def _text(name: str) -> str:
    """Names for SQLite, which takes no lone surrogates (a file name may hold them); the JSON keeps the name as it is."""
    return name.encode("utf-8", "backslashreplace").decode()
