"""A database that several farms may use at once, a file or on a server (see `places`), by SQLAlchemy Core: its tables are made when it is
first used, and brought up to date where an older farm made them; its errors are ours.

SQLAlchemy takes a quarter of a second to load: only what uses a database imports this module.
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

from farm.deadline import Deadline
from farm.errors import FarmError
from farm.store.places import File, Server

T = TypeVar("T")
ASK_S, CHANGE_S = 5.0, 60.0  # a server's restart takes some seconds, its recovery after a crash longer
_PAUSE_S = 0.1
_CHANGE = "BEGIN IMMEDIATE"  # of SQLite: then writers wait for each other before they have read

NUMBER = BigInteger().with_variant(Integer(), "sqlite")  # whose only key that counts by itself is an INTEGER


class Name(TypeDecorator[str]):
    """Text that is any: databases take no lone surrogates, which a file's name may hold, and PostgreSQL no NUL. Sorted by code point."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        return Text(collation="C" if dialect.name == "postgresql" else None)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        value = value.encode("utf-8", "backslashreplace").decode()
        return value.replace("\0", "\\x00") if dialect.name == "postgresql" else value


@dataclass(frozen=True, slots=True)
class Database:
    """The database at `place`: `title` and `what` name it and what it holds in errors; each of `migrations` takes the tables of an older
    farm a version further, from version 1 on, to `tables`."""

    place: File | Server
    title: str
    what: str
    tables: MetaData
    migrations: tuple[Callable[[Connection], None], ...] = ()

    @property
    def version(self) -> int:
        return 1 + len(self.migrations)

    def ask(self, do: Callable[[Connection], T]) -> T:
        """What a question gives, of one moment. Raises FarmError."""
        return self._try(do, "BEGIN", ASK_S)

    def change(self, do: Callable[[Connection], T]) -> T:
        """What a change gives, made as a whole and on the disk, or not at all. Raises FarmError.

        It is tried again while a server is gone, such as while it is restarted: what was measured is not lost for that. Making it twice
        must therefore be making it once: it may have been made when the connection broke before the server could say so."""
        return self._try(do, _CHANGE, CHANGE_S)

    def error(self, why: str) -> FarmError:
        said = " ".join(why.split())
        remedy = next(remedy for sign, remedy in self.place.remedies if sign in said)
        return FarmError(
            f"{self.title} cannot be used", f"{self.place.shown}: {said}", remedy.format(place=self.place.shown, what=self.what)
        )

    def _try(self, do: Callable[[Connection], T], begin: str, patience_s: float) -> T:
        deadline = Deadline(patience_s)
        while True:
            try:
                with self._begun(begin) as db:
                    if self.place.version(db) == self.version:
                        return do(db)
                self._make()
            except DBAPIError as exc:
                if not self.place.passes(exc) or deadline.expired:
                    raise self.error(str(exc.orig)) from exc
                time.sleep(_PAUSE_S)
            except OSError as exc:
                raise self.error(str(exc)) from exc

    def _make(self) -> None:
        """Make or migrate the tables; one farm at a time."""
        with self._begun(_CHANGE) as db:
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
                for migration in self.migrations[version - 1 :]:  # none, where another process was faster
                    migration(db)
            self.place.set_version(db, self.version)

    def _begun(self, begin: str) -> AbstractContextManager[Connection]:
        return self.place.engine().execution_options(begin=begin).begin()
