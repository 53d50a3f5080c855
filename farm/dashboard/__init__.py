"""Events -> a live table, a row per job. board.py holds the state, draw.py draws it, show.py is what a command uses.

    with dashboard.show(console, jobs) as show:
        show(event)         an event of a job; drawn at most 8 times a second
        show.tick()         between events, so that the elapsed times move

Off a terminal there is no live display: a line for each stage that a job enters.
"""

from farm.dashboard.board import Board, Row
from farm.dashboard.counting import show_counting
from farm.dashboard.draw import render
from farm.dashboard.show import Show, show
from farm.dashboard.tuning import kernel_table
from farm.dashboard.tuning import show as show_tuning

__all__ = ["Board", "Row", "Show", "kernel_table", "render", "show", "show_counting", "show_tuning"]
