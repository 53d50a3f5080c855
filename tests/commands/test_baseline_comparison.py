"""Shares that a slowdown is given as, and comparisons with a baseline."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest
from report_runs import timed

from farm import comparison
from farm.commands.judge import baseline_comparison
from farm.commands.judge.baseline_comparison import PercentageParamType
from farm.pipeline import compare
from farm.stats import ChangeVerdict
from farm.types import Run

NO_SESSION: Any = None


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("2.5%", 0.025), ("2", 2.0), ("0", 0.0)]
)
def test_a_slowdown_is_a_share_or_a_percentage(text: str, share: float) -> None:
    assert PercentageParamType().convert(text, None, None) == pytest.approx(share)


@pytest.mark.parametrize("text", ["-5%", "10", "1000%", "five", "5 %", ""])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no share such as"):
        PercentageParamType().convert(text, None, None)


def test_pairs_that_may_be_tested_twice_are_tested_more_strictly() -> None:
    before, after = timed("a", "net", 1, 10.0), timed("a", "net", 2, 20.0)

    def width(in_turns: bool) -> float:
        [pair] = baseline_comparison.compare_with_baseline(
            NO_SESSION, [before], [after], in_turns, None
        )
        assert pair.found.change is ChangeVerdict.SLOWER and pair.found.interval
        return pair.found.interval[1] - pair.found.interval[0]

    assert width(in_turns=True) > width(in_turns=False)


def measurable(run: Run) -> Run:
    return replace(run, artifact_digest="a" * 64, model_digest="b" * 64)


def needs_turns(before: Run, after: Run) -> bool:
    [pair] = comparison.compare_run_pairs([(before, after)])
    return baseline_comparison.needs_interleaved_measurement(pair)


def test_only_builds_that_compute_alike_are_measured_in_turns_and_only_if_unsure() -> None:
    before, after = (measurable(timed("a", "net", number, spread=0.3)) for number in (1, 2))
    assert needs_turns(before, after)
    for changes in (
        {"pinned": True},
        {"threads": 2},
        {"cores": "little"},
        {"profile": "rasp3b"},
        {"artifact_digest": ""},
        {"model_digest": ""},
        {"url": "qemu:"},
    ):
        assert not needs_turns(before, replace(after, **changes)), changes
    slower = measurable(timed("a", "net", 3, 20.0))
    assert not needs_turns(measurable(timed("a", "net", 1)), slower)


def test_only_builds_that_will_be_measured_again_must_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(compare, "pair_of_builds", lambda run, *_: asked.append(run.id))
    session: Any = SimpleNamespace(fleet=lambda: None, artifacts=lambda: None)
    jobs: list[Any] = [
        SimpleNamespace(device=SimpleNamespace(name=device, emulated=device == "pi3"), title="net")
        for device in ("a", "pi3")
    ]
    before = [timed(device, "net", 1) for device in ("a", "b", "pi3")] + [timed("a", "other", 1)]
    baseline_comparison.check_builds_remeasurable(session, before, jobs)
    assert asked == ["a-net-1"]
