"""Intervals, tests and estimates against SciPy's and MLPerf's own; comparisons and steps on series
that are known.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from timeouts import LIMIT_S

from farm import stats
from farm.stats import compare_runs, probability_distributions, quantiles
from farm.stats.changepoints import find_level_shifts

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = st.lists(st.floats(1e-6, 10), min_size=1, max_size=300)
VALUES = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=15)


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0.5, 2000), st.floats(0.5, 2000))
def test_the_beta_function_is_scipys(x: float, a: float, b: float) -> None:
    assert probability_distributions.beta_regularized(x, a, b) == pytest.approx(
        scipy.special.betainc(a, b, x), rel=1e-8, abs=1e-12
    )


@given(st.floats(0.51, 0.9999), st.integers(1, 200))
def test_students_quantile_is_scipys(probability: float, freedom: int) -> None:
    assert probability_distributions.student_quantile(probability, freedom) == pytest.approx(
        scipy.stats.t.ppf(probability, freedom), rel=1e-7
    )


@given(SAMPLES, st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.sampled_from([0.9, 0.95, 0.99]))
def test_intervals_of_percentiles_are_scipys(
    samples: list[float], q: float, confidence: float
) -> None:
    wanted = scipy.stats.quantile_test(samples, q=0, p=q).confidence_interval(confidence)
    got = quantiles.quantile_interval(sorted(samples), q, confidence)
    if math.isnan(wanted.low) or math.isnan(wanted.high):
        assert got is None
    else:
        assert got == (wanted.low, wanted.high)


@pytest.mark.parametrize("n", [64, 130, 662])
def test_a_percentile_that_is_stated_has_an_interval(n: int) -> None:
    got = stats.summarize_latency(
        [1e-3 + 1e-6 * value for value in random.Random(n).sample(range(10_000), n)]
    )
    for ms, interval in (
        (got.p90_ms, got.p90_interval_ms),
        (got.p95_ms, got.p95_interval_ms),
        (got.p99_ms, got.p99_interval_ms),
    ):
        assert (ms is None) == (interval is None)
        assert ms is None or (interval is not None and interval[0] <= ms <= interval[1])
    assert [n >= 64, n >= 130, n >= 662] == [
        ms is not None for ms in (got.p90_ms, got.p95_ms, got.p99_ms)
    ]


@given(st.integers(100, 1000), st.integers(20, 99), st.sampled_from([0.5, 0.9]))
def test_an_interval_of_fewer_independent_samples_covers_as_much_of_the_distribution(
    count: int, effective: int, q: float
) -> None:
    ordered = list(range(count))
    got = quantiles.quantile_interval(ordered, q, effective=effective)
    few = quantiles.quantile_interval(list(range(effective)), q)
    assert (got is None) == (few is None)
    if got is not None and few is not None:
        below, above = (rank * count / effective for rank in few)
        assert got[0] <= below < got[0] + 1, "rounded down"
        assert got[1] - 1 < above <= got[1], "rounded up"


def test_samples_that_a_coarse_clock_makes_equal_lie_on_neither_side_of_the_median() -> None:
    equal, around = [2.0] * 10, [1.0, 3.0] * 5
    assert quantiles.effective_sample_size((equal + around) * 10) == 200


def test_samples_that_follow_each_other_closely_count_less() -> None:
    draw = np.random.default_rng(1)
    independent = draw.normal(10, 1, 1000)
    walk = 10 + np.cumsum(draw.normal(0, 0.05, 1000))
    assert quantiles.effective_sample_size(list(independent)) > 300
    assert quantiles.effective_sample_size(list(walk)) < 50
    wide, narrow = (
        stats.summarize_latency(list(np.abs(values))).p50_interval_ms
        for values in (walk, independent)
    )
    assert wide and narrow and wide[1] - wide[0] > narrow[1] - narrow[0]


def test_means_of_blocks_state_no_percentile_but_the_median() -> None:
    got = stats.summarize_latency([1e-5 + 1e-9 * value for value in range(1000)], block=100)
    assert (got.block, got.p90_ms, got.p95_ms, got.p99_ms, got.p90_early_ms) == (
        100,
        None,
        None,
        None,
        None,
    )
    assert got.p50_interval_ms is not None


@given(VALUES, VALUES)
def test_mann_whitney_is_scipys(first: list[float], second: list[float]) -> None:
    exact = len(set(first + second)) == len(first + second) and min(len(first), len(second)) < 9
    if len(set(first + second)) == 1:
        assert compare_runs.mann_whitney_p(first, second) == 1.0
        return
    wanted = scipy.stats.mannwhitneyu(
        first, second, method="exact" if exact else "asymptotic"
    ).pvalue
    assert compare_runs.mann_whitney_p(first, second) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_holm_is_the_textbooks() -> None:
    """Holm's own example order: p (m - rank), never less than the one before, at most 1."""
    assert compare_runs.holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert compare_runs.holm_correction([0.9, 0.8]) == [1.0, 1.0]
    assert compare_runs.holm_correction([]) == []


