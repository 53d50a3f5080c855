from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from farm import stats
from farm.errors import DeviceError
from farm.stats import quantiles
from farm.types import LIMITS, Agreement, Latency, OutputErrorLimits, Verdict

ABSOLUTE = LIMITS["float32"]
RIGHT = Agreement(0.0, math.inf, True, True)
TIMES = st.lists(st.floats(0, 1e3), min_size=1, max_size=800)


def measured(count: int, p50_ms: float, iqr_ms: float) -> Latency:
    return Latency(count, p50_ms, p50_ms, p50_ms, iqr_ms, None, None)


@given(TIMES)
def test_percentiles_are_numpys(seconds: list[float]) -> None:
    got = stats.summarize_latency(seconds)
    ms = np.array(seconds) * 1e3
    q25, q50, q75 = np.percentile(ms, [25, 50, 75])
    assert got.p50_ms == pytest.approx(q50)
    assert got.iqr_ms == pytest.approx(q75 - q25, abs=1e-9)
    assert got.mean_ms == pytest.approx(ms.mean())
    assert got.minimum_ms == ms.min()


@pytest.mark.parametrize(("p", "count"), [(0.90, stats.P90_COUNT), (0.99, stats.P99_COUNT)])
def test_the_least_counts_are_the_first_with_99_percent_confidence(p: float, count: int) -> None:
    def doubt(n: int) -> float:
        return p**n + n * (1 - p) * p ** (n - 1)

    assert doubt(count) <= 0.01 < doubt(count - 1)


@pytest.mark.parametrize(
    ("count", "p90", "p99"),
    [(63, False, False), (64, True, False), (661, True, False), (662, True, True)],
)
def test_a_percentile_is_stated_only_where_the_count_supports_it(
    count: int, p90: bool, p99: bool
) -> None:
    got = stats.summarize_latency([0.001 * i for i in range(count)])
    assert (got.p90_ms is not None, got.p99_ms is not None) == (p90, p99)
    for q, found in ((90, got.p90_ms), (95, got.p95_ms), (99, got.p99_ms)):
        assert found is None or found == pytest.approx(np.percentile(np.arange(count), q))
    assert got.p90_early_ms == quantiles.early_stopping_estimate(np.arange(float(count)), 0.9)


@pytest.mark.parametrize("seconds", [[], [0.1, math.nan], [math.inf], [-0.1, 0.1]])
def test_times_that_no_clock_gives_are_the_devices_error(seconds: list[float]) -> None:
    with pytest.raises(DeviceError, match="no usable times"):
        stats.summarize_latency(seconds)


def test_equal_outputs_agree_without_noise() -> None:
    scores = np.array([[0.1, 0.9]], np.float32)
    assert stats.compare_outputs_with_reference([scores], [scores.copy()], ABSOLUTE) == Agreement(
        0.0, math.inf, True, True, 0.0, 1.0, 1.0, 1.0
    )


def test_small_values_are_compared_absolutely() -> None:
    reference = np.array([0.5, -0.25])
    assert stats.compare_outputs_with_reference([reference + 0.9e-4], [reference], ABSOLUTE).right
    assert not stats.compare_outputs_with_reference(
        [reference + 1.1e-4], [reference], ABSOLUTE
    ).right


def test_large_values_are_compared_to_the_largest() -> None:
    reference = np.array([200.0, 0.0])
    assert stats.compare_outputs_with_reference(
        [np.array([200.0, 0.019])], [reference], ABSOLUTE
    ).right
    assert not stats.compare_outputs_with_reference(
        [np.array([200.0, 0.021])], [reference], ABSOLUTE
    ).right


def test_the_worst_output_counts() -> None:
    reference = [np.array([[1.0, 2.0]]), np.array([3.0])]
    outputs = [np.array([[1.0, 2.0]]), np.array([3.5])]
    got = stats.compare_outputs_with_reference(outputs, reference, ABSOLUTE)
    assert (got.max_abs, got.right, got.same_top1) == (0.5, False, True)
    assert got.snr_db == pytest.approx(20 * math.log10(3.0 / 0.5))


def test_the_worst_output_counts_by_each_measure() -> None:
    reference = [np.array([3.0, 4.0]), np.array([3.0, 4.0])]
    outputs = [np.array([3.3, 4.0]), np.array([3.0, 4.4])]
    for order in (1, -1):
        got = stats.compare_outputs_with_reference(outputs[::order], reference, ABSOLUTE)
        assert got.max_rel == pytest.approx(0.1) and got.max_abs == pytest.approx(0.4)
        got = stats.compare_outputs_with_reference(
            [reference[0], outputs[1]][::order], reference, ABSOLUTE
        )
        assert got.max_rel == pytest.approx(0.1)
        assert got.cosine == pytest.approx(26.6 / (5 * math.hypot(3.0, 4.4)))


