"""Comparisons of what was measured in turns: the test against SciPy's, what disturbs both sides, and how often they err."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from farm import stats
from farm.stats import pairing

ROOT = Path(__file__).resolve().parent.parent


@settings(deadline=None)
@given(st.lists(st.integers(-12, 12).map(float) | st.floats(-3, 3), min_size=1, max_size=80))
def test_the_signed_rank_test_is_scipys(values: list[float]) -> None:
    given_values = [value for value in values if value]
    if not given_values:
        assert pairing.signed_rank(values) == 1.0
        return
    exact = len({abs(value) for value in given_values}) == len(given_values) <= 50
    wanted = scipy.stats.wilcoxon(given_values, method="exact" if exact else "asymptotic").pvalue
    assert pairing.signed_rank(values) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_turns_see_through_what_disturbs_both_sides_alike() -> None:
    """The level doubles now and then, for both; one of the two is 3 % slower, or is not."""
    draw = random.Random(1)
    levels = [draw.choice((1.0, 1.0, 2.0)) * draw.gauss(1, 0.01) for _ in range(200)]
    first, same, slower = ([0.01 * factor * level * draw.gauss(1, 0.02) for level in levels] for factor in (1.0, 1.0, 1.04))
    alike, apart, back = stats.compare_in_turns([(first, same), (first, slower), (slower, first)])
    assert alike.change is stats.Change.SAME
    assert (apart.change, back.change) == (stats.Change.SLOWER, stats.Change.FASTER)
    assert apart.interval and apart.interval[0] < 1.04 < apart.interval[1]
    assert stats.compare([(first, slower)])[0].change is stats.Change.UNSURE


def test_rounds_that_are_alike_and_few_rounds_are_less_evidence() -> None:
    draw = np.random.default_rng(2)
    apart = draw.normal(0, 0.02, 200)
    together = np.repeat(draw.normal(0, 0.02, 20), 10)  # as much spread, but ten in a row are one
    one = np.ones(200)
    widths = [math.log(high / low) for _, (low, high) in (stats.ratio_in_turns(one, np.exp(values)) for values in (apart, together))]
    assert widths[1] > 1.5 * widths[0]
    few = stats.compare_in_turns([([1.0] * 9, [2.0] * 9)])[0]
    assert few.change is stats.Change.UNSURE and "9 rounds are too few" in few.reason
    assert stats.compare_in_turns([([1.0] * 10, [2.0 + 0.01 * (7 * i % 10) for i in range(10)])])[0].change is stats.Change.SLOWER


def test_one_of_many_pairs_in_turns_needs_more_evidence() -> None:
    draw = np.random.default_rng(4)
    pairs = [(np.ones(12).tolist(), np.exp(draw.normal(0.05 if index == 0 else 0, 0.03, 12)).tolist()) for index in range(20)]
    alone, among = stats.compare_in_turns(pairs[:1])[0], stats.compare_in_turns(pairs)[0]
    assert alone.p and among.p and among.p > alone.p
    assert alone.interval and among.interval and among.interval[1] > alone.interval[1]


def test_comparisons_in_turns_give_no_false_alarms_on_noisy_recordings_and_find_a_slowdown() -> None:
    """A short form, too. What is found is so where both runs of one recording would be NOISY."""
    command = [sys.executable, str(ROOT / "tools" / "aa-test"), "--json", "--kinds", "turns", "--comparisons", "40"]
    rows = {row["recording"]: row for row in json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)}
    assert len(rows) == 7
    assert [row["alarms"] for row in rows.values()] == [0] * 7
    assert sum(row["test_alone"] for row in rows.values()) <= 9  # nominal: 1 % of 280, which has fewer than 10 nearly always
    for name in ("still-mobilenet_v2-1-thread", "quiet-mobilenet_v2-1-thread", "still-resnet18-1-thread", "quiet-resnet18-1-thread"):
        assert rows[name]["found"] >= 38  # seeded
