"""Runs as tables. No table shows a latency of an emulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from farm import formatting, stats
from farm.types import Run
from farm.views.tables import (
    Column,
    build_rich_table_from_shown_columns,
    build_table,
    columns_that_fit,
    table_with_note,
)


def finished_jobs_table(runs: Sequence[Run], width: int) -> Group:
    """Return a table of finished jobs.

    The reasons of failures are listed below the table if there is no column for them.
    """
    columns: list[Column[Run]] = [
        Column("device", lambda run: run.device, style="bold", whole=True),
        Column("profile", lambda run: run.profile, 90, style="bright_black"),
        Column("model", lambda run: run.model, whole=True),
        Column("threads", _threads, right=True, rare=True),
        Column("cores", _cores, rare=True),
        Column("verdict", _verdict),
        Column("p50 ms", p50_text, right=True),
        Column("IQR %", _iqr, right=True),
        Column("95 % interval", _p50_interval, 110, right=True),
        Column("p90 ms", _percentile("p90_ms"), 90, right=True),
        Column("p95 ms", _percentile("p95_ms"), 130, right=True),
        Column("p99 ms", _percentile("p99_ms"), 120, right=True),
        Column("inf/s", formatting.format_throughput, right=True, rare=True),
        Column("W", _figure(stats.power_w), 100, right=True, rare=True),
        Column("mJ/inf", _figure(stats.energy_per_inference_j, 1e3), right=True, rare=True),
        Column("launches", _launches, 100, rare=True),
        Column("samples", _samples, 130, right=True),
        Column("peak MB", formatting.format_peak_memory, 120, right=True),
        Column("top-1 %", _top1, right=True),
        Column("ref %", _reference_top1, 120, right=True),
        Column("max err", _max_error, right=True),
        Column("why", formatting.verdict_reason, 140, style="bright_black", prose=True),
    ]
    shown = columns_that_fit(columns, runs, width)
    told = any(one.column.cell is formatting.verdict_reason for one in shown)
    bad = [] if told else [run for run in runs if not run.good and formatting.verdict_reason(run)]
    lines = formatting.group_errors(
        (run.device, run.model, formatting.verdict_reason(run)) for run in bad
    )
    return table_with_note(
        build_rich_table_from_shown_columns(shown),
        Text(
            "\n".join(formatting.sanitized_line(f"✗ {whose}: {error}") for whose, error in lines),
            "red",
        ),
    )


def history_table(runs: Sequence[Run], width: int) -> Table:
    """Return a table of runs in the order given. The digest is the artifact's, abbreviated."""
    columns: list[Column[Run]] = [
        Column(
            "date (UTC)", lambda run: formatting.timestamp(run.started_at), style="bright_black"
        ),
        Column("device", lambda run: run.device, style="bold"),
        Column("model", lambda run: run.model),
        Column("threads", _threads, right=True, rare=True),
        Column("cores", _cores, rare=True),
        Column("verdict", _verdict),
        Column("p50 ms", p50_text, right=True),
        Column("IQR %", _iqr, 100, right=True),
        Column("top-1 %", _top1, 110, right=True),
        Column("max err", _max_error, 90, right=True),
        Column("digest", lambda run: (run.artifact_digest or "")[:8], 120, style="bright_black"),
        Column("run", lambda run: run.id[:6], style="bright_black"),
        Column("why", formatting.verdict_reason, 140, style="bright_black"),
    ]
    return build_table(columns, runs, width)


def _verdict(run: Run) -> Text:
    return Text(run.verdict.value, formatting.VERDICT_STYLE[run.verdict])


def _threads(run: Run) -> str:
    return "" if run.threads is None else str(run.threads)


def _cores(run: Run) -> str:
    return (
        f"{run.cores or 'its own'}{', pinned' if run.pinned else ''}"
        if run.cores or run.pinned
        else ""
    )


def p50_text(run: Run) -> str:
    """Return a run's median latency in milliseconds as text; "emulated" for an emulated device."""
    if run.latency is None:
        return ""
    return "emulated" if run.emulated else formatting.format_number(run.latency.p50_ms)


def _iqr(run: Run) -> str:
    if (
        run.latency is None
        or run.emulated
        or run.latency.count < stats.JUDGED_COUNT
        or run.latency.p50_ms == 0
    ):
        return ""
    return f"{100 * stats.relative_iqr(run.latency):.1f}"


def _p50_interval(run: Run) -> str:
    if (
        run.emulated
        or run.latency is None
        or run.latency.p50_interval_ms is None
        or run.latency.count < stats.JUDGED_COUNT
    ):
        return ""
    return "–".join(formatting.format_number(end) for end in run.latency.p50_interval_ms)


def _samples(run: Run) -> str:
    """Return the number of samples, and of inferences per sample if there are several."""
    if run.latency is None:
        return ""
    return (
        str(run.latency.count)
        if run.latency.block == 1
        else f"{run.latency.count} × {run.latency.block}"
    )


def _percentile(name: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        value = getattr(run.latency, name) if run.latency else None
        return "" if run.emulated or value is None else formatting.format_number(value)

    return cell


def _figure(value: Callable[[Run], float | None], unit: float = 1.0) -> Callable[[Run], str]:
    """Return a function that formats a figure of a run, times `unit`; empty without the figure."""

    def cell(run: Run) -> str:
        found = value(run)
        return "" if found is None else formatting.format_number(unit * found)

    return cell


def _launches(run: Run) -> str:
    """Return how the kernels of an inference were launched on a GPU."""
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
    return formatting.format_max_error(run.samples) if run.samples else ""
