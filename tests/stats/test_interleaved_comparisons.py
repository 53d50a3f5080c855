"""Comparisons of what was measured in turns: the test against SciPy's, what disturbs both sides,
and how often they err.
"""

from __future__ import annotations

import json
import math
import os
import random
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from timeouts import LIMIT_S

from farm import comparison, interleaved_measurement, stats
from farm.errors import DeviceError
from farm.executor import compare_builds
from farm.stats import paired_test
from farm.types import PairedSamples, PairedStoppingRule, Run, Verdict

ROOT = Path(__file__).resolve().parents[2]


@given(st.lists(st.integers(-12, 12).map(float) | st.floats(-3, 3), min_size=1, max_size=80))
def test_the_signed_rank_test_is_scipys(values: list[float]) -> None:
    given_values = [value for value in values if value]
    if not given_values:
        assert paired_test.signed_rank_p(values) == 1.0
        return
    exact = len({abs(value) for value in given_values}) == len(given_values) <= 50
    wanted = scipy.stats.wilcoxon(given_values, method="exact" if exact else "asymptotic").pvalue
    assert paired_test.signed_rank_p(values) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_turns_see_through_what_disturbs_both_sides_alike() -> None:
    """The level doubles now and then, for both; one of the two is 4 % slower, or is not."""
    draw = random.Random(1)
    levels = [draw.choice((1.0, 1.0, 2.0)) * draw.gauss(1, 0.01) for _ in range(200)]
    first, same, slower = (
        [0.01 * factor * level * draw.gauss(1, 0.02) for level in levels]
        for factor in (1.0, 1.0, 1.04)
    )
    alike, apart, back = stats.compare_interleaved_pairs(
        [(first, same), (first, slower), (slower, first)]
    )
    assert alike.change is stats.ChangeVerdict.SAME
    assert (apart.change, back.change) == (stats.ChangeVerdict.SLOWER, stats.ChangeVerdict.FASTER)
    assert apart.interval and apart.interval[0] < 1.04 < apart.interval[1]
    assert stats.compare_separate_runs([(first, slower)])[0].change is stats.ChangeVerdict.UNSURE


def test_times_that_the_clock_could_not_resolve_are_short_and_not_endless() -> None:
    """A round of 0 s has a ratio, which is far from the others, as any disturbed round is."""
    draw = random.Random(4)
    first = [0.01 * draw.gauss(1, 0.01) for _ in range(40)]
    second = [1.5 * value for value in first]
    first[3] = second[7] = first[9] = second[9] = 0.0
    (found,) = stats.compare_interleaved_pairs([(first, second)])
    assert found.change is stats.ChangeVerdict.SLOWER
    assert found.ratio == pytest.approx(1.5) and found.interval == pytest.approx((1.5, 1.5))
    (none,) = stats.compare_interleaved_pairs([([0.0] * 20, [0.0] * 20)])
    assert none.change is stats.ChangeVerdict.SAME and none.ratio == 1.0


def test_rounds_that_are_alike_and_few_rounds_are_less_evidence() -> None:
    draw = np.random.default_rng(2)
    apart = draw.normal(0, 0.02, 200)
    together = np.repeat(draw.normal(0, 0.02, 20), 10)  # as much spread, but ten in a row are one
    one = np.ones(200)
    widths = [
        math.log(high / low)
        for _, (low, high) in (
            stats.interleaved_ratio_interval(one, np.exp(values)) for values in (apart, together)
        )
    ]
    assert widths[1] > 1.5 * widths[0]
    few = stats.compare_interleaved_pairs([([1.0] * 9, [2.0] * 9)])[0]
    assert few.change is stats.ChangeVerdict.UNSURE and "9 rounds are too few" in few.reason
    assert (
        stats.compare_interleaved_pairs(
            [([1.0] * 10, [2.0 + 0.01 * (7 * i % 10) for i in range(10)])]
        )[0].change
        is stats.ChangeVerdict.SLOWER
    )


def test_rounds_that_are_alike_widen_the_interval_of_builds_that_differ_too() -> None:
    draw = np.random.default_rng(2)
    together = np.repeat(draw.normal(0, 0.02, 20), 10)
    one = np.ones(200)
    (_, same), (_, slower) = (
        stats.interleaved_ratio_interval(one, np.exp(shift + together)) for shift in (0.0, 0.5)
    )
    assert slower == pytest.approx([math.exp(0.5) * end for end in same])


