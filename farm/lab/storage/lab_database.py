"""Keep leases, reservations, events, use and sessions of a lab in SQLite or PostgreSQL.

The tables themselves refuse to lend a board twice. One server at a time may write: each takes the
tables over as it starts, and a server that finds them taken over ends.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError
from farm.lab.board_records import FORGOTTEN_S, BoardRecord, record_from_json, record_to_json
from farm.lab.entities import Event, Lease, LeaseBoardPeriod, LeaseState, Reservation
from farm.lab.scheduling.reservations import LATELY_S
from farm.lab.scheduling.scheduler_changes import MOST_ENDED, RestoredState, SchedulerChanges
from farm.lab.shared_places import person_of
from farm.lab.storage.entity_json import (
    event_from_json,
    lease_from_json,
    lease_to_json,
    reservation_from_json,
    reservation_to_json,
)
from farm.store.upsert import insert_new, insert_or_replace
from farm.types.postgres_url import is_postgres_url

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Connection, Select, Table

    from farm.store.database import MigratedDatabase

_VERSIONS = "farm_lab_schema"
_THE_SERVER = 1
_MOST_PRUNED = 500  # rows of a table at once
_MOST_OF_ONE = 20_000  # leases, reservations and sessions that are kept of one person
_MOST_EVENTS_OF_ONE = 100_000
_PERSONS = 50  # who may have so many; of more, the oldest are removed, whosever


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session of a board that has ended: of whom, for which lease (None: an implicit one)."""

    board: str
    kind: str
    owner: str
    since: float
    until: float
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class BoardUsePeriod:
    """How long an owner had a board: by a lease, or for a session without one.

    No end: it still has.
    """

    board: str
    kind: str
    owner: str
    since: float
    until: float | None
    lease: int | None


@dataclass(slots=True)
class LabDatabaseBatch:
    """What is kept by one transaction."""

    leases: dict[int, Lease] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    sessions: list[EndedSession] = field(default_factory=list)
    taken: list[LeaseBoardPeriod] = field(default_factory=list)
    boards: dict[str, BoardRecord] = field(default_factory=dict)

    def add(self, later: SchedulerChanges | LabDatabaseBatch) -> None:
        """Add what has changed; of a lease that changed twice, the last state counts."""
        self.leases.update(later.leases)
        self.reservations.update(later.reservations)
        self.events += later.events
        self.kinds += later.kinds
        self.used.update(later.used)
        self.taken += later.taken

    def follow(self, later: LabDatabaseBatch) -> None:
        """Add what has changed after this batch."""
        self.add(later)
        self.sessions += later.sessions
        self.boards.update(later.boards)

    @property
    def durable(self) -> bool:
        """Whether somebody waits for it to be kept."""
        return bool(self.leases or self.reservations)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not (
            self.leases
            or self.reservations
            or self.events
            or self.kinds
            or self.used
            or self.sessions
            or self.taken
            or self.boards
        )


@dataclass(frozen=True, slots=True)
class _Tables:
    server: Table
    leases: Table
    holdings: Table
    events: Table
    usage: Table
    kinds: Table
    sessions: Table
    boards: Table
    reservations: Table


@functools.cache
def _tables() -> _Tables:
    """Return the tables of version 4."""
    from sqlalchemy import Column, Double, Index, Integer, MetaData, Table

    from farm.store.database import ROW_NUMBER, CodePointText

    known = MetaData()

    def number() -> Column[int]:
        return Column("number", ROW_NUMBER, primary_key=True, autoincrement=False)

    def texts(*names: str, key: bool = False) -> list[Column[str]]:
        return [Column(name, CodePointText, nullable=False, primary_key=key) for name in names]

    def times(*names: str, key: bool = False) -> list[Column[float]]:
        return [Column(name, Double, nullable=False, primary_key=key) for name in names]

    server = Table(
        "lab_server",
        known,
        Column("id", Integer, primary_key=True, autoincrement=False),
        *texts("holder"),
    )
    ended_at = Column("ended_at", Double)
    leases = Table(
        "lab_leases",
        known,
        number(),
        *texts("owner", "kind", "state"),
        *times("asked_at"),
        ended_at,
        *texts("body"),
    )
    Index(
        "lab_leases_live",
        leases.c.number,
        sqlite_where=leases.c.ended_at.is_(None),
        postgresql_where=leases.c.ended_at.is_(None),
    )
    lease, until = (
        Column("lease", ROW_NUMBER, primary_key=True, autoincrement=False),
        Column("until", Double),
    )
    holdings = Table(
        "lab_holdings", known, lease, *texts("board", key=True), *times("since"), until
    )
    open_ones = holdings.c.until.is_(None)
    Index(
        "lab_a_board_is_lent_once",
        holdings.c.board,
        unique=True,
        sqlite_where=open_ones,
        postgresql_where=open_ones,
    )
    events = Table("lab_events", known, number(), *times("at"), *texts("body"), _who())
    Index("lab_events_by_person", events.c.who, events.c.number)
    Index("lab_leases_by_owner", leases.c.owner, leases.c.number)
    return _Tables(
        server,
        leases,
        holdings,
        events,
        Table("lab_usage", known, *texts("owner", key=True), *times("board_s", "at")),
        Table("lab_kinds", known, *texts("kind", key=True)),
        Table(
            "lab_sessions",
            known,
            *texts("board", key=True),
            *times("since", key=True),
            *times("until"),
            *texts("kind", "owner"),
            Column("lease", ROW_NUMBER),
        ),
        Table("lab_boards", known, *texts("board", key=True), *times("seen_at"), *texts("body")),
        Table(
            "lab_reservations",
            known,
            number(),
            *texts("owner", "kind", "state"),
            *times("starts_at"),
            Column("ended_at", Double),
            *texts("body"),
        ),
    )


