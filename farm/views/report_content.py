"""The content of a report, computed from runs.

A `Report` is a value; `html` and `markdown` show it, and nothing is drawn here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm import comparison, formatting, stats
from farm.comparison import Changepoint, RunComparison
from farm.types import Run, Verdict
from farm.views.profile_roofline_data import ProfileRoofline


@dataclass(frozen=True, slots=True)
class RunSeries:
    """A model on a device over time.

    `runs` are its runs, oldest first; `timed` those of them with a latency; `moves` the steps
    between the timed ones; `pair` the comparison of the newest with the baseline, if there is one.
    """

    runs: tuple[Run, ...]
    timed: tuple[Run, ...]
    moves: tuple[Changepoint, ...]
    pair: RunComparison | None = None

    @property
    def newest(self) -> Run:
        """Return the newest run."""
        return self.runs[-1]

    @property
    def changed(self) -> bool:
        """Return whether the newest run is significantly slower or faster than the baseline."""
        return self.pair is not None and self.pair.found.change in (
            stats.ChangeVerdict.SLOWER,
            stats.ChangeVerdict.FASTER,
        )

    @property
    def medians(self) -> list[float]:
        """Return the median latencies of the timed runs, in milliseconds."""
        return [run.latency.p50_ms for run in self.timed if run.latency]

    @property
    def steps(self) -> list[int]:
        """Return the indices in `timed` at which a step begins."""
        return [move.step.index for move in self.moves]


@dataclass(frozen=True, slots=True)
class Report:
    """All series, by device and model (with its number of threads and cores).

    `baseline` is the name of the runs that they are compared with, or empty.
    """

    title: str
    made_at: str  # ISO 8601, UTC
    baseline: str
    devices: tuple[str, ...]
    models: tuple[str, ...]
    series: Mapping[tuple[str, str], RunSeries]
    rooflines: tuple[ProfileRoofline, ...] = ()

    @property
    def run_count(self) -> int:
        """Return the number of runs in all series."""
        return sum(len(one.runs) for one in self.series.values())

    @property
    def newest(self) -> list[Run]:
        """Return the newest run of each series."""
        return [one.newest for one in self.series.values()]

    @property
    def verdicts(self) -> dict[Verdict, int]:
        """Return the number of newest runs with each verdict."""
        counted = Counter(run.verdict for run in self.newest)
        return {verdict: counted[verdict] for verdict in Verdict if counted[verdict]}

    @property
    def pairs(self) -> list[RunComparison]:
        """Return the comparisons with the baseline."""
        return [one.pair for one in self.series.values() if one.pair]

    @property
    def complaints(self) -> list[tuple[str, str]]:
        """Return (name, error) for the failures in the newest runs.

        Models of one device that failed alike share an entry.
        """
        bad = [run for run in self.newest if not run.good]
        return [
            (formatting.sanitized_line(whose), formatting.sanitized_line(what))
            for whose, what in formatting.group_errors(
                (r.device, r.title, formatting.verdict_reason(r)) for r in bad
            )
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the newest run of each series, the steps and the comparison, as JSON."""
        return {
            "title": self.title,
            "made_at": self.made_at,
            "runs": self.run_count,
            "newest": [
                {
                    "device": run.device,
                    "model": run.title,
                    "run": run.id,
                    "verdict": run.verdict.value,
                    "reason": formatting.verdict_reason(run),
                    "p50_ms": run.latency.p50_ms if run.latency and not run.emulated else None,
                }
                for run in self.newest
            ],
            "steps": [
                {
                    "device": move.after.device,
                    "model": move.after.title,
                    "run": move.after.id,
                    "ratio": move.step.ratio,
                }
                for one in self.series.values()
                for move in one.moves
            ],
            "comparison": [pair.as_json() for pair in self.pairs],
        }


def build_report(
    runs: Iterable[Run],
    *,
    title: str,
    made_at: str,
    baseline: str = "",
    before: Sequence[Run] = (),
    rooflines: Sequence[ProfileRoofline] = (),
) -> Report:
    """Return the report on these runs; `before` are the runs of the baseline.

    Devices and models are ordered by name.
    """
    found: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        found.setdefault((run.device, run.title), []).append(run)
    pairs = {(pair.second.device, pair.second.title): pair for pair in _pairs(found, before)}
    series = {}
    for key in sorted(found):
        timed = comparison.runs_with_latency(found[key])
        series[key] = RunSeries(
            tuple(found[key]),
            tuple(timed),
            tuple(comparison.latency_changepoints(timed)),
            pairs.get(key),
        )
    devices, models = (tuple(sorted({key[place] for key in series})) for place in (0, 1))
    return Report(title, made_at, baseline, devices, models, series, tuple(rooflines))


def _pairs(
    found: Mapping[tuple[str, str], Sequence[Run]], before: Sequence[Run]
) -> list[RunComparison]:
    """Compare the baseline's runs with the newest of the same model and device, all at once."""
    return comparison.compare_run_pairs(
        [(run, found[key][-1]) for run in before if (key := (run.device, run.title)) in found]
    )
