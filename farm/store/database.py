"""A SQLite file that several farms may use at once: made when it is first written, its schema's version known, its errors ours.

`postgres` is the same over a server."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from farm.deadline import Deadline
from farm.errors import FarmError

T = TypeVar("T")
BUSY_S = 30.0

# What SQLite or the system says, and what to do about it; the first that fits.
_REMEDIES = (
    ("locked", f"another farm has been writing for {BUSY_S:.0f} s; try again when it has ended"),
    ("full", "free space on the disk of {path}, or keep {what} elsewhere: export FARM_DATA=/path"),
    ("No space", "free space on the disk of {path}, or keep {what} elsewhere: export FARM_DATA=/path"),
    ("malformed", "move it away, and a new one is begun: mv {path} {path}.broken"),
    ("not a database", "move it away, and a new one is begun: mv {path} {path}.broken"),
    ("", "make {path} and its folder readable and writable, or keep {what} elsewhere: export FARM_DATA=/path"),
)


@dataclass(frozen=True, slots=True)
class Database:
    """The file at `path`: `title` and `what` name it and what it holds in errors; `schema` makes it, and each of
    `migrations` takes it a version further, the last to `version`."""

    path: Path
    title: str
    what: str
    schema: str
    version: int
    migrations: tuple[Callable[[sqlite3.Connection], None], ...] = ()

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one piece of work: cheap, and safe whatever forks meanwhile. Raises FarmError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)) as db:
                self._prepare(db)
                yield db
        except (sqlite3.Error, OSError) as exc:
            raise self.error(str(exc)) from exc

    def ask(self, do: Callable[[sqlite3.Connection], T]) -> T:
        """What a question gives. Raises FarmError."""
        with self.open() as db:
            return do(db)

    def change(self, do: Callable[[sqlite3.Connection], T]) -> T:
        """What a change gives, made as a whole and on the disk, or not at all. Raises FarmError."""
        with self.open() as db, transaction(db):
            return do(db)

    @property
    def is_there(self) -> bool:
        """Whether anything may have been kept yet."""
        return self.path.exists()

    def error(self, why: str) -> FarmError:
        remedy = next(remedy for sign, remedy in _REMEDIES if sign in why)
        return FarmError(f"{self.title} cannot be used", f"{self.path}: {why}", remedy.format(path=self.path, what=self.what))

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = _version(db)
        if version > self.version:
            raise FarmError(
                f"{self.path} was written by a newer farm",
                f"its schema is version {version}, this farm knows {self.version}",
                f"install a newer farm, or keep {self.what} elsewhere: export FARM_DATA=/path",
            )
        if version == self.version:
            return
        _use_write_ahead_log(db)
        with transaction(db):
            if (current := _version(db)) == 0:
                statements(db, self.schema)
                current = self.version - len(self.migrations)
            for migration in self.migrations[len(self.migrations) - (self.version - current) :]:  # none, where another process was faster
                migration(db)
            db.execute(f"PRAGMA user_version = {self.version}")


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The block's statements take effect together, or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def statements(db: sqlite3.Connection, script: str) -> None:
    """One after the other, in the transaction that is open: sqlite3's own `executescript` would end it."""
    for statement in script.split(";"):
        db.execute(statement)


def text(name: str) -> str:
    """Names for SQLite, which takes no lone surrogates (a file name may hold them)."""
    return name.encode("utf-8", "backslashreplace").decode()


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


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
