"""The record of runs: tables in SQLite, or of a PostgreSQL server. Each run is kept the moment it is known, failed ones too, by any number
of processes.

A row holds what is asked for (model, device, time), the raw samples (see `samples`), and all the rest as JSON. A baseline is a
name for runs, one for each model on a device and way to compute there. A record of an older farm is brought up to date when it is
opened (`_MIGRATIONS`).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from farm.errors import InternalError, UsageError
from farm.store.codec import run_from_json, run_to_json
from farm.store.database import Database, statements, text
from farm.store.files import data_root
from farm.store.postgres import PostgresDatabase, is_url
from farm.store.samples import packed, unpacked
from farm.types import Run

_TITLE = "the record of runs"
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


def _add_baselines_and_pack(db: Any) -> None:
    """Samples were float64 without a first byte that says so."""
    statements(db, _BASELINES)
    for number, seconds in db.execute("SELECT number, seconds FROM runs").fetchall():
        db.execute("UPDATE runs SET seconds = ? WHERE number = ?", (packed(unpacked(b"\0" + seconds)), number))


_MIGRATIONS: tuple[Callable[[Any], None], ...] = (_add_baselines_and_pack,)  # from version 1, 2, ... to the next
SCHEMA_VERSION = 1 + len(_MIGRATIONS)

_TYPES = {"BLOB": "BYTEA", "INTEGER PRIMARY KEY": "BIGSERIAL PRIMARY KEY", "TEXT": 'TEXT COLLATE "C"'}
_POSTGRES_FIRST = 2  # the version with which farms began to use PostgreSQL


class RunStore:
    """The runs in one file, which is made when the first run is kept, or of a PostgreSQL database. Raises FarmError where it cannot be
    read or written."""

    def __init__(self, place: Path | str) -> None:
        self.path = None if isinstance(place, str) and is_url(place) else Path(place)
        self._database: Database | PostgresDatabase
        if self.path:
            self._database = Database(self.path, _TITLE, "runs", _FIRST_SCHEMA, SCHEMA_VERSION, _MIGRATIONS)
        else:
            later = _MIGRATIONS[_POSTGRES_FIRST - 1 :]
            self._database = PostgresDatabase(str(place), _TITLE, "runs", _for_postgres(), SCHEMA_VERSION, _POSTGRES_FIRST, later)

    @classmethod
    def at(cls, place: str | None = None) -> RunStore:
        """The record at a path or a postgresql:// url, or else that of this user. Raises UsageError for a url of another kind."""
        if place is not None and "://" in place and not is_url(place):
            what, why = f"runs cannot be kept at {place.partition(':')[0]}://", "farm keeps them in a file, or on a PostgreSQL server"
            raise UsageError(what, why, "a path, or postgresql://USER@HOST/DATABASE")
        return cls(data_root() / "runs.sqlite" if place is None else place if is_url(place) else Path(place).expanduser())

    def ready(self) -> None:
        """Raise FarmError now rather than after something was measured, where runs cannot be kept."""
        self._database.ask(lambda _: None)

    def keep(self, run: Run) -> None:
        """Keep a run, on the disk when this returns."""
        row, tries = _row(run), 0

        def insert(db: Any) -> bool:
            nonlocal tries
            tries += 1
            return bool(db.execute(f"{_INSERT} ON CONFLICT (id) DO NOTHING", row).rowcount)

        if not self._database.change(insert) and tries == 1:  # else the try before had been kept when the server went
            raise InternalError(f"run {run.id} is kept already", "an id is given once")

    def add(self, runs: Iterable[Run]) -> int:
        """Keep the runs that are not here yet, all or none; how many those were."""
        rows = [_row(run) for run in runs]
        return self._database.change(lambda db: sum(db.execute(f"{_INSERT} ON CONFLICT (id) DO NOTHING", row).rowcount for row in rows))

    def runs(self, model: str | None = None, device: str | None = None, limit: int | None = None) -> list[Run]:
        """The runs of a model, on a device, or all; newest first."""
        wanted = [(column, text(name)) for column, name in (("model", model), ("device", device)) if name is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in wanted) or "1 = 1"
        most = "" if limit is None else f"LIMIT {limit:d}"
        return self._select(f"WHERE {where} ORDER BY started_at DESC, number DESC {most}", *(name for _, name in wanted))

    def newest(self, count: int, models: Sequence[str] = (), devices: Sequence[str] = ()) -> list[Run]:
        """The newest `count` runs of each model on each device, or of these only; newest first. But for the newest of each model, device
        and way to compute there, the samples are left out: how many there were is in `latency`."""
        chosen = [(column, [text(name) for name in names]) for column, names in (("model", models), ("device", devices)) if names]
        where = " AND ".join(f"{column} IN ({', '.join('?' * len(names))})" for column, names in chosen) or "1 = 1"
        place = "ROW_NUMBER() OVER (PARTITION BY model, device ORDER BY started_at DESC, number DESC)"
        ranked = f"SELECT id, body, started_at, number, {place} AS place FROM runs WHERE {where}"
        query = f"SELECT id, body FROM ({ranked}) AS ranked WHERE place <= ? ORDER BY started_at DESC, number DESC"
        values = [name for _, names in chosen for name in names]
        found = [(id_, self._parsed(body)) for id_, body in self._ask(query, *values, count)]
        first: dict[tuple[str, str], str] = {}
        for id_, run in found:
            first.setdefault((run.device, run.title), id_)
        marks = ", ".join("?" * len(first))
        seconds = dict(self._ask(f"SELECT id, seconds FROM runs WHERE id IN ({marks})", *first.values())) if first else {}
        return [self._with_samples(run, seconds[id_]) if id_ in seconds else run for id_, run in found]

    def get(self, id: str) -> Run | None:  # noqa: A002
        return next(iter(self._select("WHERE id = ?", text(id))), None)

    def starting_with(self, prefix: str) -> list[Run]:
        """The runs whose id begins so."""
        return self._select("WHERE substr(id, 1, ?) = ?", len(prefix), text(prefix))

    def save_baseline(self, name: str, runs: Iterable[Run]) -> None:
        """Name these runs; of the same name, those of other models and devices stay."""
        rows = [(text(name), text(run.device), text(run.title), text(run.id)) for run in runs]
        put = "INSERT INTO baselines VALUES (?, ?, ?, ?) ON CONFLICT (name, device, title) DO UPDATE SET run = excluded.run"
        self._database.change(lambda db: [db.execute(put, row) for row in rows])

    def baseline(self, name: str) -> list[Run]:
        """The runs of a baseline; none where there is none of the name."""
        return self._select("WHERE id IN (SELECT run FROM baselines WHERE name = ?) ORDER BY device, model", text(name))

    def baselines(self) -> dict[str, int]:
        """The names of all baselines, and how many runs each has."""
        return dict(self._ask("SELECT name, COUNT(*) FROM baselines GROUP BY name ORDER BY name"))

    def remove_baseline(self, name: str) -> bool:
        """Whether there was one. Its runs stay."""
        return bool(self._database.change(lambda db: db.execute("DELETE FROM baselines WHERE name = ?", (text(name),)).rowcount))

    def _select(self, clause: str, *values: str | int) -> list[Run]:
        return [
            self._with_samples(self._parsed(body), seconds)
            for seconds, body in self._ask(f"SELECT seconds, body FROM runs {clause}", *values)
        ]

    def _ask(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        return list(self._database.ask(lambda db: db.execute(query, values).fetchall())) if self._database.is_there else []

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


def _for_postgres() -> str:
    """The tables of version 2, in its words."""
    script = _FIRST_SCHEMA + _BASELINES
    for ours, theirs in _TYPES.items():
        script = re.sub(rf"\b{ours}\b", theirs, script)
    return script


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
