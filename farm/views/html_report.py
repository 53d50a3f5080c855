"""A report as one self-contained HTML page: no network, no framework.

The templates are in `templates/`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm import formatting, sanitize, stats
from farm.types import Run, Verdict
from farm.views import charts
from farm.views.report_content import Report

if TYPE_CHECKING:
    from jinja2 import Environment

_KIND = {
    **dict.fromkeys((Verdict.RIGHT, Verdict.STABLE), "good"),
    **dict.fromkeys(
        (Verdict.NOISY, Verdict.THROTTLED, Verdict.UNAVAILABLE, Verdict.SKIPPED), "warn"
    ),
    **dict.fromkeys((Verdict.WRONG, Verdict.FAILED), "bad"),
    Verdict.EMULATED: "none",
}
_SIGN = {"good": "✓", "warn": "!", "bad": "✗", "none": "–"}
_PARTS = 9  # of a ledger that get a colour; the others are added up
_FACTS = (
    "cpu",
    "gpu",
    "gpu_driver",
    "gpu_launches",
    "kernel",
    "board_model",
    "soc",
    "android",
    "battery_percent",
    "external_power",
    "battery_saver",
    "screen_on",
    "thermal_status",
    "governor",
    "cores",
    "threads",
    "frequency_khz",
    "temperatures_c",
    "load_1m",
    "memory_available_bytes",
    "agent",
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on a scale: its position in % of the length, and its text."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class TimeSpentByDevice:
    """The seconds that each device's newest runs spent, by part.

    `parts` names the columns. A row is a device, its seconds by part, and their sum.
    """

    parts: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...], float], ...]

    @property
    def longest_s(self) -> float:
        """Return the largest sum of a row, in seconds."""
        return max((total for _, _, total in self.rows), default=0.0)


def render_page(report: Report) -> str:
    """Return the whole page."""
    return (
        _environment()
        .get_template("report.html")
        .render(report=report, transposed=len(report.devices) < len(report.models))
    )


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("farm.views"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "plain": formatting.sanitized_line,
        "digits": formatting.format_number,
        "moment": formatting.timestamp,
        "seconds": _seconds,
        "count": formatting.format_count,
    }
    drawn = (
        charts.sparkline_chart,
        charts.history_chart,
        charts.density_chart,
        charts.stacked_bar,
        charts.ratio_with_interval_chart,
        charts.roofline_chart,
    )
    made.globals |= {draw.__name__: _marked(Markup, draw) for draw in drawn}
    made.globals |= {
        "kind": lambda run: _KIND[run.verdict],
        "sign": lambda run: _SIGN[_KIND[run.verdict]],
        "verdict_kind": _KIND.__getitem__,
        "why": formatting.verdict_reason,
        "p50": lambda run: formatting.format_number(run.latency.p50_ms) if _shows(run) else "",
        "iqr": lambda run: f"{100 * stats.relative_iqr(run.latency):.1f}" if _judged(run) else "",
        "interval": lambda ends: "–".join(map(formatting.format_number, ends)) if ends else "",
        "answer": lambda run: formatting.result_descriptions_longest_first(run)[0],
        "intervals": lambda one: [run.latency.p50_interval_ms for run in one.timed],
        "history_scale": charts.history_scale,
        "model_scale": model_scale,
        "ratio_scale": ratio_scale,
        "ticks": ticks,
        "ledger": time_spent_by_device,
        "facts": run_property_pairs,
        "identifier": fragment_identifier,
        "shows": _shows,
        "points_of": lambda roof: [
            (point.intensity, point.gflops, point.share) for point in roof.drawn
        ],
    }
    return made


def model_scale(report: Report, model: str) -> charts.LogScale | None:
    """Return one scale for the newest runs of a model on all devices; None if none was timed."""
    runs = [
        report.series[device, model].newest
        for device in report.devices
        if (device, model) in report.series
    ]
    ends = [
        1e3 * end
        for run in runs
        if _shows(run) and run.samples
        for end in _ends(run.samples.seconds)
        if end > 0
    ]
    return charts.LogScale.over(ends) if ends else None


def ratio_scale(report: Report) -> charts.LogScale:
    """Return one scale for all comparisons, symmetric around 1."""
    values = [
        value
        for pair in report.pairs
        for value in (pair.found.ratio, *(pair.found.interval or ()))
        if value > 0
    ]
    furthest = max([1.05, *(max(value, 1 / value) for value in values)])
    return charts.LogScale(1 / min(furthest, 4.0), min(furthest, 4.0))


def ticks(scale: charts.LogScale, most: int = 6) -> list[Tick]:
    """Return the ticks of a scale."""
    return [Tick(round(100 * scale.at(value), 2), f"{value:.4g}") for value in scale.ticks(most)]


def time_spent_by_device(report: Report) -> TimeSpentByDevice:
    """Return the seconds per part and device, with the smallest parts added up as "other".

    The `_PARTS` parts that took the most time are shown, in the order in which they happen.
    """
    spent: dict[str, dict[str, float]] = {}
    for one in report.series.values():
        mine = spent.setdefault(one.newest.device, {})
        for part, seconds in (one.newest.samples.ledger if one.newest.samples else {}).items():
            mine[part] = mine.get(part, 0.0) + seconds
    spent = {device: parts for device, parts in spent.items() if sum(parts.values()) > 0}
    order = list(dict.fromkeys(part for parts in spent.values() for part in parts))
    longest = set(
        sorted(order, key=lambda part: -sum(parts.get(part, 0.0) for parts in spent.values()))[
            :_PARTS
        ]
    )
    shown = [part for part in order if part in longest]
    rows = []
    for device, parts in spent.items():
        other = sum(seconds for part, seconds in parts.items() if part not in longest)
        rows.append(
            (device, (*(parts.get(part, 0.0) for part in shown), other), sum(parts.values()))
        )
    return TimeSpentByDevice((*shown, "other"), tuple(rows))


def run_property_pairs(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the properties of a run besides its measurements, as (name, value)."""
    yield "run", run.id
    yield "at", f"{formatting.timestamp(run.started_at)} UTC"
    yield "profile", f"{run.profile}, {run.url}"
    if run.artifact_digest:
        yield "artifact", run.artifact_digest[:12]
    if run.samples:
        yield (
            "first inference",
            f"{formatting.format_number(1e3 * run.samples.first_s)} ms"
            if not run.emulated
            else "emulated",
        )
        said = run.samples.facts_before
        yield from (
            (name.replace("_", " "), _readable(said[name])) for name in _FACTS if said.get(name)
        )
    if run.versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())


