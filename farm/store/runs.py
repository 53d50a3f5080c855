"""The record of runs: tables in SQLite or on a PostgreSQL server.

Each run, also a failed one, is stored as soon as it is known; any number of processes may write. A
row holds the columns that are queried (model, device, time), the raw samples (see `samples`), and
the rest as JSON. A baseline is a name for runs: one for each device and title (a model and how it
is computed there, such as its number of threads). A database of an older farm is migrated when it
is opened.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from farm.errors import InternalError, UsageError
from farm.store import sqlite_file
from farm.store.artifact_store import user_data_dir
from farm.store.run_json import run_from_json, run_to_json
from farm.store.sample_encoding import pack_samples, unpack_samples
from farm.store.upsert import insert_new, insert_or_replace
from farm.types import Run
from farm.types.postgres_url import SCHEMES, is_postgres_url, parse_postgres_url

if TYPE_CHECKING:
    import sqlite3

    from sqlalchemy import ColumnElement, Connection, Select, Table

    from farm.store.database import MigratedDatabase

T = TypeVar("T")


@functools.cache
def _tables() -> tuple[Table, Table]:
    """Return the tables `runs` and `baselines` of the newest version.

    `_add_baselines_and_pack` migrates from version 1.
    """
    from sqlalchemy import Column, ForeignKey, Index, LargeBinary, MetaData, Table

    from farm.store.database import ROW_NUMBER, CodePointText

    runs = Table(
        "runs",
        MetaData(),
        Column("number", ROW_NUMBER, primary_key=True),
        Column("id", CodePointText, nullable=False, unique=True),
        *(
            Column(name, CodePointText, nullable=False)
            for name in ("started_at", "device", "model")
        ),
        Column("seconds", LargeBinary, nullable=False),
        Column("body", CodePointText, nullable=False),
    )
    Index("runs_by_time", runs.c.started_at, runs.c.number)
    Index("runs_by_model", runs.c.model, runs.c.device, runs.c.started_at)
    baselines = Table(
        "baselines",
        runs.metadata,
        *(Column(name, CodePointText, primary_key=True) for name in ("name", "device", "title")),
        Column("run", ForeignKey(runs.c.id), nullable=False),
    )
    return runs, baselines


def _add_baselines_and_pack(db: Connection) -> None:
    """Migrate from version 1 to 2: add baselines and re-encode the samples.

    In version 1, samples were float64 without the first byte that names the encoding. Only files,
    never servers, have had version 1.
    """
    runs, baselines = _tables()
    baselines.create(db)
    next(index for index in runs.indexes if index.name == "runs_by_model").create(db)
    for number, seconds in db.execute(
        runs.select().with_only_columns(runs.c.number, runs.c.seconds)
    ).all():
        db.execute(
            runs.update().where(runs.c.number == number),
            {"seconds": pack_samples(unpack_samples(b"\0" + seconds))},
        )


_MIGRATIONS = (_add_baselines_and_pack,)


class RunStore:
    """The runs in one file, created when the first run is stored, or in a PostgreSQL database.

    Raises FarmError if it cannot be read or written.
    """

    def __init__(self, place: Path | str) -> None:
        self.path = None if isinstance(place, str) and has_postgres_scheme(place) else Path(place)
        self._url = str(place)

    @classmethod
    def at(cls, place: str | None = None) -> RunStore:
        """Return the store at a path or a postgresql:// URL; this user's store if `place` is None.

        Raises UsageError for another kind of URL and for a malformed one.
        """
        if place is not None and "://" in place and not has_postgres_scheme(place):
            what, why = (
                f"runs cannot be kept at {place.partition(':')[0]}://",
                "farm keeps them in a file, or on a PostgreSQL server",
            )
            raise UsageError(what, why, "a path, or postgresql://USER@HOST/DATABASE")
        if place is not None and is_postgres_url(place):
            try:
                parse_postgres_url(place)
            except ValueError:
                from farm.store.backends import malformed_postgres_url_error

                raise malformed_postgres_url_error() from None
        return cls(
            user_data_dir() / "runs.sqlite"
            if place is None
            else place
            if has_postgres_scheme(place)
            else Path(place).expanduser()
        )

    def ready(self) -> None:
        """Raise FarmError if runs cannot be stored: now, rather than after a measurement."""
        if not self._directly(sqlite_file.ASK, lambda _: True):
            self._database.ask(lambda _: None)

    def keep(self, run: Run) -> None:
        """Store a run; it is on disk at return.

        Raises InternalError if a run with its id is stored already.
        """
        rows, tries = [_row(run)], 0

        def insert(db: Connection) -> int:
            nonlocal tries
            tries += 1
            return insert_new(db, _tables()[0], rows)

        kept = self._directly(
            sqlite_file.CHANGE, lambda db: sqlite_file.insert_new(db, "runs", rows)
        )
        if kept is None:
            kept = self._database.change(insert)
        # otherwise an earlier attempt was committed although the connection broke
        if not kept and tries <= 1:
            raise InternalError(f"run {run.id} is kept already", "an id is given once")

    def add(self, runs: Iterable[Run]) -> int:
        """Store the runs that are not stored yet, all or none; return their number."""
        rows = [_row(run) for run in runs]
        return self._database.change(lambda db: insert_new(db, _tables()[0], rows))

    def runs(
        self, model: str | None = None, device: str | None = None, limit: int | None = None
    ) -> list[Run]:
        """Return the runs of a model, on a device, or all; newest first."""
        runs, _ = _tables()
        wanted = [
            column == name
            for column, name in ((runs.c.model, model), (runs.c.device, device))
            if name is not None
        ]
        return self._whole(runs.select().where(*wanted).order_by(*_newest_first(runs)).limit(limit))

    def newest(
        self, count: int, models: Sequence[str] = (), devices: Sequence[str] = ()
    ) -> list[Run]:
        """Return the newest `count` runs of each model on each device; newest first.

        `models` and `devices`, if not empty, restrict them. Samples are left out except for the
        newest run of each device and title; `latency` has their number.
        """
        from sqlalchemy import func

        runs, _ = _tables()
        chosen = [
            column.in_(names)
            for column, names in ((runs.c.model, models), (runs.c.device, devices))
            if names
        ]
        place = func.row_number().over(
            partition_by=(runs.c.model, runs.c.device), order_by=_newest_first(runs)
        )
        ranked = (
            runs.select()
            .with_only_columns(runs.c.number, place.label("place"))
            .where(*chosen)
            .subquery()
        )
        query = (
            runs.join(ranked, runs.c.number == ranked.c.number)
            .select()
            .where(ranked.c.place <= count)
        )
        rows = self._ask(
            query.with_only_columns(runs.c.id, runs.c.body).order_by(*_newest_first(runs))
        )
        found = [(id_, self._parsed(body)) for id_, body in rows]
        first: dict[tuple[str, str], str] = {}
        for id_, run in found:
            first.setdefault((run.device, run.title), id_)
        samples = (
            runs.select()
            .with_only_columns(runs.c.id, runs.c.seconds)
            .where(runs.c.id.in_(first.values()))
        )
        seconds = dict(self._ask(samples))
        return [
            self._with_samples(run, seconds[id_]) if id_ in seconds else run for id_, run in found
        ]

    def get(self, id: str) -> Run | None:  # noqa: A002
        """Return the run with this id, or None if there is none."""
        runs, _ = _tables()
        return next(iter(self._whole(runs.select().where(runs.c.id == id))), None)

    def starting_with(self, prefix: str) -> list[Run]:
        """Return the runs whose id starts with this prefix."""
        from sqlalchemy import func

        runs, _ = _tables()
        return self._whole(
            runs.select().where(
                func.substr(runs.c.id, 1, len(prefix), type_=runs.c.id.type) == prefix
            )
        )

    def save_baseline(self, name: str, runs: Iterable[Run]) -> None:
        """Name these runs; runs of other models and devices under the same name stay."""
        rows = [
            {"name": name, "device": run.device, "title": run.title, "run": run.id} for run in runs
        ]
        self._database.change(lambda db: insert_or_replace(db, _tables()[1], rows))

    def baseline(self, name: str) -> list[Run]:
        """Return the runs of a baseline; none if there is no baseline of this name."""
        runs, baselines = _tables()
        ids = baselines.select().with_only_columns(baselines.c.run).where(baselines.c.name == name)
        return self._whole(
            runs.select().where(runs.c.id.in_(ids)).order_by(runs.c.device, runs.c.model)
        )

    def baselines(self) -> dict[str, int]:
        """Return the number of runs of each baseline, by name."""
        from sqlalchemy import func

        name = _tables()[1].c.name
        return dict(
            self._ask(
                name.table.select()
                .with_only_columns(name, func.count())
                .group_by(name)
                .order_by(name)
            )
        )

    def remove_baseline(self, name: str) -> bool:
        """Remove a baseline and return whether it existed. Its runs stay."""
        _, baselines = _tables()
        return bool(
            self._database.change(
                lambda db: db.execute(baselines.delete().where(baselines.c.name == name)).rowcount
            )
        )

    @property
    def _database(self) -> MigratedDatabase:
        from farm.store.backends import PostgresBackend, SqliteBackend
        from farm.store.database import MigratedDatabase

        place = SqliteBackend(self.path) if self.path else PostgresBackend(self._url)
        return MigratedDatabase(
            place, "the record of runs", "runs", _tables()[0].metadata, _MIGRATIONS
        )

    def _directly(self, begin: str, do: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of a transaction without SQLAlchemy; None if this is not possible."""
        if self.path is None:
            return None
        return sqlite_file.transact(self.path, 1 + len(_MIGRATIONS), begin, do)

    def _whole(self, query: Select[Any]) -> list[Run]:
        """Return the runs of a query, with their samples."""
        runs, _ = _tables()
        rows = self._ask(query.with_only_columns(runs.c.seconds, runs.c.body))
        return [self._with_samples(self._parsed(body), seconds) for seconds, body in rows]

    def _ask(self, query: Select[Any]) -> Sequence[Any]:
        """Return the rows of a query; none if the file does not exist."""
        return (
            self._database.ask(lambda db: db.execute(query).all())
            if self.path is None or self.path.exists()
            else []
        )

    def _parsed(self, body: str) -> Run:
        try:
            return run_from_json(_content(body))
        except ValueError as exc:
            raise self._database.error(f"malformed row: {exc}") from exc

    def _with_samples(self, run: Run, seconds: bytes) -> Run:
        try:
            samples = unpack_samples(seconds)
        except ValueError as exc:
            raise self._database.error(f"malformed row: {exc}") from exc
        return (
            dataclasses.replace(run, samples=dataclasses.replace(run.samples, seconds=samples))
            if run.samples
            else run
        )


def has_postgres_scheme(text: str) -> bool:
    """Return whether the text has the scheme of a PostgreSQL URL."""
    return text.partition("://")[0] in SCHEMES


def _newest_first(runs: Table) -> tuple[ColumnElement[Any], ...]:
    return runs.c.started_at.desc(), runs.c.number.desc()


def _content(body: str) -> Any:
    # takes a third of json's time, which matters for thousands of runs
    from pydantic_core import from_json

    try:
        return from_json(body)
    except ValueError:
        return json.loads(body)  # json accepts lone surrogates, which names of files may contain


def _row(run: Run) -> dict[str, str | bytes]:
    """Return the row of a run: the samples are stored apart from its JSON."""
    body = run_to_json(run)
    seconds: tuple[float, ...] = ()
    if run.samples:
        seconds, body["samples"]["seconds"] = run.samples.seconds, []
    return {
        **{name: getattr(run, name) for name in ("id", "started_at", "device", "model")},
        "seconds": pack_samples(seconds),
        "body": json.dumps(body, allow_nan=False),
    }
