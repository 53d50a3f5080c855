"""Draw the board, as a pure function of its state, the terminal's size and the time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from farm import formatting
from farm.dashboard import eta
from farm.dashboard.device_lines import device_lines
from farm.dashboard.eta import TimeLeftEstimate
from farm.dashboard.group_lines import group_lines, most_unusual_jobs, rows_by_group
from farm.dashboard.job_board import JobBoard, JobRow
from farm.dashboard.widgets import (
    GAP,
    STATE_MARK,
    STATE_STYLE,
    count_states,
    spinner_frame,
    state_bar,
    states_as_text,
)

ERRORS_SHOWN = 3
MANY_DEVICES = 64  # more than a terminal has lines for
LEAST_RESULTS = 3  # the fewest results that get lines of their own below the devices
MODEL_CELLS = 22
STATE_CELLS = 11  # UNAVAILABLE
TIME_CELLS = 7  # 2:03:07
LATENCY_CELLS = 15  # 0.231 ms ±12 %
ANSWER_CELLS = 25  # top-1 97.8 % (ref 97.8 %)
WITH_ANSWER = LATENCY_CELLS + GAP + 12  # the least width of a result that shows the answer
TREND_CELLS = 10
WITH_WHY = LATENCY_CELLS + GAP + ANSWER_CELLS + GAP + 36  # ... and the reason too
WITH_TREND = WITH_WHY + TREND_CELLS + GAP


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """Width of each column in cells, in order. A width of 0 omits the column."""

    mark: int
    device: int
    profile: int
    model: int
    state: int
    time: int
    result: int


def render(board: JobBoard, width: int, height: int, now: float) -> Group:
    """Draw the board at the time `now`, in at most `height` lines (7 or more) of `width` cells."""
    rows = list(board.rows.values())
    by_state, devices = count_states(rows), board.devices
    errors = _errors(rows)[-ERRORS_SHOWN if height >= 20 else -1 :]
    lines = [
        _header(by_state, width, now - board.began, eta.total_time_left(devices, now)),
        state_bar(by_state, width),
    ]
    room = max(3, height - 2 - len(errors) - bool(errors))
    if len(devices) > MANY_DEVICES and len(devices) >= room:
        lines += _groups(rows, width, room, now)
    elif len(rows) < room or len(devices) == len(rows):
        lines += _jobs(rows, width, room, now)
    else:
        summary = device_lines(devices, width, room, now)
        lines += [*summary, *_latest(rows, width, room - len(summary), now)]
    if errors:
        lines += [Text(), *errors]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _groups(rows: Sequence[JobRow], width: int, room: int, now: float) -> list[Text]:
    """Return at most `room` lines: one line per group of devices, then the jobs that are odd."""
    groups = rows_by_group(rows)
    summary = group_lines(groups, width, max(3, room * 2 // 3), now)
    odd = most_unusual_jobs(groups, room - len(summary) - 2, now) if room - len(summary) > 2 else []
    if not odd:
        return summary
    layout = _layout(odd, width)
    return [*summary, Text(), _titles(layout), *(_row(row, layout, now) for row in odd)]


def _jobs(rows: Sequence[JobRow], width: int, room: int, now: float) -> list[Text]:
    """Return at most `room` lines: the titles, one line per job, and a count of the hidden jobs."""
    layout = _layout(rows, width)
    shown, rest = _choose(rows, room - 1)
    lines = [_titles(layout), *(_row(row, layout, now) for row in shown)]
    return (
        [*lines, Text.assemble(("… and ", "bright_black"), states_as_text(count_states(rest)))]
        if rest
        else lines
    )


def _latest(rows: Sequence[JobRow], width: int, room: int, now: float) -> list[Text]:
    """Return an empty line, the titles and the latest results, newest first.

    Returns nothing if fewer than `LEAST_RESULTS` results fit or exist.
    """
    ended = sorted(
        (row for row in rows if row.ended is not None), key=lambda row: -(row.ended or 0.0)
    )[: max(0, room - 2)]
    if len(ended) < LEAST_RESULTS:
        return []
    layout = _layout(ended, width)
    return [Text(), _titles(layout), *(_row(row, layout, now) for row in ended)]


def _layout(rows: Sequence[JobRow], width: int) -> ColumnWidths:
    """Return column widths: all columns but the result are as wide as their content.

    The profile is omitted if the result would otherwise have too little room. Names of models that
    are longer than `MODEL_CELLS` get half of the room that the result can spare.
    """
    device = min(16, max(map(cell_len, {"device", *(row.device for row in rows)})))
    profile = min(14, max(map(cell_len, {"profile", *(row.profile for row in rows)})))
    named = max(map(cell_len, {"model", *(row.model for row in rows)}))
    model = min(MODEL_CELLS, named)
    without = width - (1 + device + model + STATE_CELLS + TIME_CELLS) - 4 * GAP - 1
    with_profile = without - profile - GAP
    if (spare := with_profile - LATENCY_CELLS - GAP - ANSWER_CELLS) >= 0:
        more = min(named - model, spare // 2)
        return ColumnWidths(
            1, device, profile, model + more, STATE_CELLS, TIME_CELLS, with_profile - more
        )
    return ColumnWidths(1, device, 0, model, STATE_CELLS, TIME_CELLS, max(1, without))


def _choose(rows: Sequence[JobRow], room: int) -> tuple[list[JobRow], list[JobRow]]:
    """Return the rows to show, in their order, and the rows to hide.

    Running rows are preferred, then failed, unavailable and skipped, done, and waiting ones.
    """
    if len(rows) <= room:
        return list(rows), []
    rank = {"running": 0, "failed": 1, "unavailable": 2, "skipped": 2, "done": 3, "waiting": 4}
    order = sorted(
        range(len(rows)), key=lambda i: (rank[rows[i].state], -(rows[i].ended or 0.0), i)
    )
    chosen = set(order[: room - 1])
    return [row for i, row in enumerate(rows) if i in chosen], [
        row for i, row in enumerate(rows) if i not in chosen
    ]


def _header(by_state: Counter[str], width: int, elapsed_s: float, left: TimeLeftEstimate) -> Text:
    line = Text("farm", "bold")
    line.append("  ").append(states_as_text(by_state))
    right = ", ".join(
        part
        for part in (
            left.in_words if by_state["waiting"] or by_state["running"] else "",
            formatting.format_duration(elapsed_s),
        )
        if part
    )
    line.truncate(max(1, width - len(right) - GAP), overflow="ellipsis", pad=True)
    return line.append(" " * GAP).append(right)


def _titles(layout: ColumnWidths) -> Text:
    names = {column.name: Text(column.name.upper()) for column in dataclasses.fields(layout)}
    result = _result("LATENCY", "", "ANSWER", "WHY", layout.result)
    line = _line(
        {**names, "mark": Text(), "time": Text("TIME".rjust(layout.time)), "result": result}, layout
    )
    line.stylize("bright_black")
    return line


def _row(row: JobRow, layout: ColumnWidths, now: float) -> Text:
    mark, style = _mark(row, now)
    elapsed = (
        formatting.format_duration(row.elapsed(now))
        if row.began is not None and row.state not in ("unavailable", "skipped")
        else ""
    )
    cells = {
        "mark": Text(mark, style),
        "device": Text(formatting.sanitized_line(row.device), "bold"),
        "profile": Text(formatting.sanitized_line(row.profile), "bright_black"),
        "model": Text(formatting.sanitized_line(row.model)),
        "state": Text(row.run.verdict.value if row.run else row.stage.value, style),
        "time": Text(elapsed.rjust(layout.time), "bright_black"),
        "result": _outcome(row, layout.result),
    }
    return _line(cells, layout)


def _mark(row: JobRow, now: float) -> tuple[str, str]:
    """Return the mark in front of a row and the style of its state."""
    if row.state == "running":
        return spinner_frame(now), STATE_STYLE["running"]
    return STATE_MARK[row.state], formatting.VERDICT_STYLE[
        row.run.verdict
    ] if row.run else STATE_STYLE[row.state]


def _outcome(row: JobRow, width: int) -> Text:
    """Return a running job's progress bar and note, or a finished job's figures or error."""
    if row.bad:
        return Text(formatting.sanitized_line(row.error), STATE_STYLE[row.state])
    if row.state == "done" and row.run:
        ways = formatting.result_descriptions_longest_first(row.run)
        room = ANSWER_CELLS if width >= WITH_WHY else width - LATENCY_CELLS - GAP
        answer = next((way for way in ways if cell_len(way) <= room), ways[-1])
        return _result(
            formatting.format_median_latency_and_iqr(row.run),
            row.trend,
            answer,
            formatting.sanitized_line(formatting.verdict_reason(row.run)),
            width,
        )
    text = Text()
    if row.fraction is not None:
        fraction = min(1.0, max(0.0, row.fraction))
        cells = min(20, max(8, width // 3))
        full = round(fraction * cells)
        text.append("━" * full, "cyan").append("─" * (cells - full), "bright_black").append(
            f" {100 * fraction:3.0f} %  "
        )
    return text.append(formatting.sanitized_line(row.note), "bright_black")


def _result(latency: str, trend: str, answer: str, why: str, width: int) -> Text:
    """Return the figures of a result in columns; the trend and the reason if there is room."""
    text = Text(latency.ljust(LATENCY_CELLS + GAP))
    if width < WITH_WHY:
        return text.append(answer if width >= WITH_ANSWER else "")
    if width >= WITH_TREND:
        text.append(trend.ljust(TREND_CELLS + GAP), "cyan")
    return text.append(answer.ljust(ANSWER_CELLS + GAP)).append(why, "bright_black")


def _line(cells: Mapping[str, Text], layout: ColumnWidths) -> Text:
    line = Text()
    for column in dataclasses.fields(layout):
        if width := getattr(layout, column.name):
            cell = cells[column.name].copy()
            cell.truncate(width, overflow="ellipsis", pad=True)
            line.append(cell).append(" " * (1 if column.name == "mark" else GAP))
    line.rstrip()
    return line


def _errors(rows: Sequence[JobRow]) -> list[Text]:
    """Return a line for each error, the latest last."""
    bad = sorted((row for row in rows if row.bad), key=lambda row: row.ended or 0.0)
    lines = formatting.group_errors((row.device, row.model, row.error) for row in bad)
    return [
        Text.assemble(
            ("✗ ", "red"),
            (formatting.sanitized_line(whose), "bold"),
            "  ",
            formatting.sanitized_line(error),
        )
        for whose, error in lines
    ]
