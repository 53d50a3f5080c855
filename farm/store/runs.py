"""The record of runs: a table in SQLite. Each run is kept the moment it is known, failed ones too, by any number of processes.

A row holds what is asked for (model, device, time), the raw samples as little-endian float64, and all the rest as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import struct
from pathlib import Path

from farm.errors import InternalError
from farm.store.codec import run_from_json, run_to_json
from farm.store.database import Database, text
from farm.types import Run

SCHEMA_VERSION = 1

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


class RunStore:
    """The runs in one file, which is made when the first run is kept. Raises FarmError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path, "the record of runs", "runs", _SCHEMA, SCHEMA_VERSION)

    def keep(self, run: Run) -> None:
        """Keep a run, on the disk when this returns."""
        body = run_to_json(run)
        seconds: tuple[float, ...] = ()
        if run.samples:
            seconds, body["samples"]["seconds"] = run.samples.seconds, []
        row = (text(run.id), run.started_at, text(run.device), text(run.model))
        packed = struct.pack(f"<{len(seconds)}d", *seconds)
        with self._database.open() as db:
            try:
                db.execute(
                    "INSERT INTO runs (id, started_at, device, model, seconds, body) VALUES (?, ?, ?, ?, ?, ?)",
                    (*row, packed, json.dumps(body, allow_nan=False)),
                )
            except sqlite3.IntegrityError as exc:
                raise InternalError(f"run {run.id} is kept already", str(exc)) from exc

    def runs(self, model: str | None = None, device: str | None = None, limit: int | None = None) -> list[Run]:
        """The runs of a model, on a device, or all; newest first."""
        wanted = [(column, text(name)) for column, name in (("model", model), ("device", device)) if name is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in wanted) or "1"
        return self._select(
            f"WHERE {where} ORDER BY started_at DESC, number DESC LIMIT ?", *(name for _, name in wanted), -1 if limit is None else limit
        )

    def get(self, id: str) -> Run | None:  # noqa: A002
        return next(iter(self._select("WHERE id = ?", text(id))), None)

    def _select(self, clause: str, *values: str | int) -> list[Run]:
        if not self.path.exists():
            return []
        with self._database.open() as db:
            rows = db.execute(f"SELECT seconds, body FROM runs {clause}", values).fetchall()
        return [self._run(seconds, body) for seconds, body in rows]

    def _run(self, seconds: bytes, body: str) -> Run:
        try:
            run = run_from_json(json.loads(body))
            samples = struct.unpack(f"<{len(seconds) // 8}d", seconds)
        except (ValueError, struct.error) as exc:
            raise self._database.error(f"malformed row: {exc}") from exc
        return dataclasses.replace(run, samples=dataclasses.replace(run.samples, seconds=samples)) if run.samples else run
