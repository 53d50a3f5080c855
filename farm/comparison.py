"""Comparison of two sets of runs: matching runs, their latencies, other differences between them.

It also finds the steps in a history of runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farm import formatting as words
from farm import stats
from farm.errors import FarmError
from farm.types import PairedSamples, Run, Verdict

_COMPARABLE = (Verdict.STABLE, Verdict.NOISY, Verdict.THROTTLED)
_FACTS = (
    "cpu",
    "gpu",
    "gpu_driver",
    "gpu_launches",
    "kernel",
    "governor",
    "cores",
    "max_frequency_khz",
    "agent",
    "tvm",
)
_WARMER_C = 5.0
_BUSIER = 0.5  # load average


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A model on a device, before and after, with the comparison of its latencies.

    `differences` are the other differences between the runs, in words. `turns` are the measurements
    if both builds were measured again interleaved, `failure` the error that prevented that.
    """

    first: Run
    second: Run
    found: stats.Comparison
    differences: tuple[str, ...]
    turns: PairedSamples | None = None
    failure: FarmError | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the pair as a JSON object; NaN becomes null."""
        found = {**asdict(self.found), "change": self.found.change.value}
        # JSON has no NaN
        found = {name: None if value != value else value for name, value in found.items()}
        names = {
            "device": self.second.device,
            "model": self.second.title,
            "first": self.first.id,
            "second": self.second.id,
        }
        turns = (
            {"before_s": self.turns.before, "after_s": self.turns.after, "loads": self.turns.loads}
            if self.turns
            else None
        )
        failure = asdict(self.failure.as_failure()) if self.failure else None
        return {
            **names,
            **found,
            "differences": list(self.differences),
            "in_turns": turns,
            "failure": failure,
        }


@dataclass(frozen=True, slots=True)
class Changepoint:
    """A step in the latencies of a history: the runs on both sides of it, and their differences.

    `differences` are the other differences between the two runs, in words.
    """

    before: Run
    after: Run
    step: stats.LevelShift
    differences: tuple[str, ...]

    @property
    def in_words(self) -> str:
        """The step in words: when it happened, its size, and what else changed."""
        effect = (
            f"{words.format_number(self.step.before)} → "
            f"{words.format_number(self.step.after)} ms "
            f"({100 * (self.step.ratio - 1):+.0f} %)"
        )
        changed = "; ".join(self.differences) or "nothing that farm knows of changed there"
        return (
            f"step at {words.timestamp(self.after.started_at)}, run {self.after.id[:6]}: {effect}: "
            f"{changed}"
        )


def runs_with_latency(runs: Iterable[Run]) -> list[Run]:
    """Return the runs whose latency can be shown: neither emulated nor without a latency."""
    return [run for run in runs if run.latency and run.latency.p50_ms > 0 and not run.emulated]


def latency_changepoints(runs: Sequence[Run]) -> list[Changepoint]:
    """Return the steps in the medians of one model's runs on one device, in time order."""
    found = stats.find_level_shifts([run.latency.p50_ms for run in runs if run.latency])
    sides = [(runs[step.index - 1], runs[step.index], step) for step in found]
    return [
        Changepoint(before, after, step, tuple(describe_differences(before, after)))
        for before, after, step in sides
    ]


