"""Live progress display: a table with one row per job, updated by events.

    board               the state of all jobs, a pure function of the events
    render              draw a board: one line per job
    devices             draw a board that has too many jobs: one line per device
    groups              draw a board that has too many devices: one line per group, and what is odd
    eta                 estimate the remaining time
    widgets             colours, marks, bars and counts of jobs by state
    display             where progress goes: a terminal region, log lines, or nowhere
    show                the display of the jobs of a command
    accuracy_progress   the display of `farm accuracy`
    tuning              the display of `farm tune`

Use:

    with dashboard.show(console, jobs) as show:
        show(event)         apply an event of a job; redraws at most 8 times a second
        show.tick()         call between events, to update the elapsed times

If the output is not a terminal, the display is a log with a line for each stage that a job enters.
"""

from farm.dashboard.accuracy_progress import show_counting
from farm.dashboard.board import Board, Row
from farm.dashboard.render import render
from farm.dashboard.show import Show, show
from farm.dashboard.tuning import kernel_table
from farm.dashboard.tuning import show as show_tuning

__all__ = ["Board", "Row", "Show", "kernel_table", "render", "show", "show_counting", "show_tuning"]