@given(
    st.lists(
        st.lists(
            st.sampled_from([0.01, 0.02, 0.03]) | st.floats(1e-6, 1.0), min_size=1, max_size=9
        ),
        min_size=2,
        max_size=10,
    )
)
def test_the_median_of_a_resample_is_that_of_its_samples_written_out(
    parts: list[list[float]],
) -> None:
    drawn = (
        np.random.default_rng(1)
        .multinomial(len(parts), [1 / len(parts)] * len(parts), size=20)
        .T.astype(np.int32)
    )
    written = [
        [value for part, count in zip(parts, counts, strict=True) for value in part * int(count)]
        for counts in drawn.T
    ]
    assert compare_runs._medians(parts, drawn).tolist() == list(map(statistics.median, written))


def test_the_bootstrap_of_independent_samples_is_scipys() -> None:
    """With every round a copy of one sample, rounds are samples, and the interval is scipy's but
    for its expansion.
    """
    draw = np.random.default_rng(3)
    a, b = draw.lognormal(0, 0.02, 10), draw.lognormal(0.1, 0.02, 10)
    wanted = scipy.stats.bootstrap(
        (a, b),
        lambda x, y, axis: np.median(y, axis=axis) / np.median(x, axis=axis),
        method="percentile",
        confidence_level=0.95,
        rng=1,
    ).confidence_interval
    low, high = compare_runs.ratio_interval(
        np.repeat(a, 10).tolist(), np.repeat(b, 10).tolist(), 0.95
    )
    assert low < wanted.low < wanted.high < high
    assert math.log(high / low) < 2 * math.log(wanted.high / wanted.low)


def loadgens_discarded(n: int, q: float, confidence: float) -> int:
    """How many samples MLPerf's loadgen leaves above its estimate, by SciPy's beta function and the
    search of its results.cc.
    """
    t = 1
    while t + 1 <= n and scipy.special.betainc(n - t - 1, t + 2, q) < 1 - confidence:
        t += 1
    return t


@pytest.mark.parametrize("q", [0.9, 0.99])
def test_early_stopping_leaves_above_it_what_mlperfs_rule_leaves(q: float) -> None:
    for n in (64, 65, 100, 270, 661, 662, 663, 1000, 5000):
        ordered = [float(value) for value in range(n)]
        if n < quantiles.minimum_query_count(1, q):
            assert quantiles.early_stopping_estimate(ordered, q) is None
        else:
            assert quantiles.early_stopping_estimate(ordered, q) == n - loadgens_discarded(
                n, q, 0.99
            )


def test_the_least_queries_are_those_of_mlperfs_rules() -> None:
    """The table of the inference rules: 64 queries for the 90th percentile, 130 for the 95th, 219
    for the 97th, 662 for the 99th.
    """
    assert [quantiles.minimum_query_count(1, q) for q in (0.90, 0.95, 0.97, 0.99)] == [
        64,
        130,
        219,
        662,
    ]


LOADGEN = """
import json, sys, time
import mlperf_loadgen as lg
def issue(samples):
    for sample in samples:
        lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0)])
settings = lg.TestSettings()
settings.scenario, settings.mode = lg.TestScenario.SingleStream, lg.TestMode.PerformanceOnly
settings.min_duration_ms, settings.min_query_count, settings.max_query_count = 0, 700, 700
output = lg.LogOutputSettings()
output.outdir = sys.argv[1]
logs = lg.LogSettings()
logs.log_output = output
logs.enable_trace = True
sut, qsl = lg.ConstructSUT(issue, lambda: None), lg.ConstructQSL(10, 10, lambda _: None, lambda _: None)
lg.StartTestWithLogSettings(sut, qsl, settings, logs)
"""  # noqa: E501


