"""Runs -> what a report says of them. A value, which `html` and `markdown` show; nothing is drawn here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm import comparison, stats, words
from farm.comparison import Move, Pair
from farm.types import Run, Verdict
from farm.views.roofline import Roofline


@dataclass(frozen=True, slots=True)
class Series:
    """A model on a device over time: its runs, oldest first; those of them that were timed; where these took a step; and how the newest
    compares with the baseline, where there is one."""

    runs: tuple[Run, ...]
    timed: tuple[Run, ...]
    moves: tuple[Move, ...]
    pair: Pair | None = None

    @property
    def newest(self) -> Run:
        return self.runs[-1]

    @property
    def changed(self) -> bool:
        """Whether the newest is surely slower or faster than the baseline."""
        return self.pair is not None and self.pair.found.change in (stats.Change.SLOWER, stats.Change.FASTER)

    @property
    def medians(self) -> list[float]:
        return [run.latency.p50_ms for run in self.timed if run.latency]

    @property
    def steps(self) -> list[int]:
        return [move.step.index for move in self.moves]


@dataclass(frozen=True, slots=True)
class Report:
    """All series, by device and model (with how it computes there); `baseline` is the name of what they are compared with, or empty."""

    title: str
    made_at: str  # ISO 8601, UTC
    baseline: str
    devices: tuple[str, ...]
    models: tuple[str, ...]
    series: Mapping[tuple[str, str], Series]
    rooflines: tuple[Roofline, ...] = ()

    @property
    def run_count(self) -> int:
        return sum(len(one.runs) for one in self.series.values())

    @property
    def newest(self) -> list[Run]:
        return [one.newest for one in self.series.values()]

    @property
    def verdicts(self) -> dict[Verdict, int]:
        """How many of the newest runs have which verdict."""
        counted = Counter(run.verdict for run in self.newest)
        return {verdict: counted[verdict] for verdict in Verdict if counted[verdict]}

    @property
    def pairs(self) -> list[Pair]:
        return [one.pair for one in self.series.values() if one.pair]

    @property
    def complaints(self) -> list[tuple[str, str]]:
        """What went wrong in the newest runs: whose, and what; one for all models of a device that failed alike."""
        bad = [run for run in self.newest if not run.good]
        return [(words.plain(whose), words.plain(what)) for whose, what in words.complaints((r.device, r.title, words.why(r)) for r in bad)]

    def as_json(self) -> dict[str, Any]:
        """The newest run of each model on each device, the steps and the comparison."""
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
                    "reason": words.why(run),
                    "p50_ms": run.latency.p50_ms if run.latency and not run.emulated else None,
                }
                for run in self.newest
            ],
            "steps": [
                {"device": move.after.device, "model": move.after.title, "run": move.after.id, "ratio": move.step.ratio}
                for one in self.series.values()
                for move in one.moves
            ],
            "comparison": [pair.as_json() for pair in self.pairs],
        }


def gather(
    runs: Iterable[Run], *, title: str, made_at: str, baseline: str = "", before: Sequence[Run] = (), rooflines: Sequence[Roofline] = ()
) -> Report:
    """The report on these runs. `before` are the runs of the baseline; devices and models are in the order of their names."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        found.setdefault((run.device, run.title), []).append(run)
    pairs = {(pair.second.device, pair.second.title): pair for pair in _pairs(found, before)}
    series = {}
    for key in sorted(found):
        timed = comparison.timed(found[key])
        series[key] = Series(tuple(found[key]), tuple(timed), tuple(comparison.moves(timed)), pairs.get(key))
    devices, models = (tuple(sorted({key[place] for key in series})) for place in (0, 1))
    return Report(title, made_at, baseline, devices, models, series, tuple(rooflines))


def _pairs(found: Mapping[tuple[str, str], Sequence[Run]], before: Sequence[Run]) -> list[Pair]:
    """The baseline's runs beside the newest of the same model on the same device, all compared at once."""
    return comparison.compare([(run, found[key][-1]) for run in before if (key := (run.device, run.title)) in found])
