"""Compared runs as a table, and the history of a model on a device as lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from farm import comparison, formatting, stats
from farm.comparison import RunComparison
from farm.types import Run
from farm.views.runs import p50_text
from farm.views.tables import Column, build_table, table_with_note

_CHANGE_STYLE = {
    stats.ChangeVerdict.SLOWER: "bold red",
    stats.ChangeVerdict.FASTER: "bold green",
    stats.ChangeVerdict.SAME: "green",
    stats.ChangeVerdict.UNSURE: "yellow",
}
_SPARKS = 60


def comparison_table(pairs: Sequence[RunComparison], width: int) -> Group:
    """Return a table of pairs of runs: how much slower the second is, with what confidence.

    Other differences between the two runs are listed below the table.
    """
    columns: list[Column[RunComparison]] = [
        Column("device", lambda pair: pair.second.device, style="bold"),
        Column("model", lambda pair: pair.second.title),
        Column(
            "before ms",
            lambda pair: _median(pair.turns.before) if pair.turns else p50_text(pair.first),
            right=True,
        ),
        Column(
            "after ms",
            lambda pair: _median(pair.turns.after) if pair.turns else p50_text(pair.second),
            right=True,
        ),
        Column("", lambda pair: Text(pair.found.change.value, _CHANGE_STYLE[pair.found.change])),
        Column(
            "p",
            lambda pair: "" if pair.found.p is None else formatting.format_number(pair.found.p, 2),
            100,
            right=True,
        ),
        Column(
            "in turns", lambda pair: f"{len(pair.turns.before)} rounds" if pair.turns else "", 100
        ),
        Column("in words", lambda pair: pair.found.reason),
    ]
    table = build_table(columns, pairs, width)
    notes = [
        f"{pair.second.title} on {pair.second.device}: {'; '.join(pair.differences)}"
        for pair in pairs
        if pair.differences
    ]
    return table_with_note(
        table,
        Text(
            "\n".join(formatting.sanitized_line(f"also differs, {note}") for note in notes),
            "bright_black",
        ),
    )


def _median(seconds: Sequence[float]) -> str:
    return formatting.format_number(1e3 * statistics.median(seconds))


def history_lines(runs: Sequence[Run]) -> list[str]:
    """Return the history of one model on one device as lines of text.

    The first line is a sparkline of the medians in order of time. Each step in them gets a line,
    with the other changes at that point. Emulated runs and those without a latency are omitted.
    """
    timed = comparison.runs_with_latency(runs)
    medians = [run.latency.p50_ms for run in timed if run.latency]
    if len(medians) < 2:
        return []
    ends = f"{formatting.format_number(medians[0])} → {formatting.format_number(medians[-1])} ms"
    bounds = f"{formatting.format_number(min(medians))} to {formatting.format_number(max(medians))}"
    lines = [f"{formatting.sparkline(medians[-_SPARKS:])}  {ends}, {len(medians)} runs, {bounds}"]
    return [
        formatting.sanitized_line(line)
        for line in [*lines, *(move.in_words for move in comparison.latency_changepoints(timed))]
    ]
