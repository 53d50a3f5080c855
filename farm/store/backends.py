"""The two kinds of database: a SQLite file, or a PostgreSQL server.

PostgreSQL needs psycopg, from `tvm-farm[postgresql]`. Both open a new connection for each
transaction: this is cheap, and safe if the process forks.
"""

from __future__ import annotations

import functools
import os
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    NullPool,
    Table,
    create_engine,
    event,
    func,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from farm import ownership
from farm.errors import FarmError, UsageError
from farm.store import sqlite_file
from farm.types.postgres_url import FORM, parse_postgres_url

BUSY_S = 30.0
_FULL = ("database or disk is full", "No space left", "quota exceeded")
_NO_SPACE_BYTES = 1 << 20

# Give up a connection to a silent server after about 30 s
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_TIMEOUTS = "-c statement_timeout=60000 -c lock_timeout=60000"  # ms


@dataclass(frozen=True, slots=True)
class SqliteBackend:
    """A SQLite file; the version of its tables is SQLite's user_version."""

    path: Path

    elsewhere: ClassVar[str] = "export FARM_DATA=/path"
    # (text in the error of SQLite or of the system, remedy); the first match counts
    remedies: ClassVar[tuple[tuple[str, str], ...]] = (
        ("locked", "another farm is writing all the time; try again when it has ended"),
        (
            "full",
            "free space on the disk of {place}, or keep {what} elsewhere: export FARM_DATA=/path",
        ),
        (
            "No space",
            "free space on the disk of {place}, or keep {what} elsewhere: export FARM_DATA=/path",
        ),
        ("malformed", "move it away, and a new one is begun: mv {place} {place}.broken"),
        ("not a database", "move it away, and a new one is begun: mv {place} {place}.broken"),
        (
            "",
            (
                "make {place} and its folder readable and writable, or keep {what} elsewhere: "
                "export FARM_DATA=/path"
            ),
        ),
    )

    @property
    def shown(self) -> str:
        """The database's name in error messages: its path."""
        return str(self.path)

    def engine(self) -> Engine:
        """Return the engine of the file; create its folder and files readable by this user only.

        Files that an older farm created are made private now.
        """
        ownership.make_private_folder(self.path.parent)
        sqlite_file.make_private(self.path)
        return _file_engine(self.path)

    def version(self, db: Connection) -> int:
        """Return the version of the tables; 0 if there are none yet."""
        return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())

    def set_version(self, db: Connection, version: int) -> None:
        """Store the version of the tables."""
        db.exec_driver_sql(f"PRAGMA user_version = {version:d}")

    def lock(self, db: Connection, title: str) -> None:
        """Do nothing: BEGIN IMMEDIATE already holds the write lock."""

    def passes(self, error: DBAPIError) -> bool:
        """Return whether the error is transient, so that the transaction is to be retried.

        SQLite does not apply its busy timeout to the switch to a write-ahead log.
        """
        return "locked" in str(error.orig)

    def is_full(self, why: str) -> bool:
        """Return whether an error is that of a full disk.

        SQLite calls it an error of input and output where it makes a file beside the database.
        """
        if any(sign in why for sign in _FULL):
            return True
        try:
            disk = os.statvfs(self.path.parent)
        except OSError:
            return False
        is_vague = any(sign in why for sign in ("disk I/O error", "unable to open database file"))
        return is_vague and disk.f_bavail * disk.f_frsize < _NO_SPACE_BYTES


