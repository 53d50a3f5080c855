"""What all drawings of the board are made of: colours, signs, bars, and jobs counted by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from farm.dashboard.board import Row
from farm.dashboard.placing import REFRESH_S

GAP = 2
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STATE_STYLE = {"done": "green", "failed": "red", "unavailable": "yellow", "skipped": "yellow", "running": "cyan", "waiting": "bright_black"}
STATE_MARK = {"done": "✓", "failed": "✗", "unavailable": "○", "skipped": "○", "waiting": "·"}


def spinner(now: float) -> str:
    return SPINNER[int(now / REFRESH_S) % len(SPINNER)]


def counts(by_state: Counter[str]) -> Text:
    """All jobs by state, in words: 9 jobs: 5 done, 2 running, 1 failed, 1 waiting."""
    total = by_state.total()
    text = Text(f"{total} job{'s' * (total != 1)}: ")
    parts = [Text(f"{by_state[state]} {state}", style) for state, style in STATE_STYLE.items() if by_state[state]]
    return text.append(Text(", ").join(parts))


def shares(by_state: Counter[str], width: int) -> Text:
    """A bar of so many cells: each state's share of the jobs."""
    bar, done, drawn, total = Text(), 0, 0, max(1, by_state.total())
    for state, style in STATE_STYLE.items():
        done += by_state[state]
        end = width * done // total
        bar.append(("─" if state == "waiting" else "━") * (end - drawn), style)
        drawn = end
    return bar


def states(rows: Sequence[Row]) -> Counter[str]:
    return Counter(row.state for row in rows)