def test_a_large_output_does_not_loosen_the_bar_of_a_small_one() -> None:
    reference = [np.array([1e6]), np.array([0.5])]
    assert not stats.compare_outputs_with_reference(
        [np.array([1e6]), np.array([0.6])], reference, ABSOLUTE
    ).right


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [np.zeros((1, 3), np.float32)],
        [np.zeros((1, 2), np.float64)],
        [np.zeros((1, 2), np.float32)] * 2,
        [np.array([[0, np.nan]], np.float32)],
        [np.array([[0, np.inf]], np.float32)],
    ],
    ids=["missing", "shape", "dtype", "too many", "nan", "inf"],
)
def test_what_cannot_be_compared_is_not_right(outputs: list[np.ndarray]) -> None:
    got = stats.compare_outputs_with_reference(outputs, [np.zeros((1, 2), np.float32)], ABSOLUTE)
    assert (got.max_abs, got.snr_db, got.right) == (math.inf, -math.inf, False)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_in_the_reference_must_be_the_same(value: float) -> None:
    reference = np.array([1.0, value])
    assert stats.compare_outputs_with_reference([reference.copy()], [reference], ABSOLUTE).right
    assert not stats.compare_outputs_with_reference(
        [np.array([1.0, 2.0])], [reference], ABSOLUTE
    ).right
    assert not stats.compare_outputs_with_reference(
        [np.array([1.0, -np.inf if value == np.inf else np.inf])], [reference], ABSOLUTE
    ).right


def test_infinity_in_the_reference_does_not_loosen_the_bar() -> None:
    assert not stats.compare_outputs_with_reference(
        [np.array([1.1, np.inf])], [np.array([1.0, np.inf])], ABSOLUTE
    ).right


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int64, np.uint64])
def test_integers_must_be_equal(dtype: type[np.generic]) -> None:
    reference = np.array([0, 1, 1], dtype)
    assert stats.compare_outputs_with_reference(
        [reference.copy()], [reference], OutputErrorLimits(0.5)
    ).right
    got = stats.compare_outputs_with_reference(
        [np.array([1, 1, 1], dtype)], [reference], OutputErrorLimits(10.0)
    )
    assert (got.max_abs, got.right) == (1.0, False)


def test_integers_at_the_ends_of_their_range_neither_wrap_nor_round_away() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert (
        stats.compare_outputs_with_reference(
            [np.array([low])], [np.array([high])], ABSOLUTE
        ).max_abs
        == 2.0**64
    )
    assert (
        stats.compare_outputs_with_reference(
            [np.array([high])], [np.array([high - 1])], ABSOLUTE
        ).max_abs
        == 1.0
    )
    assert (
        stats.compare_outputs_with_reference(
            [np.array([-128], np.int8)], [np.array([127], np.int8)], ABSOLUTE
        ).max_abs
        == 255.0
    )


def test_outputs_that_are_no_numbers_must_be_equal() -> None:
    reference = np.array(["cat", "dog"])
    assert stats.compare_outputs_with_reference([reference.copy()], [reference], ABSOLUTE).right
    assert not stats.compare_outputs_with_reference(
        [np.array(["cat", "cow"])], [reference], ABSOLUTE
    ).right


def test_complex_numbers_differ_in_their_imaginary_part_too() -> None:
    assert (
        stats.compare_outputs_with_reference(
            [np.array([1 + 2j])], [np.array([1 + 1j])], ABSOLUTE
        ).max_abs
        == 1.0
    )


def test_an_empty_output_is_right_when_it_should_be_empty() -> None:
    assert stats.compare_outputs_with_reference(
        [np.zeros((0, 4))], [np.zeros((0, 4))], ABSOLUTE
    ) == Agreement(0.0, math.inf, None, True, 0.0, 1.0)


def test_the_largest_element_is_compared_row_by_row() -> None:
    reference = np.array([[0.1, 0.9], [0.8, 0.2]])
    assert (
        stats.compare_outputs_with_reference(
            [reference[:, ::-1]], [reference], OutputErrorLimits(1.0)
        ).same_top1
        is False
    )
    assert (
        stats.compare_outputs_with_reference(
            [np.array([[0.15, 0.9], [0.85, 0.2]])], [reference], OutputErrorLimits(1.0)
        ).same_top1
        is True
    )


