"""The predicted classes of each sample, in SQLite: an interrupted accuracy run resumes there."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farm.store.artifact_store import user_data_dir
from farm.store.upsert import insert_new, insert_or_replace

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from farm.store.database import MigratedDatabase


@functools.cache
def _tables() -> tuple[Table, Table]:
    from sqlalchemy import Column, ForeignKey, MetaData, Table

    from farm.store.database import ROW_NUMBER, CodePointText

    subjects = Table(
        "subjects",
        MetaData(),
        Column("number", ROW_NUMBER, primary_key=True),
        Column("digest", CodePointText, nullable=False, unique=True),
    )
    answers = Table(
        "answers",
        subjects.metadata,
        Column("subject", ForeignKey(subjects.c.number), primary_key=True),
        Column("sample", CodePointText, primary_key=True),
        Column("best", CodePointText, nullable=False),
        sqlite_with_rowid=False,
    )
    return subjects, answers


class PredictionStore:
    """Predictions by subject and sample.

    A subject is the digest of everything except the sample that a prediction depends on (build,
    device, preprocessing). Any number of processes may use the file concurrently. Raises FarmError
    if it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_user(cls) -> PredictionStore:
        """Return the store of this user, in the data folder."""
        return cls(user_data_dir() / "answers.sqlite")

    def keep(self, subject: str, best: Mapping[str, tuple[int, ...]]) -> None:
        """Store the best classes of each sample, all or none; they are on disk at return."""
        subjects, answers = _tables()

        def change(db: Connection) -> None:
            insert_new(db, subjects, [{"digest": subject}])
            number = db.scalar(subjects.select().where(subjects.c.digest == subject))
            insert_or_replace(
                db,
                answers,
                [
                    {"subject": number, "sample": sample, "best": json.dumps(classes)}
                    for sample, classes in best.items()
                ],
            )

        self._database.change(change)

    def answers(self, subject: str) -> dict[str, tuple[int, ...]]:
        """Return all stored predictions of a subject, by sample."""
        if not self.path.exists():
            return {}
        subjects, answers = _tables()
        query = (
            answers.join(subjects)
            .select()
            .with_only_columns(answers.c.sample, answers.c.best)
            .where(subjects.c.digest == subject)
        )
        rows = self._database.ask(lambda db: db.execute(query).all())
        try:
            return {
                sample: tuple(int(number) for number in json.loads(best)) for sample, best in rows
            }
        except (TypeError, ValueError) as exc:
            raise self._database.error(f"malformed row: {exc}") from exc

    def forget(self, subject: str) -> None:
        """Delete all predictions of a subject."""
        subjects, answers = _tables()
        number = (
            subjects.select()
            .with_only_columns(subjects.c.number)
            .where(subjects.c.digest == subject)
        )
        self._database.change(
            lambda db: db.execute(answers.delete().where(answers.c.subject.in_(number)))
        )

    @property
    def _database(self) -> MigratedDatabase:
        from farm.store.backends import SqliteBackend
        from farm.store.database import MigratedDatabase

        return MigratedDatabase(
            SqliteBackend(self.path), "the record of answers", "answers", _tables()[0].metadata
        )
