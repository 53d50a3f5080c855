"""Which classes were the best for a sample: a table in SQLite, so that a long run over many samples goes on where it was ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from farm.store.database import Database, text, transaction
from farm.store.files import data_root

_VERSION = 1
_TABLES = """
CREATE TABLE subjects (number INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE);
CREATE TABLE answers (
    subject INTEGER NOT NULL REFERENCES subjects (number),
    sample TEXT NOT NULL,
    best TEXT NOT NULL,
    PRIMARY KEY (subject, sample)
) WITHOUT ROWID
"""


class AnswerStore:
    """Answers by subject, the digest of all that an answer depends on beside the sample (build, device, preprocessing), and sample.

    Any number of processes may use the file at once. Raises FarmError where it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path, "the record of answers", "answers", _TABLES, _VERSION)

    @classmethod
    def of_user(cls) -> AnswerStore:
        return cls(data_root() / "answers.sqlite")

    def keep(self, subject: str, best: Mapping[str, tuple[int, ...]]) -> None:
        """Keep the best classes of samples, all or none; they are on the disk when this returns."""
        with self._database.open() as db, transaction(db):
            db.execute("INSERT INTO subjects (digest) VALUES (?) ON CONFLICT DO NOTHING", (subject,))
            (number,) = db.execute("SELECT number FROM subjects WHERE digest = ?", (subject,)).fetchone()
            rows = [(number, text(sample), json.dumps(classes)) for sample, classes in best.items()]
            db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)

    def answers(self, subject: str) -> dict[str, tuple[int, ...]]:
        """All that is kept of a subject, by sample."""
        if not self.path.exists():
            return {}
        query = "SELECT sample, best FROM answers JOIN subjects ON subject = number WHERE digest = ?"
        with self._database.open() as db:
            rows = db.execute(query, (subject,)).fetchall()
        try:
            return {sample: tuple(int(number) for number in json.loads(best)) for sample, best in rows}
        except (TypeError, ValueError) as exc:
            raise self._database.error(f"malformed row: {exc}") from exc

    def forget(self, subject: str) -> None:
        """Keep nothing of a subject."""
        with self._database.open() as db, transaction(db):
            db.execute("DELETE FROM answers WHERE subject IN (SELECT number FROM subjects WHERE digest = ?)", (subject,))
