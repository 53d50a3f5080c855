"""A database on a PostgreSQL server, for the farms of a lab: as `database` for a file. Needs psycopg, of `tvm-farm[postgresql]`.

Where the server is gone, such as while it is restarted, a change is tried again until it is back: what was measured is not lost for that. A
change must therefore be such that making it twice is making it once: it may have been made when the connection broke before the server
could say so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from farm.deadline import Deadline
from farm.errors import FarmError

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
ASK_S, CHANGE_S = 5.0, 60.0  # a server's restart takes some seconds, its recovery after a crash longer
_PAUSE_S = 0.2
_SCHEMES = ("postgresql", "postgres")
# A connection that says nothing is given up after about half a minute, a statement or a lock after one.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "options": "-c statement_timeout=60000 -c lock_timeout=60000",
    "application_name": "farm",
}
# What psycopg or the server says, and what to do about it; the first that fits.
_REMEDIES = (
    ("password", "give the password in ~/.pgpass, or as PGPASSWORD"),
    ("no pg_hba.conf entry", "let this machine in, in the server's pg_hba.conf"),
    ("does not exist", "make the role and the database: createuser NAME, createdb --owner NAME farm"),
    ("translate host name", "name a server that is known here"),
    ("permission denied", "let the role make tables: GRANT CREATE ON SCHEMA public TO NAME"),
    ("No space left", "free space on the server's disk"),
    ("", "see that the server runs, and that it can be reached from here: psql {url}"),
)


@dataclass(frozen=True, slots=True)
class Connection:
    """What a piece of work gets: SQLite's way to write a statement, with ? for a value."""

    db: psycopg.Connection[tuple[Any, ...]]

    def execute(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        ready = [value.replace("\0", "\\x00") if isinstance(value, str) else value for value in values]  # which the server does not take
        return self.db.execute(query.replace("%", "%%").replace("?", "%s"), ready)


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """The database at `url`. `schema` makes it as of version `first`; each of `migrations` takes it a version further, to `version`."""

    url: str
    title: str
    what: str
    schema: str
    version: int
    first: int
    migrations: tuple[Callable[[Any], None], ...] = ()

    is_there = True

    def ask(self, do: Callable[[Connection], T]) -> T:
        """What a question gives. Raises FarmError."""
        return self._try(do, Deadline(ASK_S))

    def change(self, do: Callable[[Connection], T]) -> T:
        """What a change gives, made as a whole and on the server's disk, or not at all. Raises FarmError."""
        return self._try(do, Deadline(CHANGE_S))

    def _try(self, do: Callable[[Connection], T], deadline: Deadline) -> T:
        driver = _driver()
        while True:
            try:
                with driver.connect(self.url, **_PATIENCE) as db:
                    connection = Connection(db)
                    self._prepare(connection)
                    return do(connection)
            except (driver.OperationalError, driver.InterfaceError) as exc:
                if not _is_gone(exc) or deadline.expired:
                    raise self.error(str(exc)) from exc
                time.sleep(_PAUSE_S)
            except driver.Error as exc:
                raise self.error(str(exc)) from exc

    @property
    def shown(self) -> str:
        """The url without its password."""
        return re.sub(r"(//[^:/@]*):[^@]*@", r"\1@", re.sub(r"(password=)[^&\s]*", r"\1...", self.url))

    def error(self, why: str) -> FarmError:
        said = " ".join(why.split())
        remedy = next(remedy for sign, remedy in _REMEDIES if sign in said)
        return FarmError(f"{self.title} cannot be used", f"{self.shown}: {said}", remedy.format(url=self.shown))

    def _prepare(self, db: Connection) -> None:
        """Make or migrate the tables, in the transaction that is open; one farm at a time."""
        if (current := _version(db)) is None or current < self.version:
            db.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (self.title,))
            if (current := _version(db)) is None:
                db.execute("CREATE TABLE farm_schema (version INTEGER NOT NULL)")
                db.execute("INSERT INTO farm_schema VALUES (?)", (self.first,))
                for statement in filter(str.strip, self.schema.split(";")):
                    db.execute(statement)
                current = self.first
            for migration in self.migrations[current - self.first :]:
                migration(db)
            db.execute("UPDATE farm_schema SET version = ?", (self.version,))
        elif current > self.version:
            raise FarmError(
                f"{self.shown} was written by a newer farm",
                f"its schema is version {current}, this farm knows {self.version}",
                f"install a newer farm, or keep {self.what} elsewhere: --store",
            )


def is_url(text: str) -> bool:
    return text.partition("://")[0] in _SCHEMES


def _version(db: Connection) -> int | None:
    """None where there are no tables yet. `to_regclass` would tell what was so as the transaction began: its answer is from a cache."""
    there = "SELECT 1 FROM pg_catalog.pg_tables WHERE tablename = 'farm_schema' AND schemaname = ANY (current_schemas(false))"
    if db.execute(there).fetchone() is None:
        return None
    found = db.execute("SELECT version FROM farm_schema").fetchone()
    return int(found[0]) if found else None


def _is_gone(error: psycopg.Error) -> bool:
    """Whether the server was there and may be again: it ends, starts, recovers, has no connection to spare, or dropped ours."""
    if error.sqlstate:
        return error.sqlstate.startswith(("08", "57P", "53300"))
    return not any(sign in str(error) for sign, _ in _REMEDIES if sign)


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as exc:
        why = "psycopg is not installed" if isinstance(exc, ModuleNotFoundError) else str(exc)
        raise FarmError("PostgreSQL cannot be used", why, "pip install 'tvm-farm[postgresql]'") from exc
    return psycopg
