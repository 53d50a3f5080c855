"""Tables by their columns: what fits, and what has something to say. Cells are plain text, never markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from farm import words

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """How to fill a column. It is left out below `from_width` cells, and where it is empty in every row; a rare one also without rows."""

    title: str
    cell: Callable[[Row], str | Text]
    from_width: int = 0
    right: bool = False
    style: str = ""
    rare: bool = False


def table_of(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bright_black")
    filled = []
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if width >= column.from_width and (any(cells) or not (rows or column.rare)):
            table.add_column(column.title, style=column.style, justify="right" if column.right else "left", overflow="fold")
            filled.append([cell if isinstance(cell, Text) else Text(words.plain(cell)) for cell in cells])
    for line in zip(*filled, strict=True):
        table.add_row(*line)
    return table
