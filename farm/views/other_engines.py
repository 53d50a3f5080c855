"""Latencies of farm and of other engines for the same models, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from farm import formatting, stats
from farm.store import as_strict_json
from farm.types import Agreement, EngineComparison, EngineResult
from farm.views.tables import Column, build_table


@dataclass(frozen=True, slots=True)
class _Row:
    contest: EngineComparison
    rival: EngineResult | None  # None is farm itself


def engine_table(contests: Sequence[EngineComparison], width: int) -> Table:
    """Return a table with a line for farm and for each engine, per model.

    An engine's line gives its time as a multiple of farm's, with the 95 % interval.
    """
    rows = [_Row(contest, rival) for contest in contests for rival in (None, *contest.rivals)]
    columns: list[Column[_Row]] = [
        Column("model", lambda row: row.contest.model if row.rival is None else ""),
        Column(
            "threads", lambda row: str(row.contest.threads) if row.rival is None else "", right=True
        ),
        Column(
            "engine",
            lambda row: "farm" if row.rival is None else f"{row.rival.engine} {row.rival.version}",
            style="bold",
        ),
        Column(
            "p50 ms",
            lambda row: formatting.format_number(
                1e3 * statistics.median(row.rival.seconds if row.rival else row.contest.seconds)
            ),
            right=True,
        ),
        Column("farm is", _times, right=True),
        Column("95 % interval", _interval, 90, right=True),
        Column(
            "max err", lambda row: _error(row.rival.agreement) if row.rival else "", 90, right=True
        ),
    ]
    return build_table(columns, rows, width)


def rival_over_farm_ratio_and_interval(
    contest: EngineComparison, rival: EngineResult
) -> tuple[float, tuple[float, float]]:
    """Return a rival's time as a multiple of farm's: the median of the rounds' ratios.

    The second value is its 95 % interval.
    """
    ratios = [theirs / ours for theirs, ours in zip(rival.seconds, contest.seconds, strict=True)]
    return statistics.median(ratios), stats.median_interval(ratios)


def engines_to_json(contest: EngineComparison) -> dict[str, Any]:
    """Return an engine comparison as JSON, with the ratios."""
    rivals = [
        {**as_strict_json(rival), "ratio": ratio, "interval": interval}
        for rival in contest.rivals
        for ratio, interval in [rival_over_farm_ratio_and_interval(contest, rival)]
    ]
    return {**as_strict_json(contest), "rivals": rivals}


def _times(row: _Row) -> str:
    if row.rival is None:
        return ""
    ratio = rival_over_farm_ratio_and_interval(row.contest, row.rival)[0]
    return f"{ratio:.2f}x {'faster' if ratio >= 1 else 'as fast'}"


def _interval(row: _Row) -> str:
    return (
        "–".join(
            f"{end:.2f}" for end in rival_over_farm_ratio_and_interval(row.contest, row.rival)[1]
        )
        if row.rival
        else ""
    )


def _error(agreement: Agreement) -> str:
    return f"{agreement.max_abs:.1e}"