def test_early_stopping_is_mlperfs_own(tmp_path: Path) -> None:
    """The loadgen measures 700 empty queries and states its estimates; ours of the latencies in its
    trace are the same.
    """
    pytest.importorskip("mlperf_loadgen")
    subprocess.run(
        [sys.executable, "-c", LOADGEN, str(tmp_path)],
        check=True,
        timeout=LIMIT_S,
        capture_output=True,
    )
    latencies = sorted(
        int(ns)
        for ns in re.findall(
            r'"complete_ns":(\d+)', (tmp_path / "mlperf_log_trace.json").read_text()
        )
    )
    said = dict(
        re.findall(
            r'"key": "(early_stopping_latency_\w+)", "value": (\d+)',
            (tmp_path / "mlperf_log_detail.txt").read_text(),
        )
    )
    assert len(latencies) == 700
    ours = {"early_stopping_latency_ss": 0.90, "early_stopping_latency_ms": 0.99}
    assert {name: quantiles.early_stopping_estimate(latencies, q) for name, q in ours.items()} == {
        name: int(ns) for name, ns in said.items()
    }


def rounds_of(centre: float, spread: float, seed: int, count: int = 400) -> list[float]:
    """Samples whose level wanders from one stretch of twenty to the next."""
    draw = random.Random(seed)
    level = 1.0
    found = []
    for index in range(count):
        level = draw.gauss(1, spread) if index % 20 == 0 else level
        found.append(centre * level * abs(draw.gauss(1, spread)))
    return found


def test_a_run_is_not_different_from_one_of_the_same_kind_and_is_from_a_slower_one() -> None:
    first, same, slower = (
        rounds_of(0.01, 0.005, 1),
        rounds_of(0.01, 0.005, 2),
        rounds_of(0.0106, 0.005, 3),
    )
    alike, apart, back = stats.compare_separate_runs(
        [(first, same), (first, slower), (slower, first)]
    )
    assert alike.change is stats.ChangeVerdict.SAME
    assert (apart.change, back.change) == (stats.ChangeVerdict.SLOWER, stats.ChangeVerdict.FASTER)
    assert apart.interval and apart.interval[0] < 1.06 < apart.interval[1]
    assert apart.reaches(0.05) and not apart.reaches(0.10) and not back.reaches(0.0)
    assert "slower by +" in apart.reason


def test_noise_is_no_evidence_either_way() -> None:
    (found,) = stats.compare_separate_runs([(rounds_of(0.01, 0.3, 1), rounds_of(0.01, 0.3, 2))])
    assert found.change is stats.ChangeVerdict.UNSURE
    assert "cannot tell" in found.reason


@pytest.mark.parametrize(
    ("ratio", "interval", "p", "change"),
    [
        (1.10, (1.05, 1.15), 0.009, stats.ChangeVerdict.SLOWER),
        (1.10, (1.05, 1.15), 0.011, stats.ChangeVerdict.UNSURE),
        (1.025, (1.021, 1.03), 1e-6, stats.ChangeVerdict.SLOWER),
        (1.015, (1.01, 1.019), 1e-6, stats.ChangeVerdict.SAME),
        (0.90, (0.85, 0.95), 0.009, stats.ChangeVerdict.FASTER),
        (0.90, (0.85, 0.95), 0.011, stats.ChangeVerdict.UNSURE),
        (0.975, (0.97, 0.979), 1e-6, stats.ChangeVerdict.FASTER),
        (0.985, (0.981, 0.99), 1e-6, stats.ChangeVerdict.SAME),
        (1.0, (0.96, 1.04), 0.5, stats.ChangeVerdict.SAME),
        (1.0, (0.94, 1.04), 0.5, stats.ChangeVerdict.UNSURE),
        (1.0, (0.96, 1.06), 0.5, stats.ChangeVerdict.UNSURE),
    ],
)
def test_a_change_is_told_only_where_the_test_and_the_interval_show_it(
    ratio: float, interval: tuple[float, float], p: float, change: stats.ChangeVerdict
) -> None:
    assert compare_runs.conclude(ratio, interval, p, 0.99).change is change


def test_a_slowdown_is_reached_where_the_end_of_the_interval_is() -> None:
    found = compare_runs.conclude(1.06, (1.04, 1.08), 1e-6, 0.99)
    assert found.reaches(0.05) and found.reaches(0.07) and not found.reaches(0.09)


def test_a_median_is_as_precise_as_its_rounds_and_their_order_allow() -> None:
    assert stats.median_relative_standard_error([0.01] * 4) == math.inf
    assert stats.median_relative_standard_error([0.01] * 400) == pytest.approx(0.0, abs=1e-12)
    levels = [1 + 0.02 * math.sin(number) for number in range(10)]
    rising, mixed = sorted(levels), sorted(levels, key=lambda level: abs(level - 1))
    errors = []
    for order in (rising, mixed):
        seconds = [0.01 * level for level in order for _ in range(40)]
        errors.append(stats.median_relative_standard_error(seconds))
        assert errors[-1] >= compare_runs._drift(quantiles.split_into_rounds(seconds))
    assert errors[0] > errors[1] > 0.002