def fragment_identifier(report: Report, run: Run) -> str:
    """Return the fragment identifier of a model on a device within the page."""
    return f"m{report.models.index(run.title)}d{report.devices.index(run.device)}"


def _visible(value: Any) -> Any:
    """Return the text of a template expression without characters that reorder or hide text.

    The charts' SVG is returned unchanged.
    """
    return (
        "\u202f".join(map(sanitize.sanitized_line, value.split("\u202f")))
        if type(value) is str
        else value
    )


def _marked(markup: Any, draw: Any) -> Any:
    return lambda *arguments: markup(draw(*arguments))


def _shows(run: Run) -> bool:
    return run.latency is not None and run.latency.p50_ms > 0 and not run.emulated


def _judged(run: Run) -> bool:
    return _shows(run) and run.latency is not None and run.latency.count >= stats.JUDGED_COUNT


def _ends(seconds: Sequence[float]) -> tuple[float, float]:
    return (min(seconds), max(seconds)) if seconds else (0.0, 0.0)


def _readable(value: str) -> str:
    """Return a fact without JSON syntax: {"cpu": 41.2} becomes cpu 41.2."""
    try:
        content = json.loads(value)
    except ValueError:
        return value
    if isinstance(content, Mapping):
        return ", ".join(f"{name} {item}" for name, item in content.items())
    return ", ".join(map(str, content)) if isinstance(content, list) else str(content)


def _seconds(value: float) -> str:
    return (
        ""
        if value == 0
        else "<0.01"
        if value < 0.005
        else f"{value:.2f}"
        if value < 10
        else f"{value:.1f}"
    )