@dataclass(frozen=True, slots=True)
class PostgresBackend:
    """A PostgreSQL server; the version of its tables is stored in a table with one row.

    Contents that share a database have each a table of their own for it, named `versions`.
    """

    url: str = field(repr=False)
    versions: str = "farm_schema"

    elsewhere: ClassVar[str] = "--store"
    # (text in the error of psycopg or of the server, remedy); the first match counts
    remedies: ClassVar[tuple[tuple[str, str], ...]] = (
        ("password", "give the password in ~/.pgpass, or as PGPASSWORD"),
        ("no pg_hba.conf entry", "let this machine in, in the server's pg_hba.conf"),
        (
            "does not exist",
            "make the role and the database: createuser NAME, createdb --owner NAME farm",
        ),
        ("translate host name", "name a server that is known here"),
        ("permission denied", "let the role make tables: GRANT CREATE ON SCHEMA public TO NAME"),
        ("No space left", "free space on the server's disk"),
        ("", "see that the server runs, and that it can be reached from here: psql {place}"),
    )

    @property
    def shown(self) -> str:
        """The database's name in error messages: its URL without secrets."""
        try:
            return parse_postgres_url(self.url).shown
        except ValueError:
            return "postgresql://..."

    def engine(self) -> Engine:
        """Return the engine of the server.

        Raises FarmError if psycopg cannot be imported, UsageError for a malformed URL.
        """
        return _server_engine(self.url)

    def version(self, db: Connection) -> int:
        """Return the version of the tables; 0 if there are none yet."""
        table = _version_table(self.versions)
        return db.scalar(select(table.c.version)) or 0 if inspect(db).has_table(table.name) else 0

    def set_version(self, db: Connection, version: int) -> None:
        """Store the version of the tables."""
        table = _version_table(self.versions)
        table.create(db, checkfirst=True)
        db.execute(table.delete())
        db.execute(table.insert(), {"version": version})

    def lock(self, db: Connection, title: str) -> None:
        """Hold an advisory lock until the transaction ends.

        With it only one farm at a time creates or migrates tables.
        """
        db.execute(select(func.pg_advisory_xact_lock(func.hashtext(title))))

    def is_full(self, why: str) -> bool:
        """Return whether an error is that of a full disk."""
        return any(sign in why for sign in _FULL)

    def passes(self, error: DBAPIError) -> bool:
        """Return whether the error is transient, so that the transaction is to be retried.

        The server was reachable and may be again: it is shutting down, starting or recovering, has
        no free connection, or dropped ours.
        """
        if not isinstance(error, (OperationalError, InterfaceError)):
            return False
        if state := getattr(error.orig, "sqlstate", None):
            return str(state).startswith(("08", "57P", "53300"))
        return not any(sign in str(error.orig) for sign, _ in self.remedies if sign)


@functools.cache
def _version_table(name: str) -> Table:
    return Table(name, MetaData(), Column("version", Integer, nullable=False))


def malformed_postgres_url_error() -> UsageError:
    """Return the error for a malformed URL, without any part of the URL, which may be secret."""
    fix = (
        f"{FORM}, and the password in ~/.pgpass; signs such as @ and / in a part of it are "
        "written %40 and %2F"
    )
    return UsageError(
        "the url of the PostgreSQL database is not understood",
        "it is not shown: a password may be in it",
        fix,
    )


@functools.cache
def _file_engine(path: Path) -> Engine:
    """Return the engine of a SQLite file; its transactions use write-ahead logging."""
    # isolation_level=None: SQLAlchemy controls the transactions
    connect = functools.partial(sqlite3.connect, path, timeout=BUSY_S, isolation_level=None)
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(db: Connection) -> None:
        # with it readers never wait for writers
        db.exec_driver_sql("PRAGMA journal_mode = WAL").close()
        db.exec_driver_sql(db.get_execution_options()["begin"])

    return engine


@functools.cache
def _server_engine(url: str) -> Engine:
    """Return the engine of a PostgreSQL server, with limits for silent connections."""
    try:
        import psycopg
    except ImportError as exc:
        why = "psycopg is not installed" if isinstance(exc, ModuleNotFoundError) else str(exc)
        raise FarmError(
            "PostgreSQL cannot be used", why, "pip install 'tvm-farm[postgresql]'"
        ) from exc
    try:
        parse_postgres_url(url)
        # libpq's own parser; its errors quote their input, therefore they are not shown
        parameters = psycopg.conninfo.conninfo_to_dict(url)
    except (psycopg.Error, ValueError):
        raise malformed_postgres_url_error() from None
    settings: dict[str, Any] = {"application_name": "farm", **parameters, **_PATIENCE}
    # Of two options the last counts: what the URL sets, such as a search_path, has precedence
    settings["options"] = f"{_TIMEOUTS} {parameters.get('options') or ''}".rstrip()
    connect = functools.partial(psycopg.connect, **settings)
    return create_engine(
        "postgresql+psycopg://", creator=connect, poolclass=NullPool, use_native_hstore=False
    )
