"""Live progress display: a table with one row per job, updated by events.

    job_board          the state of all jobs, a pure function of the events
    render_job_board   draw a board: one line per job
    device_lines       draw a board that has too many jobs: one line per device
    group_lines        draw a board that has too many devices: one line per group, and what is odd
    eta                estimate the remaining time
    widgets            colours, marks, bars and counts of jobs by state
    display            where progress goes: a terminal region, log lines, or nowhere
    job_display        the display of the jobs of a command
    accuracy_progress  the display of `farm accuracy`
    tuning_progress    the display of `farm tune`

Use:

    with dashboard.show_jobs(console, jobs) as show:  # or print_line instead of console
        show(event)         apply an event of a job; redraws at most 8 times a second
        show.tick()         call between events, to update the elapsed times

If the output is not a terminal, the display is a log with a line for each stage that a job enters.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farm.dashboard.job_board import JobBoard, JobRow
from farm.dashboard.job_display import QuietJobDisplay, show_jobs

if TYPE_CHECKING:
    from farm.dashboard.accuracy_progress import show_accuracy_progress
    from farm.dashboard.render_job_board import render
    from farm.dashboard.tuning_progress import kernel_table, show_tuning_progress

__all__ = [
    "JobBoard",
    "JobRow",
    "QuietJobDisplay",
    "kernel_table",
    "render",
    "show_accuracy_progress",
    "show_jobs",
    "show_tuning_progress",
]

# What draws with rich, which is loaded for a terminal only
_DRAWING = {
    "kernel_table": "tuning_progress",
    "render": "render_job_board",
    "show_accuracy_progress": "accuracy_progress",
    "show_tuning_progress": "tuning_progress",
}


def __getattr__(name: str) -> Any:
    """Import what draws on first use."""
    if name not in _DRAWING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_DRAWING[name]}"), name)