def test_rounds_that_are_alike_are_less_evidence_however_far_the_test_is_from_doubt() -> None:
    draw = np.random.default_rng(3)
    values = np.repeat(draw.normal(0.05, 0.01, 30), 10)  # ten in a row are one
    p = stats.compare_interleaved_pairs([(np.ones(300).tolist(), np.exp(values).tolist())])[0].p
    alone = paired_test.signed_rank_p(values)
    assert scipy.stats.norm.isf(alone / 2) > 9
    assert alone == pytest.approx(
        scipy.stats.wilcoxon(values, method="asymptotic").pvalue, rel=1e-9
    )
    assert p and 1e-15 < p < 1e-3  # about that of 30 rounds


def test_what_lasts_for_one_load_is_no_difference_of_the_builds() -> None:
    """Most rounds are of the last load, in which the second build was 4 % slower: where it lay in
    memory, perhaps.
    """
    draw = np.random.default_rng(5)
    loads = (12, 12, 300)
    slower = np.repeat([0.0, 0.0, math.log(1.04)], loads) + draw.normal(0, 0.002, sum(loads))
    always = np.full(sum(loads), math.log(1.04)) + draw.normal(0, 0.002, sum(loads))
    pairs = [(np.ones(sum(loads)).tolist(), np.exp(values).tolist()) for values in (slower, always)]
    once, each = stats.compare_interleaved_pairs(pairs, loads=[loads, loads])
    assert (
        once.change is not stats.ChangeVerdict.SLOWER and once.interval and once.interval[0] < 1.002
    )
    assert each.change is stats.ChangeVerdict.SLOWER
    assert (
        stats.compare_interleaved_pairs(pairs[:1])[0].change is stats.ChangeVerdict.SLOWER
    )  # were it one load
    low, high = stats.interleaved_ratio_interval(*pairs[0], loads=loads)[1]
    assert (low, high) == pytest.approx(once.interval, abs=0.002)
    back = stats.interleaved_ratio_interval(*pairs[0][::-1], loads=loads)[1]
    assert back == pytest.approx((1 / high, 1 / low)), "as if the first were the second"


def test_the_loads_of_a_pair_count_in_its_comparison() -> None:
    """The second build was slower in one of two loads: that shows nothing of the builds."""
    run = Run("one", "host", "net", "x86", "local:", "2026-07-01T12:00:00", Verdict.STABLE, "")
    after = tuple(1 + 0.001 * index for index in range(10)) + (1.2,) * 90
    measured = [PairedSamples((1.0,) * 100, after, {}, loads) for loads in ((10, 90), (100,))]
    each, once = comparison.compare_interleaved_measurements([(run, run)] * 2, measured)
    assert once.found.change is stats.ChangeVerdict.SLOWER
    assert each.found.change is not stats.ChangeVerdict.SLOWER
    assert each.found.interval and each.found.interval[0] == pytest.approx(1.0045, abs=1e-5)


@pytest.mark.parametrize(
    ("inference_s", "until", "loads"),
    [
        (5.0, PairedStoppingRule(seconds=20.0), [4, 3, 3]),  # ten rounds, however long they take
        (5.0, PairedStoppingRule(seconds=20.0, loads=20), [1] * 10),  # no further load then
        (0.01, PairedStoppingRule(seconds=6.0), [100, 100, 100]),
        (
            0.01,
            PairedStoppingRule(seconds=6.0, precision=0.5),
            [10, 10, 10],
        ),  # sure at the first look
    ],
)
def test_loads_share_the_time_and_the_rounds_that_are_needed(
    inference_s: float, until: PairedStoppingRule, loads: list[int]
) -> None:
    draw, now, notes = random.Random(6), 0.0, list[tuple[int, int, float]]()

    def block(count: int) -> list[float]:
        nonlocal now
        now += inference_s
        return [inference_s * draw.uniform(0.7, 1.3)] * count

    enough = compare_builds.StoppingRule(until, lambda *told: notes.append(told), lambda: now)
    while enough.another_load():
        interleaved_measurement.measure_interleaved(
            {compare_builds.BEFORE: block, compare_builds.AFTER: block}, enough, compare_builds.PACE
        )
    assert enough.loads == pytest.approx(loads, abs=1 if inference_s < 1 else 0)
    assert [load for load, rounds, _ in notes if not rounds] == list(range(len(loads)))
    assert all(0 <= share <= 1 for _, _, share in notes)