def _who() -> Column[str]:
    from sqlalchemy import Column

    from farm.store.database import CodePointText

    return Column("who", CodePointText, nullable=False, server_default="")


def _add_boards(db: Connection) -> None:
    """Take the tables from version 1 to 2: those of the first labs know nothing of boards."""
    _tables().boards.create(db)


def _add_reservations(db: Connection) -> None:
    """Take the tables from version 2 to 3."""
    _tables().reservations.create(db)


def _add_persons(db: Connection) -> None:
    """Take the tables from version 3 to 4: of older events it is not known whose they are."""
    from sqlalchemy.schema import CreateColumn

    its = _tables()
    column = CreateColumn(its.events.c.who).compile(dialect=db.dialect)
    db.exec_driver_sql(f"ALTER TABLE lab_events ADD COLUMN {column}")
    for table, name in ((its.events, "lab_events_by_person"), (its.leases, "lab_leases_by_owner")):
        next(one for one in table.indexes if one.name == name).create(db)


class LabDatabase:
    """The tables of a lab, in a file or on a server."""

    def __init__(self, place: Path | str) -> None:
        self._place = place
        self._holder = secrets.token_hex(16)

    def open(self) -> RestoredState:
        """Take the tables over from an earlier server, and return what it kept.

        Raises FarmError.
        """
        return self._database.change(self._take_over)

    def write(self, batch: LabDatabaseBatch) -> None:
        """Keep a batch: all of it, on disk at return.

        Raises FarmError, also if it was taken over.
        """
        self._database.change(lambda db: self._write(db, batch))

    def prune(self, before: float) -> int:
        """Remove leases, sessions, events and the like from before a time; return how many.

        Some at once, and also of whom too many are kept: nobody fills the disk. The newest lease,
        reservation and event stay: their numbers must not be used again.
        """
        return self._database.change(lambda db: self._prune(db, before))

    def oldest_event(self) -> int:
        """Return the number of the oldest event that is kept; 0 if there is none."""
        from sqlalchemy import func

        table = _tables().events
        query = table.select().with_only_columns(func.min(table.c.number))
        return self._database.ask(lambda db: db.scalar(query)) or 0

    def events(self, since: int, most: int) -> list[Event]:
        """Return the events after a number, the oldest first."""
        table = _tables().events
        query = table.select().where(table.c.number > since).order_by(table.c.number).limit(most)
        rows = self._database.ask(
            lambda db: list(db.execute(query.with_only_columns(table.c.body)).scalars())
        )
        return [event_from_json(json.loads(body)) for body in rows]

    def stretches(self, since: float, most: int, board: str | None = None) -> list[BoardUsePeriod]:
        """Return who had which board after a time, the newest first.

        `most` leases and sessions of each sort.
        """
        its = _tables()
        held, of, ran = its.holdings, its.leases, its.sessions
        held_by = held.join(of, held.c.lease == of.c.number).select()
        held_by = held_by.with_only_columns(
            held.c.board, of.c.kind, of.c.owner, held.c.since, held.c.until, held.c.lease
        )
        held_by = held_by.where(held.c.until.is_(None) | (held.c.until > since))
        alone = ran.select().where(ran.c.until > since, ran.c.lease.is_(None))
        alone = alone.with_only_columns(
            ran.c.board, ran.c.kind, ran.c.owner, ran.c.since, ran.c.until, ran.c.lease
        )
        if board is not None:
            held_by, alone = held_by.where(held.c.board == board), alone.where(ran.c.board == board)
        found = self._database.ask(
            lambda db: [
                *db.execute(held_by.order_by(held.c.since.desc()).limit(most)),
                *db.execute(alone.order_by(ran.c.since.desc()).limit(most)),
            ]
        )
        return sorted((BoardUsePeriod(*row) for row in found), key=lambda one: -one.since)

    @property
    def _database(self) -> MigratedDatabase:
        from farm.store.backends import PostgresBackend, SqliteBackend
        from farm.store.database import MigratedDatabase

        on_server = isinstance(self._place, str) and is_postgres_url(self._place)
        place = (
            PostgresBackend(str(self._place), _VERSIONS)
            if on_server
            else SqliteBackend(Path(self._place))
        )
        tables = _tables().server.metadata
        migrations = (_add_boards, _add_reservations, _add_persons)
        return MigratedDatabase(place, "the record of the lab", "leases", tables, migrations)

    def _take_over(self, db: Connection) -> RestoredState:
        from sqlalchemy import func

        its = _tables()
        insert_or_replace(db, its.server, [{"id": _THE_SERVER, "holder": self._holder}])
        leases, events = its.leases, its.events
        ended_at = leases.c.ended_at
        live = leases.select().where(ended_at.is_(None)).order_by(leases.c.number)
        ended = (
            leases.select()
            .where(ended_at.is_not(None))
            .order_by(leases.c.number.desc())
            .limit(MOST_ENDED)
        )
        return RestoredState(
            [_lease(row.body) for row in db.execute(live)],
            [_lease(row.body) for row in db.execute(ended)][::-1],
            list(db.execute(its.kinds.select()).scalars()),
            {row.owner: (row.board_s, row.at) for row in db.execute(its.usage.select())},
            1 + (db.scalar(leases.select().with_only_columns(func.max(leases.c.number))) or 0),
            1 + (db.scalar(events.select().with_only_columns(func.max(events.c.number))) or 0),
            self._boards(db),
            *self._reservations(db),
        )

    def _reservations(self, db: Connection) -> tuple[list[Reservation], int]:
        """Return the reservations that are not over or had boards lately, and a new number."""
        from sqlalchemy import func

        table = _tables().reservations
        ended_at = table.c.ended_at
        lately = ended_at.is_(None) | (ended_at > time.time() - LATELY_S)
        rows = db.execute(table.select().where(lately).order_by(table.c.number))
        known = [reservation_from_json(json.loads(row.body)) for row in rows]
        found = [one for one in known if not one.state.over or one.lease is not None]
        newest = db.scalar(table.select().with_only_columns(func.max(table.c.number))) or 0
        return found, 1 + newest

    def _boards(self, db: Connection) -> list[BoardRecord]:
        """Return what is kept of the boards; those that nobody has seen for long are forgotten."""
        table = _tables().boards
        db.execute(table.delete().where(table.c.seen_at < time.time() - FORGOTTEN_S))
        rows = db.execute(table.select().order_by(table.c.seen_at))
        return [record_from_json(json.loads(row.body)) for row in rows]

    def _prune(self, db: Connection, before: float) -> int:
        from sqlalchemy import func, select

        its, removed = _tables(), 0
        self._ensure_ours(db)
        leases, events, sessions = its.leases, its.events, its.sessions
        reservations = its.reservations
        for table, ended in (
            (leases, leases.c.ended_at),
            (reservations, reservations.c.ended_at),
            (events, events.c.at),
        ):
            newest = db.scalar(select(func.max(table.c.number))) or 0
            old = select(table.c.number).where(ended < before, table.c.number < newest)
            numbers = list(db.execute(old.order_by(table.c.number).limit(_MOST_PRUNED)).scalars())
            whose = table.c.who if table is events else table.c.owner
            most = _MOST_EVENTS_OF_ONE if table is events else _MOST_OF_ONE
            over = (ended.is_not(None), table.c.number < newest)
            numbers += [
                row.number
                for row in _too_many(db, select(table.c.number), whose, table.c.number, most, over)
            ]
            if table is leases:
                db.execute(its.holdings.delete().where(its.holdings.c.lease.in_(numbers)))
            db.execute(table.delete().where(table.c.number.in_(numbers)))
            removed += len(numbers)
        rows = list(
            db.execute(
                select(sessions.c.board, sessions.c.since)
                .where(sessions.c.until < before)
                .limit(_MOST_PRUNED)
            )
        )
        of_session = select(sessions.c.board, sessions.c.since)
        rows += _too_many(db, of_session, sessions.c.owner, sessions.c.until, _MOST_OF_ONE)
        for board, since in rows:
            db.execute(
                sessions.delete().where(sessions.c.board == board, sessions.c.since == since)
            )
        return removed + len(rows)

    def _ensure_ours(self, db: Connection) -> None:
        """Raise FarmError if another server has taken the tables over."""
        its = _tables()
        ours = its.server.update().where(
            its.server.c.id == _THE_SERVER, its.server.c.holder == self._holder
        )
        if db.execute(ours, {"holder": self._holder}).rowcount != 1:
            why = "there can be one for a record of leases, and the one that started last has it"
            raise FarmError(
                "another lab server has taken over",
                why,
                "stop one of them, or give it a store of its own",
            )

    def _write(self, db: Connection, batch: LabDatabaseBatch) -> None:
        its = _tables()
        self._ensure_ours(db)
        insert_or_replace(db, its.leases, [_row(lease) for lease in batch.leases.values()])
        insert_or_replace(
            db, its.reservations, [_reservation_row(one) for one in batch.reservations.values()]
        )
        insert_or_replace(db, its.holdings, [dataclasses.asdict(one) for one in batch.taken])
        holdings = [row for lease in batch.leases.values() for row in _holdings(lease)]
        insert_or_replace(
            db, its.holdings, [row for row in holdings if row["until"] is not None]
        )  # given back, before lent again
        insert_or_replace(db, its.holdings, [row for row in holdings if row["until"] is None])
        insert_new(
            db,
            its.events,
            [
                {
                    "number": one.number,
                    "at": one.at,
                    "body": json.dumps(dataclasses.asdict(one)),
                    "who": one.who,
                }
                for one in batch.events
            ],
        )
        insert_new(db, its.kinds, [{"kind": kind} for kind in dict.fromkeys(batch.kinds)])
        insert_or_replace(
            db,
            its.usage,
            [
                {"owner": owner, "board_s": board_s, "at": at}
                for owner, (board_s, at) in batch.used.items()
            ],
        )
        insert_new(db, its.sessions, _sessions(batch.sessions))
        insert_or_replace(
            db,
            its.boards,
            [
                {"board": name, "seen_at": one.seen_at, "body": json.dumps(record_to_json(one))}
                for name, one in batch.boards.items()
            ],
        )


