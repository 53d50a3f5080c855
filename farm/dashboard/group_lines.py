"""The board if there are too many devices even for a line each: a line per group of devices.

Devices of a profile are a group; if all have the same profile, devices with the same first tag are.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from farm import formatting
from farm.dashboard.job_board import JobRow
from farm.dashboard.widgets import (
    STATE_MARK,
    STATE_STYLE,
    count_states,
    join_cells_into_line,
    overall_state,
    spinner_frame,
    state_bar,
    states_as_text,
)
from farm.types import Run, Verdict

_NAME, _DEVICES, _BAR, _WIDE_BAR, _DONE, _BAD = 24, 7, 10, 24, 9, 6
_WIDE = 120
_FAR = 1.3  # times its group's median, or the inverse: a latency that deserves a look
_ORDINARY = (Verdict.RIGHT, Verdict.STABLE, Verdict.EMULATED)
_WITHOUT_TAG = "no tag"


def rows_by_group(rows: Sequence[JobRow]) -> dict[str, list[JobRow]]:
    """Return the rows by group, in the order in which the groups first occur."""
    by_tag = len({row.profile for row in rows}) == 1 and any(row.tag for row in rows)
    groups: dict[str, list[JobRow]] = {}
    for row in rows:
        groups.setdefault((row.tag or _WITHOUT_TAG) if by_tag else row.profile, []).append(row)
    return groups


def group_lines(groups: dict[str, list[JobRow]], width: int, room: int, now: float) -> list[Text]:
    """Return at most `room` lines (3 or more): the titles, then one line per group.

    Groups with bad jobs come first, then those with the most jobs.
    """
    ranked = sorted(
        groups, key=lambda name: (not any(row.bad for row in groups[name]), -len(groups[name]))
    )
    shown = ranked if len(ranked) <= room - 1 else ranked[: room - 2]
    name = min(_NAME, max(map(cell_len, ["group", *shown])))
    bar = _WIDE_BAR if width >= _WIDE else _BAR
    titles = join_cells_into_line(
        ("", 1),
        ("GROUP", name),
        ("DEVICES", _DEVICES),
        ("JOBS", bar),
        ("DONE".rjust(_DONE), _DONE),
        ("WRONG", _BAD),
        ("LATENCY, AND FROM TO", 0),
    )
    titles.stylize("bright_black")
    lines = [titles, *(_group(one, groups[one], name, bar, now) for one in shown)]
    if hidden := ranked[len(shown) :]:
        theirs = count_states([row for one in hidden for row in groups[one]])
        lines.append(
            Text.assemble((f"… and {len(hidden)} groups, ", "bright_black"), states_as_text(theirs))
        )
    return lines


def most_unusual_jobs(groups: dict[str, list[JobRow]], most: int, now: float) -> list[JobRow]:
    """Return the jobs that deserve a look, at most `most`.

    First those that failed, the latest first; then the results with another verdict than those
    that are ordinary, or with a latency far from the median of their group and model; then the
    jobs that have been running longest.
    """
    failed = sorted(
        (row for rows in groups.values() for row in rows if row.bad),
        key=lambda row: -(row.ended or 0.0),
    )
    odd = [row for rows in groups.values() for row in _far(rows)]
    odd.sort(key=lambda row: -(row.ended or 0.0))
    running = [row for rows in groups.values() for row in rows if row.state == "running"]
    running.sort(key=lambda row: -row.elapsed(now))
    return [*failed, *odd, *running][:most]


def _far(rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the good results of a group that are not like the others."""
    figures: dict[str, list[float]] = {}
    for row in rows:
        if (p50_ms := _p50_ms(row.run)) is not None:
            figures.setdefault(row.model, []).append(p50_ms)
    medians = {model: statistics.median(values) for model, values in figures.items()}
    return [
        row
        for row in rows
        if not row.bad and row.run and (row.run.verdict not in _ORDINARY or _is_far(row, medians))
    ]


def _is_far(row: JobRow, medians: dict[str, float]) -> bool:
    p50_ms = _p50_ms(row.run)
    if p50_ms is None or not (median := medians[row.model]):
        return False
    return not 1 / _FAR <= p50_ms / median <= _FAR


def _p50_ms(run: Run | None) -> float | None:
    return run.latency.p50_ms if run and run.latency and not run.emulated else None


def _group(group: str, rows: Sequence[JobRow], name: int, bar: int, now: float) -> Text:
    counted = count_states(rows)
    bad = sum(row.bad for row in rows)
    over = len(rows) - counted["waiting"] - counted["running"]
    state = overall_state(counted, bad)
    mark = spinner_frame(now) if state == "running" else STATE_MARK[state]
    return join_cells_into_line(
        (Text(mark, STATE_STYLE[state]), 1),
        (Text(formatting.sanitized_line(group), "bold"), name),
        (Text(str(len({row.device for row in rows})).rjust(_DEVICES)), _DEVICES),
        (state_bar(counted, bar), bar),
        (Text(f"{over}/{len(rows)}".rjust(_DONE)), _DONE),
        (Text(f"✗ {bad}" if bad else "", "red"), _BAD),
        (_latencies(rows), 0),
    )


def _latencies(rows: Sequence[JobRow]) -> Text:
    """Return median, least and largest of the latencies, if all are of one model."""
    figures = [p50_ms for row in rows if (p50_ms := _p50_ms(row.run)) is not None and not row.bad]
    if not figures or len({row.model for row in rows}) > 1:
        return Text()
    text = Text(f"{formatting.format_number(statistics.median(figures))} ms")
    if len(figures) > 1:
        text.append(
            f"  {formatting.format_number(min(figures))}"
            f" to {formatting.format_number(max(figures))}",
            "bright_black",
        )
    return text
