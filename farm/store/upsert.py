"""INSERT statements that handle rows whose key exists already."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table


def insert_new(db: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose key does not exist yet; return their number."""
    statement = _insert(db, table).on_conflict_do_nothing()
    return (
        db.execute(statement, rows, execution_options={"preserve_rowcount": True}).rowcount
        if rows
        else 0
    )


def insert_or_replace(db: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows; replace existing rows with the same key."""
    statement = _insert(db, table)
    others = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if not column.primary_key
    }
    if rows:
        db.execute(
            statement.on_conflict_do_update(index_elements=table.primary_key, set_=others), rows
        )


def _insert(db: Connection, table: Table) -> Any:
    """Return the dialect's own INSERT, because SQLAlchemy's generic INSERT has no ON CONFLICT."""
    return importlib.import_module(f"sqlalchemy.dialects.{db.dialect.name}").insert(table)