def _too_many(
    db: Connection,
    rows: Select[Any],
    whose: ColumnElement[str],
    age: ColumnElement[Any],
    most: int,
    may_go: Sequence[ColumnElement[bool]] = (),
) -> list[Any]:
    """Return the oldest rows, some at once, of people of whom too many are kept."""
    from sqlalchemy import func, select

    counts: Counter[str] = Counter()
    for name, count in db.execute(select(whose, func.count()).group_by(whose)):
        counts[person_of(name)] += count
    over = [
        (rows.where(_is_of(whose, person)), count - most)
        for person, count in counts.items()
        if count > most
    ]
    if not over:
        over = [(rows, counts.total() - _PERSONS * most)]
    found: list[Any] = []
    for some, excess in over:
        left = min(excess, _MOST_PRUNED - len(found))
        if left > 0:
            found += db.execute(some.where(*may_go).order_by(age).limit(left)).all()
    return found


def _is_of(whose: ColumnElement[str], person: str) -> ColumnElement[bool]:
    """Return whether a name is a person's, who may have very many: see `person_of`."""
    from sqlalchemy import and_

    if person_of(f"{person}0") != person:
        return whose == person
    return and_(whose >= person, whose < f"{person}\U0010ffff")  # names sort by code point


def _lease(body: str) -> Lease:
    return lease_from_json(json.loads(body))


def _row(lease: Lease) -> dict[str, Any]:
    shown = {
        "number": lease.number,
        "owner": lease.request.owner,
        "kind": lease.request.kind,
        "state": lease.state.value,
    }
    return {
        **shown,
        "asked_at": lease.asked_at,
        "ended_at": lease.ended_at,
        "body": json.dumps(lease_to_json(lease)),
    }


def _reservation_row(reservation: Reservation) -> dict[str, Any]:
    return {
        "number": reservation.number,
        "owner": reservation.request.owner,
        "kind": reservation.request.kind,
        "state": reservation.state.value,
        "starts_at": reservation.request.starts_at,
        "ended_at": reservation.ended_at,
        "body": json.dumps(reservation_to_json(reservation)),
    }


def _holdings(lease: Lease) -> list[dict[str, Any]]:
    if lease.state is LeaseState.QUEUED:
        return []
    return [
        {
            "lease": lease.number,
            "board": board,
            "since": lease.given_at.get(board, lease.granted_at),
            "until": lease.ended_at,
        }
        for board in lease.boards
    ]


def _sessions(sessions: Sequence[EndedSession]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(one) for one in sessions]
