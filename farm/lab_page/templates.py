"""The templates in `files/`, and what they call. All that is shown is escaped, and made visible.

The style is the report's, with what the lab adds.
"""

from __future__ import annotations

import functools
import importlib.resources
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from farm import sanitize
from farm.lab.durations import clock_time, format_duration
from farm.lab.entities import BoardView
from farm.lab_page.snapshot import BoardHealthCell

if TYPE_CHECKING:
    from jinja2 import Environment

_BADGES = {
    "free": "good",
    "leased": "none",
    "in session": "none",
    "checking": "none",
    "out": "warn",
    "silent": "bad",
    "away": "bad",
}
_HEALTHS = {"good": "good", "probation": "warn", "bad": "bad", "needs hands": "bad"}
_SIGNS = {"good": "✓", "none": "●", "bad": "✗", "warn": "!"}


def render_page(name: str, **values: Any) -> str:
    """Return a whole page."""
    return _environment().get_template(name).render(**values)


def render_part(name: str, **values: Any) -> str:
    """Return a part of the page, which is a macro of parts.html."""
    return str(_macro(name)(**values)).strip()


def render_board_row(
    view: BoardView, number: int, spark: str, health: BoardHealthCell, now: float
) -> str:
    """Return the row of a board."""
    return str(_macro("row")(view, number, spark, health, now)).strip()


@functools.cache
def style_sheet() -> str:
    """Return the style sheet."""
    return _file("farm.views", "templates/report.css") + _file("farm.lab_page", "files/lab.css")


@functools.cache
def page_script() -> str:
    """Return the script."""
    return _file("farm.views", "templates/report.js") + _file("farm.lab_page", "files/lab.js")


@functools.cache
def _macro(name: str) -> Any:
    return getattr(_environment().get_template("parts.html").module, name)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("farm.lab_page", "files"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"duration": format_duration, "moment": clock_time, "iso": _iso}
    made.globals |= {
        "badge": _BADGES.__getitem__,
        "sign": lambda use: _SIGNS[_BADGES[use]],
        "board_link": lambda name: f"/board?{urlencode({'name': name}, errors='replace')}",
        "share": lambda spark: round(100 * sum(map(int, spark)) / 9 / len(spark)) if spark else 0,
        "uses": tuple(_BADGES),
        "health_badge": lambda state: _HEALTHS.get(state, "none"),
        "health_sign": lambda state: _SIGNS[_HEALTHS.get(state, "none")],
        "polyline": latency_polyline_points,
    }
    return made


def latency_polyline_points(latencies: Sequence[int]) -> str:
    """Return the points of a line of latencies, in hundredths of the usual one, in 24 by 9.

    The usual one is in the middle; half of it and one and a half are the edges.
    """
    step = 24 / max(1, len(latencies) - 1)
    points = enumerate(min(150, max(50, one)) for one in latencies)
    return " ".join(f"{index * step:.1f},{9 * (150 - one) / 100:.1f}" for index, one in points)


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _visible(value: Any) -> Any:
    return sanitize.sanitized_line(value) if type(value) is str else value


def _file(package: str, path: str) -> str:
    return importlib.resources.files(package).joinpath(path).read_text("utf-8")
