"""Metrics in Prometheus's text format.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from farm import sanitize
from farm.types import Latency, Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(slots=True)
class Metric:
    """A gauge, or another kind of metric, and its values, each with its labels."""

    name: str
    help: str
    values: list[tuple[Mapping[str, str], float]] = field(default_factory=list)
    kind: str = "gauge"


class Histogram:
    """Counts of values by bucket, for each set of labels. `buckets` are upper ends, ascending."""

    def __init__(self, name: str, help: str, buckets: Sequence[float]) -> None:  # noqa: A002
        self.name, self.help, self.kind = name, help, "histogram"
        self._buckets = (*buckets, math.inf)
        self._counts: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self._sums: dict[tuple[tuple[str, str], ...], float] = {}

    def observe(self, value: float, **labels: str) -> None:
        """Count a value."""
        key = tuple(labels.items())
        counts = self._counts.setdefault(key, [0] * len(self._buckets))
        counts[next(n for n, most in enumerate(self._buckets) if value <= most)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def lines(self) -> list[str]:
        """Return its lines; none if nothing was counted."""
        lines = _head(self) if self._counts else []
        for key, counts in sorted(self._counts.items()):
            labels, below = dict(key), 0
            for most, count in zip(self._buckets, counts, strict=True):
                below += count
                edge = _labels({**labels, "le": f"{most:g}" if most < math.inf else "+Inf"})
                lines.append(f"{self.name}_bucket{{{edge}}} {below}\n")
            lines.append(f"{self.name}_sum{{{_labels(labels)}}} {_number(self._sums[key])}\n")
            lines.append(f"{self.name}_count{{{_labels(labels)}}} {below}\n")
        return lines


def format_metrics(metrics: Iterable[Metric | Histogram]) -> str:
    """Return the metrics as text; omit a metric without values."""
    return "".join(line for metric in metrics for line in _lines(metric))


def metrics_of_runs(runs: Sequence[Run]) -> str:
    """Return the metrics of runs for a textfile collector.

    Each metric has one sample for each model on a device. Emulated devices have no latency.
    """
    latency = {
        name: Metric(f"farm_latency_{name}_seconds", f"Latency of an inference, {words}.")
        for name, words in (
            ("p50", "median"),
            ("p90", "90th percentile"),
            ("p95", "95th percentile"),
            ("p99", "99th percentile"),
        )
    }
    verdict = Metric("farm_run_verdict", "1 for the verdict of the newest run.")
    ended = Metric("farm_run_timestamp_seconds", "When the newest run ended.")
    error = Metric(
        "farm_output_error_max", "Largest absolute difference of the output from the reference's."
    )
    accuracy = Metric(
        "farm_accuracy_ratio", "Share of the labelled samples that the device gets right."
    )
    for run in runs:
        labels = {"device": run.device, "model": run.title, "profile": run.profile}
        verdict.values.append(({**labels, "verdict": run.verdict.value}, 1.0))
        ended.values.append((labels, datetime.fromisoformat(run.started_at).timestamp()))
        if run.samples:
            error.values.append((labels, run.samples.agreement.max_abs))
            if run.samples.total and run.samples.correct is not None:
                accuracy.values.append((labels, run.samples.correct / run.samples.total))
        if run.latency and not run.emulated:
            for name, metric in latency.items():
                metric.values += [
                    (labels, 1e-3 * value)
                    for value in [_percentile(run.latency, name)]
                    if value is not None
                ]
    return format_metrics([verdict, ended, *latency.values(), error, accuracy])


def _percentile(latency: Latency, name: str) -> float | None:
    value: float | None = getattr(latency, f"{name}_ms")
    return value


def _lines(metric: Metric | Histogram) -> list[str]:
    if isinstance(metric, Histogram):
        return metric.lines()
    if not metric.values:
        return []
    # a mapping, because a duplicate sample makes the whole page invalid
    values = {_labels(labels): _number(value) for labels, value in metric.values}
    return _head(metric) + [
        f"{metric.name}{{{labels}}} {value}\n" for labels, value in values.items()
    ]


def _head(metric: Metric | Histogram) -> list[str]:
    return [f"# HELP {metric.name} {metric.help}\n", f"# TYPE {metric.name} {metric.kind}\n"]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(
        f'{name}="{_plain(value).translate(_ESCAPES)}"' for name, value in labels.items()
    )


def _plain(value: str) -> str:
    """Return a label without control characters: pages of metrics are read on terminals too."""
    return sanitize.sanitized_line(value)


def _number(value: float) -> str:
    return (
        repr(float(value))
        if math.isfinite(value)
        else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    )
