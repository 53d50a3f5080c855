"""A day of boards as bars, pure: who had which board and when, and what is reserved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.lab.entities import HOUR_S, Reservation
from farm.lab.storage.lab_database import BoardUsePeriod

WIDTH = 1440  # of a day: a minute is 1
_COLOURS = 10  # of owners, after which they come again
_LEAST = 6.0  # the width of a bar that can be seen


@dataclass(frozen=True, slots=True)
class GanttBar:
    """A bar: where it begins, its width, the colour of its owner, and what it says."""

    at: float
    width: float
    colour: int
    stretch: BoardUsePeriod


@dataclass(frozen=True, slots=True)
class BoardDayRow:
    """A board's day, and for how long it was used."""

    board: str
    bars: tuple[GanttBar, ...]
    used_s: float


@dataclass(frozen=True, slots=True)
class ReservedBar:
    """The bar of a reservation: where it begins, its width, and the colour of its owner."""

    at: float
    width: float
    colour: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class ReservedDayRow:
    """Reservations of a kind, none of which overlap."""

    kind: str
    bars: tuple[ReservedBar, ...]


def reserved_rows(reservations: Sequence[Reservation], now: float) -> list[ReservedDayRow]:
    """Return the rows of what is reserved in the next 24 hours, by kind.

    A kind has more than one row where reservations of it overlap.
    """
    until, colours = now + 24 * HOUR_S, dict[str, int]()
    rows: dict[str, list[list[ReservedBar]]] = {}
    for one in sorted(reservations, key=lambda one: (one.request.starts_at, one.number)):
        request = one.request
        start, end = max(request.starts_at, now), min(request.until, until)
        if end <= start:
            continue
        at, width = (seconds * WIDTH / (24 * HOUR_S) for seconds in (start - now, end - start))
        width = max(_LEAST, width)
        colour = colours.setdefault(request.owner, len(colours) % _COLOURS)
        bar = ReservedBar(min(at, WIDTH - width), width, colour, one)
        of_kind = rows.setdefault(request.kind, [])
        for bars in of_kind:
            if bars[-1].at + bars[-1].width <= bar.at:
                bars.append(bar)
                break
        else:
            of_kind.append([bar])
    return [ReservedDayRow(kind, tuple(bars)) for kind in sorted(rows) for bars in rows[kind]]


def gantt_rows(found: Sequence[BoardUsePeriod], since: float, now: float) -> list[BoardDayRow]:
    """Return the rows of the boards that were used, by kind and name."""
    rows: dict[tuple[str, str], list[GanttBar]] = {}
    colours: dict[str, int] = {}
    for one in sorted(found, key=lambda one: one.since):
        colour = colours.setdefault(one.owner, len(colours) % _COLOURS)
        start, end = max(one.since, since), min(one.until or now, now)
        if end < start:
            continue
        at, width = (seconds * WIDTH / (24 * HOUR_S) for seconds in (start - since, end - start))
        width = max(_LEAST, width)
        rows.setdefault((one.kind, one.board), []).append(
            GanttBar(min(at, WIDTH - width), width, colour, one)
        )
    return [
        BoardDayRow(board, tuple(bars), _covered(bars, since, now))
        for (_, board), bars in sorted(rows.items())
    ]


def _covered(bars: Sequence[GanttBar], since: float, now: float) -> float:
    """Return for how long a board was used: stretches of one board may overlap by a moment."""
    covered, reached = 0.0, since
    for bar in bars:
        start, end = max(bar.stretch.since, reached), min(bar.stretch.until or now, now)
        covered += max(0.0, end - start)
        reached = max(reached, end)
    return covered
