"""Runs against runs: a comparison as a table, and the history of a model on a device as a line with its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from farm import comparison, stats, words
from farm.comparison import Pair
from farm.types import Run
from farm.views.runs import p50
from farm.views.tables import Column, table_of

_CHANGE_STYLE = {
    stats.Change.SLOWER: "bold red",
    stats.Change.FASTER: "bold green",
    stats.Change.SAME: "green",
    stats.Change.UNSURE: "yellow",
}
_SPARKS = 60


def comparison_table(pairs: Sequence[Pair], width: int) -> Table:
    """Each pair of runs: how much slower the second is, how surely, and below the table what else differs."""
    columns: list[Column[Pair]] = [
        Column("device", lambda pair: pair.second.device, style="bold"),
        Column("model", lambda pair: pair.second.title),
        Column("before ms", lambda pair: _median(pair.turns.before) if pair.turns else p50(pair.first), right=True),
        Column("after ms", lambda pair: _median(pair.turns.after) if pair.turns else p50(pair.second), right=True),
        Column("", lambda pair: Text(pair.found.change.value, _CHANGE_STYLE[pair.found.change])),
        Column("p", lambda pair: "" if pair.found.p is None else words.digits(pair.found.p, 2), 100, right=True),
        Column("in turns", lambda pair: f"{len(pair.turns.before)} rounds" if pair.turns else "", 100),
        Column("in words", lambda pair: pair.found.reason),
    ]
    table = table_of(columns, pairs, width)
    notes = [f"{pair.second.title} on {pair.second.device}: {'; '.join(pair.differences)}" for pair in pairs if pair.differences]
    table.caption = Text("\n".join(words.plain(f"also differs, {note}") for note in notes), "bright_black")
    table.caption_justify = "left"
    return table


def _median(seconds: Sequence[float]) -> str:
    return words.digits(1e3 * statistics.median(seconds))


def timeline(runs: Sequence[Run]) -> list[str]:
    """The medians of runs of one model on one device, in order of time, as a sparkline; and a line for each step in them, with what else
    changed there. Emulated runs and those without a latency are left out."""
    timed = comparison.timed(runs)
    medians = [run.latency.p50_ms for run in timed if run.latency]
    if len(medians) < 2:
        return []
    ends = f"{words.digits(medians[0])} → {words.digits(medians[-1])} ms"
    lines = [
        f"{words.sparkline(medians[-_SPARKS:])}  {ends}, {len(medians)} runs, {words.digits(min(medians))} to {words.digits(max(medians))}"
    ]
    return [words.plain(line) for line in [*lines, *(move.in_words for move in comparison.moves(timed))]]
