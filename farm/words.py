"""Figures in words, the same in the dashboard, the tables and the one line of deploy. Plain text; a colour is a name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from farm import stats
from farm.types import Latency, Run, Samples, Verdict

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
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z^_])")  # ECMA-48: CSI, OSC and two-byte sequences


def plain(text: str) -> str:
    """Text from devices, models and errors on one line, without what a terminal might act on (escapes, bidirectional marks)."""
    return "".join(char if char.isprintable() else " " for char in _ESCAPE.sub("", text))


def digits(value: float, count: int = 3) -> str:
    """A figure with `count` significant digits, and never fewer before the point than it has: 0.00231, 97.8, 1234."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.{count - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if exponent < -3:
        mantissa, _, power = f"{value:.{count - 1}e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{value:.{max(0, count - 1 - exponent)}f}"


def counted(number: int, noun: str) -> str:
    """1 device, 20 devices, 20 000 devices (by narrow spaces)."""
    return f"{number:,} {noun}{'s' * (number != 1)}".replace(",", "\u202f")


def percent(correct: int, total: int) -> str:
    return f"{100 * correct / total:.1f} %"


def sparkline(values: Sequence[float]) -> str:
    """A character a value, the higher the larger; the scale is from the smallest to the largest, but not less than 10 % of that."""
    low, high = min(values), max(values)
    room = max(high - low, 0.1 * high) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int((value - low) / room * len(_BARS)))] for value in values)


def elapsed(seconds: float) -> str:
    """A time as 7.3s, 1:24 or 2:03:07."""
    if seconds < 10:
        return f"{int(10 * seconds) / 10:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes == 0:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(started_at: str) -> str:
    """An ISO 8601 moment to the minute: 2026-07-01 12:34."""
    return started_at[:16].replace("T", " ")


def latency(run: Run) -> str:
    """The median and, after ±, the interquartile range over it. Never a number for an emulated device; empty where there is none."""
    if run.latency is None:
        return ""
    if run.emulated:
        return "emulated"
    return f"{digits(run.latency.p50_ms)} ms{spread(run.latency)}"


def spread(latency: Latency) -> str:
    if latency.count < stats.JUDGED_COUNT or latency.p50_ms == 0:
        return ""
    return f" ±{stats.spread(latency) * 100:.0f} %"


def answers(run: Run) -> list[str]:
    """How right the answer is, from the longest way to say it to the shortest: accuracy where it was measured, else agreement; of a batch
    that was asked for, first how many inferences that is in a second."""
    if run.samples is None:
        return [""]
    error = f"max err {error_figure(run.samples)}"
    if speed := per_second(run):
        return [f"{speed}/s, {error}", f"{speed}/s"]
    if not run.samples.total or run.samples.correct is None:
        return [error]
    own = f"top-1 {percent(run.samples.correct, run.samples.total)}"
    if not run.reference_total or run.reference_correct is None:
        return [f"{own}, {error}", own]
    reference = percent(run.reference_correct, run.reference_total)
    return [f"{own} (ref {reference}), {error}", f"{own} (ref {reference})", own]


def per_second(run: Run) -> str:
    """Inferences in a second; empty where no batch was asked for, and nothing of an emulator's."""
    rate = stats.per_second(run)
    return "" if rate is None else digits(rate)


def peak_memory(run: Run) -> str:
    """The most memory of the session on the device, in MB; nothing of an emulator's."""
    peak = run.samples.memory_peak_bytes if run.samples else None
    return "" if peak is None or run.emulated else digits(1e-6 * peak)


def error_figure(samples: Samples) -> str:
    return digits(samples.agreement.max_abs, 2)


def why(run: Run) -> str:
    """Why the verdict is what it is: the reason, or what went wrong; for a device that cannot be used also what to do about it."""
    if run.failure is None:
        return run.reason
    if run.verdict is Verdict.UNAVAILABLE:
        return "; ".join(part for part in (run.failure.why or run.failure.what, run.failure.fix) if part)
    return run.failure.what


def complaints(errors: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """(device, model, error) as (whose, error), one for all models of a device that failed alike; in the order of the last of each."""
    models: dict[tuple[str, str], list[str]] = {}
    for device, model, error in errors:
        alike = models.pop((device, error), [])
        models[device, error] = [*alike, model]
    return [(f"{device} {', '.join(names)}", error) for (device, error), names in models.items()]
