"""Elements of the board's drawings: colours, marks, bars, and counts of jobs by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from farm.dashboard.display import REFRESH_S
from farm.dashboard.job_board import JobRow

GAP = 2
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STATE_STYLE = {
    "done": "green",
    "failed": "red",
    "unavailable": "yellow",
    "skipped": "yellow",
    "running": "cyan",
    "waiting": "bright_black",
}
STATE_MARK = {"done": "✓", "failed": "✗", "unavailable": "○", "skipped": "○", "waiting": "·"}


def spinner_frame(now: float) -> str:
    """Return the frame of the spinner at the time `now`."""
    return SPINNER[int(now / REFRESH_S) % len(SPINNER)]


def states_as_text(by_state: Counter[str]) -> Text:
    """Return the number of jobs by state: 9 jobs: 5 done, 2 running, 1 failed, 1 waiting."""
    total = by_state.total()
    text = Text(f"{total} job{'s' * (total != 1)}: ")
    parts = [
        Text(f"{by_state[state]} {state}", style)
        for state, style in STATE_STYLE.items()
        if by_state[state]
    ]
    return text.append(Text(", ").join(parts))


def state_bar(by_state: Counter[str], width: int) -> Text:
    """Return a bar of `width` cells that shows each state's share of the jobs."""
    bar, done, drawn, total = Text(), 0, 0, max(1, by_state.total())
    for state, style in STATE_STYLE.items():
        done += by_state[state]
        end = width * done // total
        bar.append(("─" if state == "waiting" else "━") * (end - drawn), style)
        drawn = end
    return bar


def count_states(rows: Sequence[JobRow]) -> Counter[str]:
    """Return the number of rows in each state."""
    return Counter(row.state for row in rows)


def overall_state(counted: Counter[str], bad: int) -> str:
    """Return the state of jobs together, by the number in each state and the number of bad ones."""
    if counted["running"]:
        return "running"
    if counted["waiting"]:
        return "waiting"
    return "failed" if bad else "done"


def join_cells_into_line(*cells: tuple[Text | str, int]) -> Text:
    """Return cells of the given widths in one line: a mark, then columns. A width of 0 is any."""
    line = Text()
    for place, (content, width) in enumerate(cells):
        cell = content.copy() if isinstance(content, Text) else Text(content)
        if width:
            cell.truncate(width, overflow="ellipsis", pad=True)
        line.append(cell).append(" " * (1 if place == 0 else GAP))
    line.rstrip()
    return line
