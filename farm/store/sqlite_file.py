"""Transactions on a SQLite file that is as this farm makes it, without SQLAlchemy.

Importing SQLAlchemy takes longer than all else in a short command. What many commands do (look
whether runs can be stored, store one, read the tuning records) is therefore done by sqlite3 alone,
if the file is there and nothing is unusual about it. Otherwise the caller uses
`database.MigratedDatabase`, which creates and migrates tables, waits, and explains errors.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from farm import ownership

T = TypeVar("T")
# SQLite: the write lock is taken before the first read, so that writers wait for each other.
ASK, CHANGE = "BEGIN", "BEGIN IMMEDIATE"
_BUSY_S = 1.0  # for a lock; MigratedDatabase waits longer


def transact(
    path: Path, version: int, begin: str, do: Callable[[sqlite3.Connection], T]
) -> T | None:
    """Return the result of `do` in a transaction that starts with the statement `begin`.

    A change is on disk at return. Returns None, and changes nothing, if there is no file whose
    tables have this version, or if it cannot be used.
    """
    try:
        if not path.exists():
            return None
        ownership.make_private_folder(path.parent)
        make_private(path)
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        with contextlib.closing(connection) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(begin)
            if db.execute("PRAGMA user_version").fetchone() != (version,):
                return None
            result = do(db)
            db.execute("COMMIT")
            return result
    except (OSError, sqlite3.Error):
        return None


def insert_new(db: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows, all of the same columns, whose key does not exist yet; return their number.

    `table` and the names of the columns are ours.
    """
    columns = ", ".join(rows[0])
    places = ", ".join("?" * len(rows[0]))
    statement = f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT DO NOTHING"
    return db.executemany(
        statement,
        [
            [storable_text(one) if isinstance(one, str) else one for one in row.values()]
            for row in rows
        ],
    ).rowcount


def storable_text(text: str) -> str:
    """Return the text with lone surrogates, which databases reject, as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def make_private(path: Path) -> None:
    """Make a database readable by this user only, with the files SQLite writes next to it.

    SQLite gives those files the mode of the database.
    """
    if not path.exists():
        with contextlib.suppress(OSError):  # SQLite reports the error in more detail
            os.close(ownership.open_private(path))
    for beside in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):  # for example a link, or a read-only folder
            ownership.make_private(path.with_name(path.name + beside))