def pair_runs(first: Iterable[Run], second: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs with the same model and device in both sets.

    Two single runs are a pair, whatever their models and devices.
    """
    first, second = list(first), list(second)
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    known = {(run.device, run.title): run for run in first}
    return [(known[key], run) for run in second if (key := (run.device, run.title)) in known]


def compare_run_pairs(
    pairs: Sequence[tuple[Run, Run]], confidence: float = stats.CONFIDENCE
) -> list[RunComparison]:
    """Compare the latencies of each pair.

    The result is UNSURE for a pair with a run that is not STABLE, whatever its numbers are.
    """
    trusted = [pair for pair in pairs if not any(map(_doubt, pair))]
    found = dict(
        zip(
            map(id, trusted),
            stats.compare_separate_runs(
                [(_seconds(a), _seconds(b)) for a, b in trusted], confidence
            ),
            strict=True,
        )
    )
    return [
        RunComparison(
            *pair, found.get(id(pair)) or _untold(*pair), tuple(describe_differences(*pair))
        )
        for pair in pairs
    ]


def compare_interleaved_measurements(
    pairs: Sequence[tuple[Run, Run]],
    measured: Sequence[PairedSamples | FarmError],
    confidence: float = stats.CONFIDENCE,
) -> list[RunComparison]:
    """Compare each pair of builds that were measured again interleaved.

    A FarmError in `measured`, in place of the measurements, makes its pair UNSURE.
    """
    there = [found for found in measured if isinstance(found, PairedSamples)]
    loads = [found.loads for found in there]
    compared = iter(
        stats.compare_interleaved_pairs(
            [(found.before, found.after) for found in there], confidence, loads
        )
    )
    pairs_found = []
    for (first, second), found in zip(pairs, measured, strict=True):
        also = tuple(describe_differences(first, second, facts=False))
        if isinstance(found, PairedSamples):
            pairs_found.append(RunComparison(first, second, next(compared), also, turns=found))
        else:
            untold = stats.Comparison(
                float("nan"), None, None, stats.ChangeVerdict.UNSURE, f"cannot tell: {found.what}"
            )
            pairs_found.append(RunComparison(first, second, untold, also, failure=found))
    return pairs_found


def _untold(first: Run, second: Run) -> stats.Comparison:
    """Return the UNSURE comparison of two runs, with the reason."""
    doubts = [
        f"{name} is {_doubt(run)}"
        for name, run in (("the first", first), ("the second", second))
        if _doubt(run)
    ]
    both = all(
        run.verdict in _COMPARABLE and run.latency and run.latency.p50_ms > 0
        for run in (first, second)
    )
    ratio = (
        second.latency.p50_ms / first.latency.p50_ms
        if both and first.latency and second.latency
        else float("nan")
    )
    return stats.Comparison(
        ratio, None, None, stats.ChangeVerdict.UNSURE, f"cannot tell: {'; '.join(doubts)}"
    )


def _doubt(run: Run) -> str:
    """Return why a run's latency is not to be trusted; empty if it is."""
    return (
        ""
        if run.verdict is Verdict.STABLE and run.samples
        else f"{run.verdict.value}: {run.reason}"
    )


def _seconds(run: Run) -> tuple[float, ...]:
    return run.samples.seconds if run.samples else ()


def describe_differences(first: Run, second: Run, facts: bool = True) -> list[str]:
    """Return the other differences between two runs, in words.

    They are names, versions, the import, the build and, with `facts`, facts of the device. An
    import differs with the model, its data and limits, and the versions of farm and TVM that made
    it.
    """
    found = [
        _changed(name, getattr(first, name), getattr(second, name))
        for name in ("title", "device", "profile", "url")
    ]
    found.append(
        _changed("import", (first.model_digest or "")[:8], (second.model_digest or "")[:8])
        if first.model_digest
        else ""
    )
    found.append(
        _changed("artifact", (first.artifact_digest or "")[:8], (second.artifact_digest or "")[:8])
    )
    for name in sorted({*first.versions, *second.versions}):
        found.append(
            _changed(
                name, first.versions.get(name, "unknown"), second.versions.get(name, "unknown")
            )
        )
    if facts and first.samples and second.samples:
        one, other = first.samples.facts_before, second.samples.facts_before
        found += [
            _changed(name, one.get(name, "unknown"), other.get(name, "unknown")) for name in _FACTS
        ]
        found.append(
            _changed(
                "timed",
                *(
                    "in blocks" if samples.block > 1 else "one by one"
                    for samples in (first.samples, second.samples)
                ),
            )
        )
        found.append(_apart("temperature", "°C", _hottest(first), _hottest(second), _WARMER_C))
        found.append(
            _apart("load", "", _number(one.get("load_1m")), _number(other.get("load_1m")), _BUSIER)
        )
    return [words for words in found if words]


def _changed(name: str, before: str, after: str) -> str:
    return f"{name}: {before} → {after}" if before != after else ""


def _apart(name: str, unit: str, before: float | None, after: float | None, bar: float) -> str:
    if before is None or after is None or abs(after - before) <= bar:
        return ""
    return f"{name}: {before:.1f} → {after:.1f} {unit}".rstrip()


def _hottest(run: Run) -> float | None:
    assert run.samples
    readings = [run.samples.facts_before, *run.samples.facts_during, run.samples.facts_after]
    return max(
        (
            float(value)
            for facts in readings
            for value in json.loads(facts.get("temperatures_c", "{}")).values()
        ),
        default=None,
    )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
