"""Accuracies as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from farm import formatting, stats
from farm.types import Accuracy
from farm.views.tables import Column, build_table


def accuracy_table(found: Sequence[Accuracy], classes: int, width: int) -> Table:
    """Return a table with a line per device, the reference last.

    The top-5 columns are omitted for models with at most five classes, which are always right.
    """
    columns: list[Column[Accuracy]] = [
        Column("device", lambda one: one.name, style="bold"),
        Column("top-1 %", lambda one: _share(one.top1, one.answered), right=True),
        Column("95 % interval", lambda one: _interval(one.top1, one.answered), right=True),
        Column(
            "top-5 %", lambda one: _share(one.top5, one.answered) if classes > 5 else "", right=True
        ),
        Column(
            "95 % interval",
            lambda one: _interval(one.top5, one.answered) if classes > 5 else "",
            90,
            right=True,
        ),
        Column(
            "as reference %",
            lambda one: _share(one.same, one.compared) if one is not found[-1] else "",
            right=True,
        ),
        Column(
            "samples",
            lambda one: (
                f"{one.answered}" if one.answered == one.total else f"{one.answered} of {one.total}"
            ),
            right=True,
        ),
        Column("NaN", lambda one: Text(str(one.nan), "bold red") if one.nan else "", right=True),
        Column(
            "why",
            lambda one: (
                Text(formatting.sanitized_line(one.failure.what), "red") if one.failure else ""
            ),
        ),
    ]
    return build_table(columns, found, width)


def _share(right: int, total: int) -> str:
    return f"{100 * right / total:.2f}" if total else ""


def _interval(right: int, total: int) -> str:
    return (
        "–".join(f"{100 * end:.2f}" for end in stats.wilson_interval(right, total)) if total else ""
    )