def test_all_of_a_very_long_run_counts() -> None:
    assert stats.median_relative_standard_error([0.01] * 4000 + [0.02] * 4000) > 0.05


def test_too_few_samples_are_not_compared() -> None:
    (found,) = stats.compare_separate_runs([([0.01] * 4, [0.02] * 100)])
    assert (found.change, found.interval, found.ratio) == (stats.ChangeVerdict.UNSURE, None, 2.0)


def test_one_of_many_comparisons_needs_more_evidence() -> None:
    pair = (rounds_of(0.01, 0.012, 1), rounds_of(0.0106, 0.012, 3))
    same = [
        (rounds_of(0.01, 0.012, seed), rounds_of(0.01, 0.012, seed + 100)) for seed in range(10, 30)
    ]
    alone, among = (
        stats.compare_separate_runs([pair])[0],
        stats.compare_separate_runs([pair, *same])[0],
    )
    assert alone.p and among.p and among.p > alone.p
    assert (
        alone.interval
        and among.interval
        and among.interval[1] - among.interval[0] > alone.interval[1] - alone.interval[0]
    )


def test_steps_are_found_where_they_are() -> None:
    draw = random.Random(5)
    series = (
        [draw.gauss(10, 0.1) for _ in range(20)]
        + [draw.gauss(12, 0.1) for _ in range(15)]
        + [draw.gauss(9, 0.1) for _ in range(10)]
    )
    found = find_level_shifts(series)
    assert [step.index for step in found] == [20, 35]
    assert [round(step.ratio, 2) for step in found] == pytest.approx([1.2, 0.75], abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_a_single_value_out_of_line_are_no_step(seed: int) -> None:
    draw = random.Random(seed)
    series = [draw.gauss(10, 0.2) for _ in range(40)]
    series[17] = 25.0
    assert find_level_shifts(series) == []


def test_a_short_series_and_an_even_one_have_no_steps() -> None:
    for count in range(6):
        assert find_level_shifts([5.0] * count) == []


def series_with_steps() -> Iterator[list[float]]:
    """Short series of one to three levels, each with its own noise."""
    numbers = np.random.default_rng(62)
    for _ in range(200):
        levels = [
            numbers.uniform(1, 1.5) * np.exp(numbers.normal(0, 0.05, numbers.integers(2, 5)))
            for _ in range(numbers.integers(1, 4))
        ]
        yield list(map(float, np.concatenate(levels)))[:9]


@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 100), min_size=4, max_size=12))
def test_cuts_of_any_series_are_the_cheapest(values: list[float]) -> None:
    assert_cheapest_cuts(values)


def test_cuts_of_series_with_steps_are_the_cheapest() -> None:
    found = [assert_cheapest_cuts(values) for values in series_with_steps() if len(values) >= 4]
    assert {0, 1, 2} <= set(found), "steps in a series"


def assert_cheapest_cuts(values: list[float]) -> int:
    """Compare with all ways to cut a short series, and return the number of steps."""
    logs = [math.log(value) for value in values]
    noise = max(0.005, float(np.median(np.abs(np.diff(logs)))) / math.log(2))

    def cost(cuts: tuple[int, ...]) -> float:
        parts = [logs[a:b] for a, b in itertools.pairwise((0, *cuts, len(logs)))]
        if min(map(len, parts)) < 2:
            return math.inf
        return sum(
            float(np.abs(np.array(part) - np.median(part)).sum()) / noise + 3 * math.log(len(logs))
            for part in parts
        )

    ways = itertools.chain.from_iterable(
        itertools.combinations(range(1, len(logs)), number) for number in range(len(logs) // 2)
    )
    steps = find_level_shifts(values)
    assert cost(tuple(step.index for step in steps)) == pytest.approx(
        min(map(cost, ways)), abs=1e-6
    )
    return len(steps)


def test_comparisons_of_recorded_runs_give_no_false_alarms_and_find_a_slowdown() -> None:
    """A short form of what tools/aa-test does at length."""
    command = [
        sys.executable,
        str(ROOT / "tools" / "aa-test"),
        "--json",
        "--kinds",
        "pieces",
        "--comparisons",
    ]
    quiet = json.loads(
        subprocess.run(
            [*command, "20", "--only", "still-resnet18"],
            capture_output=True,
            check=True,
            timeout=LIMIT_S,
        ).stdout
    )
    noisy = json.loads(
        subprocess.run(
            [*command, "10", "--only", "noisy"], capture_output=True, check=True, timeout=LIMIT_S
        ).stdout
    )
    assert [row["alarms"] for row in (*quiet, *noisy)] == [0] * 3
    assert quiet[0]["found"] >= 17  # seeded: not a matter of luck
