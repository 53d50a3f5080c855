"""Build tables from columns; empty columns and those that do not fit are omitted.

Cells are plain text, never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from farm import formatting

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: its title, the function that fills its cells, and when it is shown.

    It is omitted below a width of `from_width` cells, and if it is empty in every row. A `rare`
    column is omitted also if there are no rows.
    """

    title: str
    cell: Callable[[Row], str | Text]
    from_width: int = 0
    right: bool = False
    style: str = ""
    rare: bool = False


def with_note(table: Table, note: Text) -> Group:
    """Return a table with lines below it, which use the width of the terminal, not the table's."""
    return Group(table, note) if note else Group(table)


def table_of(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """Return a table of the rows with the columns that are shown at this width."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bright_black")
    filled = []
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if width >= column.from_width and (any(cells) or not (rows or column.rare)):
            table.add_column(column.title, style=column.style, justify="right" if column.right else "left", overflow="fold")
            filled.append([cell if isinstance(cell, Text) else Text(formatting.plain(cell)) for cell in cells])
    for line in zip(*filled, strict=True):
        table.add_row(*line)
    return table