def test_a_drift_is_the_same_for_all_that_is_measured_interleaved() -> None:
    """Each inference takes longer than the one before: every other round is in reverse order."""
    ran: list[str] = []

    def block(name: str) -> interleaved_measurement.Block:
        def timed(count: int) -> list[float]:
            ran.extend(name * count)
            return [1.0 + 0.01 * (len(ran) - count + place) for place in range(count)]

        return timed

    medians = interleaved_measurement.measure_interleaved(
        {name: block(name) for name in "ab"},
        interleaved_measurement.continue_for_rounds(4),
        interleaved_measurement.BlockLength(block_s=0.0, fewest=1, warm=1),
    )
    assert "".join(ran[-16:]) == "aabbbbaaaabbbbaa"
    assert sum(medians["a"]) == pytest.approx(sum(medians["b"]))


def test_one_of_many_pairs_in_turns_needs_more_evidence() -> None:
    draw = np.random.default_rng(4)
    pairs = [
        (np.ones(12).tolist(), np.exp(draw.normal(0.05 if index == 0 else 0, 0.03, 12)).tolist())
        for index in range(20)
    ]
    alone, among = (
        stats.compare_interleaved_pairs(pairs[:1])[0],
        stats.compare_interleaved_pairs(pairs)[0],
    )
    assert alone.p and among.p and among.p > alone.p
    assert alone.interval and among.interval and among.interval[1] > alone.interval[1]


def test_aa_bench_tells_what_it_has_though_some_comparisons_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Run(
        "one", "host", "net", "x86", "local:", "2026-07-01T12:00:00", Verdict.NOISY, "why", "d" * 64
    )
    good = PairedSamples((1.0,) * 20, tuple(1.1 + 0.001 * index for index in range(20)), {})
    pairs = comparison.compare_interleaved_measurements(
        [(told, told)] * 2, [good, DeviceError("host hangs", "", "")]
    )

    class Interrupted:
        left: ClassVar = [*pairs]

        def compare(self, *_: object, **__: object) -> list[comparison.RunComparison]:
            if not self.left:
                raise KeyboardInterrupt
            return [self.left.pop(0)]

    monkeypatch.setattr(os, "execv", lambda *_: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "models", types.ModuleType("models"))
    tool = runpy.run_path(str(ROOT / "tools" / "aa-bench"))
    bench = tool["Bench"]
    monkeypatch.setattr(bench, "__init__", lambda self, *_: setattr(self, "_turns", True))
    monkeypatch.setattr(bench, "_of", lambda *_: told)
    monkeypatch.setattr(bench, "_farm", lambda *_: Interrupted())
    monkeypatch.setattr(
        sys,
        "argv",
        ["aa-bench", "--in-turns", "--planted", "0", "--json", str(tmp_path / "rows.json")],
    )
    with pytest.raises(KeyboardInterrupt):
        tool["main"]()
    assert (
        "the same model: 2 comparisons, 1 slower, 1 failed; ratios in %: +10.9\n"
        in capsys.readouterr().out
    )
    assert [
        row["in_turns"]
        for row in json.loads((tmp_path / "rows.json").read_text())["the same model"]
    ] == [20, 0]


def test_comparisons_in_turns_give_no_false_alarms_on_noisy_recordings_and_find_a_slowdown() -> (
    None
):
    """A short form, too. What is found is so where both runs of one recording would be NOISY."""
    command = [
        sys.executable,
        str(ROOT / "tools" / "aa-test"),
        "--json",
        "--kinds",
        "turns",
        "--comparisons",
        "40",
    ]
    rows = {
        row["recording"]: row
        for row in json.loads(
            subprocess.run(command, capture_output=True, check=True, timeout=LIMIT_S).stdout
        )
    }
    assert len(rows) == 7
    assert [row["alarms"] for row in rows.values()] == [0] * 7
    assert (
        sum(row["test_alone"] for row in rows.values()) <= 9
    )  # nominal: 1 % of 280, which has fewer than 10 nearly always
    for name in (
        "still-mobilenet_v2-1-thread",
        "quiet-mobilenet_v2-1-thread",
        "still-resnet18-1-thread",
        "quiet-resnet18-1-thread",
    ):
        assert rows[name]["found"] >= 38  # seeded
