"""Where a database is: in a SQLite file, or on a PostgreSQL server, which needs psycopg, of `tvm-farm[postgresql]`.

Both give connections for one piece of work each: cheap, and safe whatever forks meanwhile.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, NullPool, Table, create_engine, event, func, inspect, select
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from farm.errors import FarmError

BUSY_S = 30.0

# A connection to a server that says nothing is given up after about half a minute, a statement or a lock after one.
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "options": "-c statement_timeout=60000 -c lock_timeout=60000",
    "application_name": "farm",
}
_VERSION = Table("farm_schema", MetaData(), Column("version", Integer, nullable=False))


@dataclass(frozen=True, slots=True)
class File:
    """Knows its tables' version as SQLite's user_version."""

    path: Path

    elsewhere: ClassVar[str] = "export FARM_DATA=/path"
    # What SQLite or the system says, and what to do about it; the first that fits.
    remedies: ClassVar[tuple[tuple[str, str], ...]] = (
        ("locked", "another farm is writing all the time; try again when it has ended"),
        ("full", "free space on the disk of {place}, or keep {what} elsewhere: export FARM_DATA=/path"),
        ("No space", "free space on the disk of {place}, or keep {what} elsewhere: export FARM_DATA=/path"),
        ("malformed", "move it away, and a new one is begun: mv {place} {place}.broken"),
        ("not a database", "move it away, and a new one is begun: mv {place} {place}.broken"),
        ("", "make {place} and its folder readable and writable, or keep {what} elsewhere: export FARM_DATA=/path"),
    )

    @property
    def shown(self) -> str:
        return str(self.path)

    def engine(self) -> Engine:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return _file_engine(self.path)

    def version(self, db: Connection) -> int:
        return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())

    def set_version(self, db: Connection, version: int) -> None:
        db.exec_driver_sql(f"PRAGMA user_version = {version:d}")

    def lock(self, db: Connection, title: str) -> None:
        """BEGIN IMMEDIATE has."""

    def passes(self, error: DBAPIError) -> bool:
        """SQLite does not apply its busy timeout to the switch to a write-ahead log."""
        return "locked" in str(error.orig)


@dataclass(frozen=True, slots=True)
class Server:
    """Knows its tables' version in a table of one row."""

    url: str

    elsewhere: ClassVar[str] = "--store"
    # What psycopg or the server says, and what to do about it; the first that fits.
    remedies: ClassVar[tuple[tuple[str, str], ...]] = (
        ("password", "give the password in ~/.pgpass, or as PGPASSWORD"),
        ("no pg_hba.conf entry", "let this machine in, in the server's pg_hba.conf"),
        ("does not exist", "make the role and the database: createuser NAME, createdb --owner NAME farm"),
        ("translate host name", "name a server that is known here"),
        ("permission denied", "let the role make tables: GRANT CREATE ON SCHEMA public TO NAME"),
        ("No space left", "free space on the server's disk"),
        ("", "see that the server runs, and that it can be reached from here: psql {place}"),
    )

    @property
    def shown(self) -> str:
        """The url without its password."""
        return re.sub(r"(//[^:/@]*):[^@]*@", r"\1@", re.sub(r"(password=)[^&\s]*", r"\1...", self.url))

    def engine(self) -> Engine:
        return _server_engine(self.url)

    def version(self, db: Connection) -> int:
        return db.scalar(select(_VERSION.c.version)) or 0 if inspect(db).has_table(_VERSION.name) else 0

    def set_version(self, db: Connection, version: int) -> None:
        _VERSION.create(db, checkfirst=True)
        db.execute(_VERSION.delete())
        db.execute(_VERSION.insert(), {"version": version})

    def lock(self, db: Connection, title: str) -> None:
        db.execute(select(func.pg_advisory_xact_lock(func.hashtext(title))))

    def passes(self, error: DBAPIError) -> bool:
        """Whether the server was there and may be again: it ends, starts, recovers, has no connection to spare, or dropped ours."""
        if not isinstance(error, (OperationalError, InterfaceError)):
            return False
        if state := getattr(error.orig, "sqlstate", None):
            return str(state).startswith(("08", "57P", "53300"))
        return not any(sign in str(error.orig) for sign, _ in self.remedies if sign)


@functools.cache
def _file_engine(path: Path) -> Engine:
    connect = functools.partial(sqlite3.connect, path, timeout=BUSY_S, isolation_level=None)  # which leaves transactions to SQLAlchemy
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(db: Connection) -> None:
        db.exec_driver_sql("PRAGMA journal_mode = WAL").close()  # readers then never wait for writers
        db.exec_driver_sql(db.get_execution_options()["begin"])

    return engine


@functools.cache
def _server_engine(url: str) -> Engine:
    try:
        import psycopg
    except ImportError as exc:
        why = "psycopg is not installed" if isinstance(exc, ModuleNotFoundError) else str(exc)
        raise FarmError("PostgreSQL cannot be used", why, "pip install 'tvm-farm[postgresql]'") from exc
    connect = functools.partial(psycopg.connect, url, **_PATIENCE)  # which knows every url of PostgreSQL's own
    return create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool, use_native_hstore=False)
