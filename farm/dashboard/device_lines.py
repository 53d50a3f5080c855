"""The board if there is no room for a line per job: one line per device.

A line shows the device's progress, its current job, and the estimated remaining time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

from farm import formatting
from farm.dashboard import eta
from farm.dashboard.job_board import BAD_STATES, JobRow
from farm.dashboard.widgets import (
    GAP,
    STATE_MARK,
    STATE_STYLE,
    count_states,
    join_cells_into_line,
    overall_state,
    spinner_frame,
    state_bar,
    states_as_text,
)

_BAR, _WIDE_BAR, _DONE, _BAD_CELLS, _LEFT = 10, 24, 5, 5, 8
_WIDE = 120


def device_lines(
    devices: Mapping[str, list[JobRow]], width: int, room: int, now: float
) -> list[Text]:
    """Return at most `room` lines (2 or more): the titles, then one line per device.

    If the room does not suffice, running devices are preferred, then those with failed jobs.
    """
    name = min(24 if width >= _WIDE else 16, max(map(cell_len, ["device", *devices])))
    bar = _WIDE_BAR if width >= _WIDE else _BAR
    room_now = width - 2 - sum(cells + GAP for cells in (name, bar, _DONE, _BAD_CELLS, _LEFT))
    counted = {device: count_states(rows) for device, rows in devices.items()}
    chosen = _choose(counted, room - 1)
    titles = join_cells_into_line(
        ("", 1),
        ("DEVICE", name),
        ("JOBS", bar),
        ("DONE".rjust(_DONE), _DONE),
        ("WRONG", _BAD_CELLS),
        ("LEFT".rjust(_LEFT), _LEFT),
        ("NOW", 0),
    )
    titles.stylize("bright_black")
    lines = [
        titles,
        *(
            _device(device, devices[device], counted[device], (name, bar, room_now), now)
            for device in chosen
        ),
    ]
    if hidden := [device for device in devices if device not in chosen]:
        theirs = sum((counted[device] for device in hidden), Counter[str]())
        lines.append(
            Text.assemble(
                (f"… and {len(hidden)} devices, ", "bright_black"), states_as_text(theirs)
            )
        )
    return lines


def _choose(counted: Mapping[str, Counter[str]], room: int) -> list[str]:
    if len(counted) <= room:
        return list(counted)
    ranked = sorted(
        counted,
        key=lambda device: (
            not counted[device]["running"],
            not any(counted[device][bad] for bad in BAD_STATES),
        ),
    )
    first = set(ranked[: room - 1])
    return [device for device in counted if device in first]


def _device(
    device: str,
    rows: Sequence[JobRow],
    counted: Counter[str],
    widths: tuple[int, int, int],
    now: float,
) -> Text:
    bad = sum(counted[state] for state in BAD_STATES)
    over = len(rows) - counted["waiting"] - counted["running"]
    state = overall_state(counted, bad)
    mark = spinner_frame(now) if state == "running" else STATE_MARK[state]
    left = eta.device_time_left(rows, now)
    about = (
        ""
        if left.seconds < 1
        else f"{'≥' if left.at_least else ''}{formatting.format_duration(round(left.seconds))}"
    )
    name, bar = widths[:2]
    return join_cells_into_line(
        (Text(mark, STATE_STYLE[state]), 1),
        (Text(formatting.sanitized_line(device), "bold"), name),
        (state_bar(counted, bar), bar),
        (Text(f"{over}/{len(rows)}".rjust(_DONE)), _DONE),
        (Text(f"✗ {bad}" if bad else "", "red"), _BAD_CELLS),
        (Text(about.rjust(_LEFT), "bright_black"), _LEFT),
        (_now(rows, widths[2]), 0),
    )


def _now(rows: Sequence[JobRow], room: int) -> Text:
    """Return the running job, with its note if that fits; else the result of the last job."""
    if row := next((row for row in rows if row.state == "running"), None):
        stage = row.stage.value + ("" if row.fraction is None else f" {row.fraction:.0%}")
        long, short = (
            Text.assemble(f"{formatting.sanitized_line(row.model)} ", (said, "cyan"))
            for said in (f"{stage} {formatting.sanitized_line(row.note)}", stage)
        )
        return long if long.cell_len <= room else short
    last = max(
        (row for row in rows if row.run and row.ended is not None),
        key=lambda row: row.ended or 0.0,
        default=None,
    )
    if last is None or last.run is None:
        return Text()
    figure = formatting.format_median_latency_and_iqr(last.run) if not last.run.emulated else ""
    return Text.assemble(
        (f"{formatting.sanitized_line(last.model)} ", "bright_black"),
        (last.run.verdict.value, formatting.VERDICT_STYLE[last.run.verdict]),
        f" {figure}",
    )
