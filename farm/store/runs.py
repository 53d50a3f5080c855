"""The record of runs: tables in SQLite. Each run is kept the moment it is known, failed ones too, by any number of processes.

A row holds what is asked for (model, device, time), the raw samples (see `samples`), and all the rest as JSON. A baseline is a
name for runs, one for each model on a device. A record of an older farm is brought up to date when it is opened (`_MIGRATIONS`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from farm.deadline import Deadline
from farm.errors import FarmError, InternalError
from farm.store.codec import run_from_json, run_to_json
from farm.store.samples import packed, unpacked
from farm.types import Run

BUSY_S = 30.0

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
    model TEXT NOT NULL,
    run TEXT NOT NULL REFERENCES runs (id),
    PRIMARY KEY (name, device, model)
);
CREATE INDEX runs_by_model ON runs (model, device, started_at);
"""


def _create(db: sqlite3.Connection) -> None:
    _statements(db, _FIRST_SCHEMA)


def _add_baselines_and_pack(db: sqlite3.Connection) -> None:
    """Samples were float64 without a first byte that says so."""
    _statements(db, _BASELINES)
    for number, seconds in db.execute("SELECT number, seconds FROM runs").fetchall():
        db.execute("UPDATE runs SET seconds = ? WHERE number = ?", (packed(unpacked(b"\0" + seconds)), number))


_MIGRATIONS = (_create, _add_baselines_and_pack)  # from version 0, 1, ... to the next
SCHEMA_VERSION = len(_MIGRATIONS)

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
        with self._open() as db:
            try:
                db.execute(_INSERT, _row(run))
            except sqlite3.IntegrityError as exc:
                raise InternalError(f"run {run.id} is kept already", str(exc)) from exc

    def add(self, runs: Iterable[Run]) -> int:
        """Keep the runs that are not here yet, all or none; how many those were."""
        with self._open() as db, _transaction(db):
            return sum(db.execute(f"{_INSERT} ON CONFLICT (id) DO NOTHING", _row(run)).rowcount for run in runs)

    def runs(self, model: str | None = None, device: str | None = None, limit: int | None = None) -> list[Run]:
        """The runs of a model, on a device, or all; newest first."""
        wanted = [(column, _text(name)) for column, name in (("model", model), ("device", device)) if name is not None]
        where = " AND ".join(f"{column} = ?" for column, _ in wanted) or "1"
        return self._select(
            f"WHERE {where} ORDER BY started_at DESC, number DESC LIMIT ?", *(name for _, name in wanted), -1 if limit is None else limit
        )

    def get(self, id: str) -> Run | None:  # noqa: A002
        return next(iter(self._select("WHERE id = ?", _text(id))), None)

    def starting_with(self, prefix: str) -> list[Run]:
        """The runs whose id begins so."""
        return self._select("WHERE substr(id, 1, ?) = ?", len(prefix), _text(prefix))

    def save_baseline(self, name: str, runs: Iterable[Run]) -> None:
        """Name these runs; of the same name, those of other models and devices stay."""
        with self._open() as db, _transaction(db):
            for run in runs:
                row = (_text(name), _text(run.device), _text(run.model), _text(run.id))
                db.execute("INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?)", row)

    def baseline(self, name: str) -> list[Run]:
        """The runs of a baseline; none where there is none of the name."""
        return self._select("WHERE id IN (SELECT run FROM baselines WHERE name = ?) ORDER BY device, model", _text(name))

    def baselines(self) -> dict[str, int]:
        """The names of all baselines, and how many runs each has."""
        return dict(self._ask("SELECT name, COUNT(*) FROM baselines GROUP BY name ORDER BY name"))

    def remove_baseline(self, name: str) -> bool:
        """Whether there was one. Its runs stay."""
        with self._open() as db:
            return db.execute("DELETE FROM baselines WHERE name = ?", (_text(name),)).rowcount > 0

    def _select(self, clause: str, *values: str | int) -> list[Run]:
        return [self._run(seconds, body) for seconds, body in self._ask(f"SELECT seconds, body FROM runs {clause}", *values)]

    def _ask(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        with self._open() as db:
            return db.execute(query, values).fetchall()

    def _run(self, seconds: bytes, body: str) -> Run:
        try:
            run = run_from_json(json.loads(body))
            samples = unpacked(seconds)
        except ValueError as exc:
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
        with _transaction(db):
            for number in range(self._version(db), SCHEMA_VERSION):  # none left, where another process was faster
                _MIGRATIONS[number](db)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _version(self, db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    def _error(self, why: str) -> FarmError:
        remedy = next(remedy for sign, remedy in _REMEDIES if sign in why)
        return FarmError("the record of runs cannot be used", f"{self.path}: {why}", remedy.format(path=self.path))


_INSERT = "INSERT INTO runs (id, started_at, device, model, seconds, body) VALUES (?, ?, ?, ?, ?, ?)"


def _row(run: Run) -> tuple[str, str, str, str, bytes, str]:
    body = run_to_json(run)
    seconds: tuple[float, ...] = ()
    if run.samples:
        seconds, body["samples"]["seconds"] = run.samples.seconds, []
    return (
        *(_text(run.id), run.started_at, _text(run.device), _text(run.model)),
        packed(seconds),
        json.dumps(body, allow_nan=False),
    )


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The block's statements take effect together, or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _statements(db: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        db.execute(statement)


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