def test_what_is_no_vector_of_scores_has_no_largest_element() -> None:
    image = np.zeros((1, 3, 4, 4))
    assert (
        stats.compare_outputs_with_reference(
            [image, np.zeros((2, 1))], [image, np.zeros((2, 1))], OutputErrorLimits(1.0)
        ).same_top1
        is None
    )


def test_the_signal_to_noise_ratio_survives_extreme_scales() -> None:
    for scale in (1e-200, 1.0, 1e200):
        reference = np.full(100, scale)
        assert stats.compare_outputs_with_reference(
            [reference * 1.001], [reference], OutputErrorLimits(1.0)
        ).snr_db == pytest.approx(60, abs=0.1)


ANY_ARRAYS = st.lists(
    arrays(
        st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u8", "?", "c8", "U3"]),
        st.sampled_from([(), (0,), (2,), (1, 3), (2, 2, 2)]),
    ),
    max_size=3,
)


@given(ANY_ARRAYS, ANY_ARRAYS)
@pytest.mark.filterwarnings("error")
def test_agreement_never_raises_and_equal_bits_are_always_right(
    outputs: list[np.ndarray], reference: list[np.ndarray]
) -> None:
    stats.compare_outputs_with_reference(outputs, reference, ABSOLUTE)
    if reference:
        assert stats.compare_outputs_with_reference(
            [array.copy() for array in reference], reference, OutputErrorLimits(0.0)
        ).right


def test_a_wrong_answer_outweighs_everything() -> None:
    verdict, reason = stats.verdict_from_answer_and_spread(
        True, Agreement(0.25, 3.0, True, False), measured(50, 2.0, 1.0)
    )
    assert verdict is Verdict.WRONG
    assert "0.25" in reason
    assert (
        "NaN"
        in stats.verdict_from_answer_and_spread(
            False, Agreement(math.inf, -math.inf, None, False), measured(50, 2.0, 0.0)
        )[1]
    )


def test_an_emulators_latency_is_no_benchmark_however_steady() -> None:
    assert stats.verdict_from_answer_and_spread(True, RIGHT, measured(50, 2.0, 0.0)) == (
        Verdict.EMULATED,
        "latency under emulation is no benchmark",
    )


@pytest.mark.parametrize(
    ("latency", "verdict", "reason"),
    [
        (None, Verdict.RIGHT, "the answer is right; it was not timed"),
        (measured(1, 2.0, 0.0), Verdict.NOISY, "1 sample: an answer, not a benchmark"),
        (measured(9, 2.0, 0.0), Verdict.NOISY, "9 samples: too few to judge, 10 are needed"),
        (measured(10, 2.0, 0.2), Verdict.STABLE, "IQR 10.0 % of the median, 10 samples"),
        (
            measured(10, 2.0, 0.25),
            Verdict.NOISY,
            "IQR 12.5 % of the median, above 10 %, 10 samples",
        ),
        (
            measured(50, 0.0, 0.0),
            Verdict.NOISY,
            "the median is 0 ms: the device's clock is too coarse for this model",
        ),
    ],
)
def test_the_verdict_of_a_right_answer_rests_on_count_and_spread(
    latency: Latency | None, verdict: Verdict, reason: str
) -> None:
    assert stats.verdict_from_answer_and_spread(False, RIGHT, latency) == (verdict, reason)


def test_steady_numbers_beside_steady_other_work_are_not_called_stable() -> None:
    steady = measured(50, 2.0, 0.0)
    assert stats.verdict_from_answer_and_spread(False, RIGHT, steady, 0.05)[0] is Verdict.STABLE
    assert stats.verdict_from_answer_and_spread(False, RIGHT, steady, 0.23) == (
        Verdict.NOISY,
        "other work had the CPU for 23 % of the time",
    )


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    # Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine
    # 17 (1998), table I, method 3
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_of_a_proportion_is_wilsons(
    correct: int, total: int, low: float, high: float
) -> None:
    assert stats.wilson_interval(correct, total, 1.959964) == pytest.approx((low, high), abs=1e-4)


def test_a_proportion_of_nothing_may_be_anything() -> None:
    assert stats.wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 of 2"):
        stats.wilson_interval(3, 2)


def test_a_run_of_times_that_are_zero_is_compared_without_a_ratio() -> None:
    [pair] = stats.compare_separate_runs([([1.0] * 20, [0.0] * 20)])
    assert pair.interval is None
