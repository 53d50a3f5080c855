"""Build tables from columns; empty columns and those that do not fit are omitted.

Cells are plain text, never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from farm import formatting

Row = TypeVar("Row")
_PROSE_CELLS = 30  # the least width of a column whose text may take several lines


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: its title, the function that fills its cells, and when it is shown.

    It is omitted below a width of `from_width` cells, and if it is empty in every row. A `rare`
    column is omitted also if there are no rows. A `whole` column is not broken over lines as long
    as omitting columns that have a `from_width`, the rightmost first, makes room for it. A `prose`
    column may take several lines.
    """

    title: str
    cell: Callable[[Row], str | Text]
    from_width: int = 0
    right: bool = False
    style: str = ""
    rare: bool = False
    whole: bool = False
    prose: bool = False


@dataclass(frozen=True, slots=True)
class RenderedColumn(Generic[Row]):
    """A column that is shown, and the text of its cells."""

    column: Column[Row]
    cells: Sequence[Text]

    @property
    def cells_wide(self) -> int:
        """Return the width that the column needs."""
        wide = max(
            cell_len(line)
            for text in (self.column.title, *map(str, self.cells))
            for line in text.split("\n")
        )
        return min(wide, _PROSE_CELLS) if self.column.prose else wide


def table_with_note(table: Table, note: Text) -> Group:
    """Return a table with lines below it, which use the width of the terminal, not the table's."""
    return Group(table, note) if note else Group(table)


def columns_that_fit(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int
) -> list[RenderedColumn[Row]]:
    """Return the columns that are shown at this width, with the text of their cells."""
    shown = []
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if width >= column.from_width and (any(cells) or not (rows or column.rare)):
            shown.append(
                RenderedColumn(
                    column,
                    [
                        cell if isinstance(cell, Text) else Text(formatting.sanitized_line(cell))
                        for cell in cells
                    ],
                )
            )
    needed = [one for one in shown if not one.column.from_width]
    if any(one.column.whole for one in shown) and _cells_wide(needed) <= width:
        while _cells_wide(shown) > width:
            shown.remove(next(one for one in reversed(shown) if one.column.from_width))
    return shown


def build_table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """Return a table of the rows with the columns that are shown at this width."""
    return build_rich_table_from_shown_columns(columns_that_fit(columns, rows, width))


def build_rich_table_from_shown_columns(shown: Sequence[RenderedColumn[Row]]) -> Table:
    """Return the table of these columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bright_black")
    for one in shown:
        justify: Literal["left", "right"] = "right" if one.column.right else "left"
        table.add_column(one.column.title, style=one.column.style, justify=justify, overflow="fold")
    for line in zip(*(one.cells for one in shown), strict=True):
        table.add_row(*line)
    return table


def _cells_wide(shown: Sequence[RenderedColumn[Row]]) -> int:
    """Return the width of a table of these columns, with gaps of 3 between and 1 on either side."""
    return sum(one.cells_wide for one in shown) + 3 * (len(shown) - 1) + 2
