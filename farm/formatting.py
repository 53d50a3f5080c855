"""Format numbers, times and runs consistently for the dashboard, the tables and `deploy`.

The result is plain text; a style is a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from farm import sanitize, stats
from farm.types import DeviceResults, Latency, Run, Verdict

VERDICT_STYLE = {
    Verdict.RIGHT: "bold green",
    Verdict.STABLE: "bold green",
    Verdict.NOISY: "bold yellow",
    Verdict.THROTTLED: "bold yellow",
    Verdict.EMULATED: "bold magenta",
    Verdict.WRONG: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.UNAVAILABLE: "bold yellow",
    Verdict.SKIPPED: "bold yellow",
}

_BARS = "▁▂▃▄▅▆▇█"
sanitized_line = sanitize.sanitized_line


def format_number(value: float, count: int = 3) -> str:
    """Return a number with `count` significant digits, or more if its integer part has more.

    For example: 0.00231, 97.8, 1234.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.{count - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if exponent < -3:
        mantissa, _, power = f"{value:.{count - 1}e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{value:.{max(0, count - 1 - exponent)}f}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 device, 20 devices, 20 000 devices (with narrow spaces)."""
    return f"{number:,} {noun}{'s' * (number != 1)}".replace(",", "\u202f")


def percent(correct: int, total: int) -> str:
    """Return the share as a percentage."""
    return f"{100 * correct / total:.1f} %"


def sparkline(values: Sequence[float]) -> str:
    """Return one character per value, higher for larger values.

    The scale reaches from the smallest to the largest value, but covers at least 10 % of the
    largest.
    """
    low, high = min(values), max(values)
    room = max(high - low, 0.1 * high) or 1.0
    return "".join(
        _BARS[min(len(_BARS) - 1, int((value - low) / room * len(_BARS)))] for value in values
    )


def format_duration(seconds: float) -> str:
    """Return a duration as 7.3s, 1:24 or 2:03:07."""
    if seconds < 10:
        return f"{int(10 * seconds) / 10:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes == 0:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def timestamp(started_at: str) -> str:
    """Return an ISO 8601 time to the minute: 2026-07-01 12:34."""
    return started_at[:16].replace("T", " ")


def format_median_latency_and_iqr(run: Run) -> str:
    """Return the median and, after ±, the relative interquartile range of a run.

    It is empty without a latency, and never a number for an emulated device.
    """
    if run.latency is None:
        return ""
    if run.emulated:
        return "emulated"
    return f"{format_number(run.latency.p50_ms)} ms{format_spread(run.latency)}"


def format_spread(latency: Latency) -> str:
    """Return ± and the relative interquartile range; empty for too few samples."""
    if latency.count < stats.JUDGED_COUNT or latency.p50_ms == 0:
        return ""
    return f" ±{stats.relative_iqr(latency) * 100:.0f} %"


def result_descriptions_longest_first(run: Run) -> list[str]:
    """Return descriptions of the run's results, from the longest to the shortest.

    A description gives the accuracy if it was measured, otherwise the maximum error. If a batch was
    requested, it begins with the inferences per second.
    """
    if run.samples is None:
        return [""]
    error = f"max err {format_max_error(run.samples)}"
    if speed := format_throughput(run):
        return [f"{speed}/s, {error}", f"{speed}/s"]
    if not run.samples.total or run.samples.correct is None:
        return [error]
    own = f"top-1 {percent(run.samples.correct, run.samples.total)}"
    if not run.reference_total or run.reference_correct is None:
        return [f"{own}, {error}", own]
    reference = percent(run.reference_correct, run.reference_total)
    return [f"{own} (ref {reference}), {error}", f"{own} (ref {reference})", own]


def format_throughput(run: Run) -> str:
    """Return inferences per second; empty without a requested batch or for an emulated device."""
    rate = stats.inferences_per_second(run)
    return "" if rate is None else format_number(rate)


def format_peak_memory(run: Run) -> str:
    """Return the peak memory of the session on the device, in MB; empty for an emulated device."""
    peak = run.samples.memory_peak_bytes if run.samples else None
    return "" if peak is None or run.emulated else format_number(1e-6 * peak)


def format_max_error(samples: DeviceResults) -> str:
    """Return the maximum absolute error with two significant digits."""
    return format_number(samples.agreement.max_abs, 2)


def verdict_reason(run: Run) -> str:
    """Return the reason of the verdict, or the error.

    For an unavailable device the result includes the fix.
    """
    if run.failure is None:
        return run.reason
    if run.verdict is Verdict.UNAVAILABLE:
        return "; ".join(
            part for part in (run.failure.why or run.failure.what, run.failure.fix) if part
        )
    return run.failure.what


def group_errors(errors: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Group (device, model, error) to (device and its models, error).

    Models of one device with the same error share one entry. Entries are in the order of their last
    occurrence.
    """
    models: dict[tuple[str, str], list[str]] = {}
    for device, model, error in errors:
        alike = models.pop((device, error), [])
        models[device, error] = [*alike, model]
    return [(f"{device} {', '.join(names)}", error) for (device, error), names in models.items()]
