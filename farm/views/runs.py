"""Runs as tables for people. No table shows a latency of an emulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from farm import stats, words
from farm.types import Run
from farm.views.tables import Column, table_of


def final_table(runs: Sequence[Run], width: int) -> Table:
    """What came of each job. In less than 140 cells the reasons of those that failed are below the table."""
    columns: list[Column[Run]] = [
        Column("device", lambda run: run.device, style="bold"),
        Column("profile", lambda run: run.profile, 90, style="bright_black"),
        Column("model", lambda run: run.model),
        Column("threads", _threads, right=True, rare=True),
        Column("cores", _cores, rare=True),
        Column("verdict", _verdict),
        Column("p50 ms", p50, right=True),
        Column("IQR %", _iqr, right=True),
        Column("95 % interval", _p50_interval, 110, right=True),
        Column("p90 ms", _percentile("p90_ms"), 90, right=True),
        Column("p95 ms", _percentile("p95_ms"), 130, right=True),
        Column("p99 ms", _percentile("p99_ms"), 120, right=True),
        Column("inf/s", words.per_second, right=True, rare=True),
        Column("W", _figure(stats.power_w), 100, right=True, rare=True),
        Column("mJ/inf", _figure(stats.each_j, 1e3), right=True, rare=True),
        Column("launches", _launches, 100, rare=True),
        Column("samples", _samples, 130, right=True),
        Column("peak MB", words.peak_memory, 120, right=True),
        Column("top-1 %", _top1, right=True),
        Column("ref %", _reference_top1, 120, right=True),
        Column("max err", _max_error, right=True),
        Column("why", words.why, 140, style="bright_black"),
    ]
    table = table_of(columns, runs, width)
    bad = [run for run in runs if not run.good]
    if bad and width < 140:
        lines = words.complaints((run.device, run.model, words.why(run)) for run in bad)
        table.caption = Text("\n".join(words.plain(f"✗ {whose}: {error}") for whose, error in lines), "red")
        table.caption_justify = "left"
    return table


def history_table(runs: Sequence[Run], width: int) -> Table:
    """Runs in the order given, a line each. The digest is the artifact's, as much as tells it apart."""
    columns: list[Column[Run]] = [
        Column("date (UTC)", lambda run: words.moment(run.started_at), style="bright_black"),
        Column("device", lambda run: run.device, style="bold"),
        Column("model", lambda run: run.model),
        Column("threads", _threads, right=True, rare=True),
        Column("cores", _cores, rare=True),
        Column("verdict", _verdict),
        Column("p50 ms", p50, right=True),
        Column("IQR %", _iqr, 100, right=True),
        Column("top-1 %", _top1, 110, right=True),
        Column("max err", _max_error, 90, right=True),
        Column("digest", lambda run: (run.artifact_digest or "")[:8], 120, style="bright_black"),
        Column("run", lambda run: run.id[:6], style="bright_black"),
        Column("why", words.why, 140, style="bright_black"),
    ]
    return table_of(columns, runs, width)


def _verdict(run: Run) -> Text:
    return Text(run.verdict.value, words.VERDICT_STYLE[run.verdict])


def _threads(run: Run) -> str:
    return "" if run.threads is None else str(run.threads)


def _cores(run: Run) -> str:
    return f"{run.cores or 'its own'}{', pinned' if run.pinned else ''}" if run.cores or run.pinned else ""


def p50(run: Run) -> str:
    if run.latency is None:
        return ""
    return "emulated" if run.emulated else words.digits(run.latency.p50_ms)


def _iqr(run: Run) -> str:
    if run.latency is None or run.emulated or run.latency.count < stats.JUDGED_COUNT or run.latency.p50_ms == 0:
        return ""
    return f"{100 * stats.spread(run.latency):.1f}"


def _p50_interval(run: Run) -> str:
    if run.emulated or run.latency is None or run.latency.p50_interval_ms is None or run.latency.count < stats.JUDGED_COUNT:
        return ""
    return "–".join(words.digits(end) for end in run.latency.p50_interval_ms)


def _samples(run: Run) -> str:
    """How many; of what, where each is a block of inferences."""
    if run.latency is None:
        return ""
    return str(run.latency.count) if run.latency.block == 1 else f"{run.latency.count} × {run.latency.block}"


def _percentile(name: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        value = getattr(run.latency, name) if run.latency else None
        return "" if run.emulated or value is None else words.digits(value)

    return cell


def _figure(value: Callable[[Run], float | None], unit: float = 1.0) -> Callable[[Run], str]:
    """What a number of a run is, in a unit; empty where there is none."""

    def cell(run: Run) -> str:
        found = value(run)
        return "" if found is None else words.digits(unit * found)

    return cell


def _launches(run: Run) -> str:
    """How a GPU was given the steps of an inference."""
    facts = run.samples.facts_after if run.samples else {}
    return facts.get("gpu_launches", "").partition(":")[0]


def _top1(run: Run) -> str:
    if run.samples is None or not run.samples.total or run.samples.correct is None:
        return ""
    return f"{100 * run.samples.correct / run.samples.total:.1f}"


def _reference_top1(run: Run) -> str:
    if not run.reference_total or run.reference_correct is None:
        return ""
    return f"{100 * run.reference_correct / run.reference_total:.1f}"


def _max_error(run: Run) -> str:
    return words.error_figure(run.samples) if run.samples else ""
