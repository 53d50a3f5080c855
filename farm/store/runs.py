"""The record of runs: tables in SQLite. Each run is kept the moment it is known, failed ones too, by any number of processes.

A row holds what is asked for (model, device, time), the raw samples (see `samples`), and all the rest as JSON. A baseline is a
name for runs, one for each model on a device and way to compute there. A record of an older farm is brought up to date when it is
opened (`_MIGRATIONS`).
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from farm.errors import InternalError
from farm.store.codec import run_from_json, run_to_json
from farm.store.database import Database, statements, text, transaction
from farm.store.samples import packed, unpacked
from farm.types import Run

_FIRST_SCHEMA = """
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
_BASELINES = """
CREATE TABLE baselines (
    name TEXT NOT NULL,
    device TEXT NOT NULL,
    title TEXT NOT NULL,
    run TEXT NOT NULL REFERENCES runs (id),
    PRIMARY KEY (name, device, title)
);
CREATE INDEX runs_by_model ON runs (model, device, started_at);
"""


def _add_baselines_and_pack(db: sqlite3.Connection) -> None:
    """Samples were float64 without a first byte that says so."""
    statements(db, _BASELINES)
    for number, seconds in db.execute("SELECT number, seconds FROM runs").fetchall():
        db.execute("UPDATE runs SET seconds = ? WHERE number = ?", (packed(unpacked(b"\0" + seconds)), number))


_MIGRATIONS = (_add_baselines_and_pack,)  # from version 1, 2, ... to the next
SCHEMA_VERSION = 1 + len(_MIGRATIONS)


class RunStore:
    """The runs in one file, which is made when the first run is kept. Raises FarmError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path, "the record of runs", "runs", _FIRST_SCHEMA, SCHEMA_VERSION, _MIGRATIONS)

    def keep(self, run: Run) -> None:
        """Keep a run, on the disk when this returns."""
        with self._database.open() as db:
            try:
                db.execute(_INSERT, _row(run))
            except sqlite3.IntegrityError as exc:
                raise InternalError(f"run {run.id} is kept already", str(exc)) from exc

    def add(self, runs: Iterable[Run]) -> int:
        """Keep the runs that are not here yet, all or none; how many those were."""
        with self._database.open() as db, transaction(db):
            return sum(db.execute(f"{_INSERT} ON CONFLICT (id) DO NOTHING", _row(run)).rowcount for run in runs)

    def runs(self, model: str | None = None, device: str | None = None, limit: int | None = None) -> list[Run]:
        """The runs of a model, on a device, or all; newest first."""
        wanted = [(column, text(name)) for column, name in (("model", model), ("device", device)) if name is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in wanted) or "1"
        return self._select(
            f"WHERE {where} ORDER BY started_at DESC, number DESC LIMIT ?", *(name for _, name in wanted), -1 if limit is None else limit
        )

    def newest(self, count: int, models: Sequence[str] = (), devices: Sequence[str] = ()) -> list[Run]:
        """The newest `count` runs of each model on each device, or of these only; newest first. But for the newest of each model, device
        and way to compute there, the samples are left out: how many there were is in `latency`."""
        chosen = [(column, [text(name) for name in names]) for column, names in (("model", models), ("device", devices)) if names]
        where = " AND ".join(f"{column} IN ({', '.join('?' * len(names))})" for column, names in chosen) or "1 = 1"
        place = "ROW_NUMBER() OVER (PARTITION BY model, device ORDER BY started_at DESC, number DESC)"
        query = f"SELECT seconds, body FROM (SELECT *, {place} AS place FROM runs WHERE {where}) AS ranked WHERE place <= ?"
        values = [name for _, names in chosen for name in names]
        found: list[Run] = []
        seen: set[tuple[str, str]] = set()
        for seconds, body in self._ask(f"{query} ORDER BY started_at DESC, number DESC", *values, count):
            run = self._parsed(body)
            found.append(run if (run.device, run.title) in seen else self._with_samples(run, seconds))
            seen.add((run.device, run.title))
        return found

    def get(self, id: str) -> Run | None:  # noqa: A002
        return next(iter(self._select("WHERE id = ?", text(id))), None)

    def starting_with(self, prefix: str) -> list[Run]:
        """The runs whose id begins so."""
        return self._select("WHERE substr(id, 1, ?) = ?", len(prefix), text(prefix))

    def save_baseline(self, name: str, runs: Iterable[Run]) -> None:
        """Name these runs; of the same name, those of other models and devices stay."""
        with self._database.open() as db, transaction(db):
            for run in runs:
                row = (text(name), text(run.device), text(run.title), text(run.id))
                db.execute("INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?)", row)

    def baseline(self, name: str) -> list[Run]:
        """The runs of a baseline; none where there is none of the name."""
        return self._select("WHERE id IN (SELECT run FROM baselines WHERE name = ?) ORDER BY device, model", text(name))

    def baselines(self) -> dict[str, int]:
        """The names of all baselines, and how many runs each has."""
        return dict(self._ask("SELECT name, COUNT(*) FROM baselines GROUP BY name ORDER BY name"))

    def remove_baseline(self, name: str) -> bool:
        """Whether there was one. Its runs stay."""
        with self._database.open() as db:
            return db.execute("DELETE FROM baselines WHERE name = ?", (text(name),)).rowcount > 0

    def _select(self, clause: str, *values: str | int) -> list[Run]:
        return [
            self._with_samples(self._parsed(body), seconds)
            for seconds, body in self._ask(f"SELECT seconds, body FROM runs {clause}", *values)
        ]

    def _ask(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with self._database.open() as db:
            return db.execute(query, values).fetchall()

    def _parsed(self, body: str) -> Run:
        try:
            return run_from_json(_content(body))
        except ValueError as exc:
            raise self._database.error(f"malformed row: {exc}") from exc

    def _with_samples(self, run: Run, seconds: bytes) -> Run:
        try:
            samples = unpacked(seconds)
        except ValueError as exc:
            raise self._database.error(f"malformed row: {exc}") from exc
        return dataclasses.replace(run, samples=dataclasses.replace(run.samples, seconds=samples)) if run.samples else run


def _content(body: str) -> Any:
    from pydantic_core import from_json  # takes a third of json's time, which counts in thousands of runs

    try:
        return from_json(body)
    except ValueError:
        return json.loads(body)  # which takes lone surrogates: names of files may hold them


_INSERT = "INSERT INTO runs (id, started_at, device, model, seconds, body) VALUES (?, ?, ?, ?, ?, ?)"


def _row(run: Run) -> tuple[str, str, str, str, bytes, str]:
    body = run_to_json(run)
    seconds: tuple[float, ...] = ()
    if run.samples:
        seconds, body["samples"]["seconds"] = run.samples.seconds, []
    return (
        *(text(run.id), run.started_at, text(run.device), text(run.model)),
        packed(seconds),
        json.dumps(body, allow_nan=False),
    )
