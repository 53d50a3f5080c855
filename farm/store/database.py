"""Transactions on a database that several farm processes may use concurrently, by SQLAlchemy Core.

The database is a file or on a server, see `backends`. Its tables are created on first use, and
migrated if an older farm created them. Database errors become FarmErrors.

Importing SQLAlchemy takes a quarter of a second: only modules that use a database import this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import BigInteger, Connection, Dialect, Integer, MetaData, Text, TypeDecorator
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from farm.errors import FarmError, NoSpaceError
from farm.processes.deadline import Deadline
from farm.store import sqlite_file
from farm.store.backends import PostgresBackend, SqliteBackend

T = TypeVar("T")
# Time limits of retries: a server's restart takes some seconds, its recovery after a crash longer.
ASK_S, CHANGE_S = 5.0, 60.0
_PAUSE_S = 0.1

# SQLite assigns only keys of type INTEGER automatically.
ROW_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


class CodePointText(TypeDecorator[str]):
    """Arbitrary text, sorted by code point.

    Databases reject lone surrogates, which a file's name may contain, and PostgreSQL rejects NUL:
    both are stored as backslash escapes.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        """Return the column's type; PostgreSQL needs collation "C" to sort by code point."""
        return Text(collation="C" if dialect.name == "postgresql" else None)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the text with unsupported characters replaced by backslash escapes.

        They are lone surrogates, and for PostgreSQL also NUL.
        """
        if value is None:
            return None
        value = sqlite_file.storable_text(value)
        return value.replace("\0", "\\x00") if dialect.name == "postgresql" else value


@dataclass(frozen=True, slots=True)
class MigratedDatabase:
    """A database at `place`, with its tables and their migrations.

    `title` names the database in errors, and `what` names its content. `tables` is the newest
    version of the tables. Each of `migrations` takes the tables of an older farm one version
    further, starting from version 1.
    """

    place: SqliteBackend | PostgresBackend
    title: str
    what: str
    tables: MetaData
    migrations: tuple[Callable[[Connection], None], ...] = ()

    @property
    def version(self) -> int:
        """The version of `tables`, counted from 1."""
        return 1 + len(self.migrations)

    def ask(self, do: Callable[[Connection], T]) -> T:
        """Return the result of a query, which sees the database at one moment. Raises FarmError."""
        return self._try(do, sqlite_file.ASK, ASK_S)

    def change(self, do: Callable[[Connection], T]) -> T:
        """Make a change and return its result: atomic, and on disk at return. Raises FarmError.

        It is retried while a server is unreachable, for example during a restart, so that no
        measurement is lost. `do` must therefore be idempotent: the connection may break after the
        commit but before the acknowledgement, and then `do` runs again.
        """
        return self._try(do, sqlite_file.CHANGE, CHANGE_S)

    def error(self, why: str) -> FarmError:
        """Return the FarmError for this reason, with the first remedy whose text occurs in it."""
        said = " ".join(why.split())
        remedy = next(remedy for sign, remedy in self.place.remedies if sign in said)
        return FarmError(
            f"{self.title} cannot be used",
            f"{self.place.shown}: {said}",
            remedy.format(place=self.place.shown, what=self.what),
        )

    def full_error(self, why: str) -> FarmError | None:
        """Return the error of a full disk, if this reason is one."""
        if not self.place.is_full(why):
            return None
        plain = why if "full" in why or "No space" in why else f"the disk is full ({why})"
        return NoSpaceError(*self.error(plain).parts())

    def _try(self, do: Callable[[Connection], T], begin: str, patience_s: float) -> T:
        """Run `do` in a transaction; retry transient errors for `patience_s` seconds."""
        deadline = Deadline(patience_s)
        while True:
            try:
                with self._begun(begin) as db:
                    if self.place.version(db) == self.version:
                        return do(db)
                self._make()
            except DBAPIError as exc:
                if not self.place.passes(exc) or deadline.expired:
                    raise self.full_error(str(exc.orig)) or self.error(str(exc.orig)) from exc
                time.sleep(_PAUSE_S)
            except OSError as exc:
                raise self.full_error(str(exc)) or self.error(str(exc)) from exc

    def _make(self) -> None:
        """Create or migrate the tables; one farm at a time."""
        with self._begun(sqlite_file.CHANGE) as db:
            self.place.lock(db, self.title)
            if (version := self.place.version(db)) > self.version:
                raise FarmError(
                    f"{self.place.shown} was written by a newer farm",
                    f"its schema is version {version}, this farm knows {self.version}",
                    f"install a newer farm, or keep {self.what} elsewhere: {self.place.elsewhere}",
                )
            if version == 0:
                self.tables.create_all(db, checkfirst=False)
            else:
                # none if another process was faster
                for migration in self.migrations[version - 1 :]:
                    migration(db)
            self.place.set_version(db, self.version)

    def _begun(self, begin: str) -> AbstractContextManager[Connection]:
        """Return a transaction that starts with the statement `begin`."""
        return self.place.engine().execution_options(begin=begin).begin()
