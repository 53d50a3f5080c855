"""The ranges that calibration chooses, from histograms whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from farm.quantize.ranges import (
    BINS,
    ObservedRange,
    divergence_bound,
    percentile_bound,
    quantize_weight_by_given_scales,
    scale_and_zero_point,
    weight_scales,
)
from farm.types import QuantizeSettings

numbers = np.random.default_rng(2)


def seen(*batches: np.ndarray) -> ObservedRange:
    one = ObservedRange()
    for batch in batches:
        one.widen(batch)
    for batch in batches:
        one.count(batch)
    return one


def with_outliers() -> np.ndarray:
    """A hundred thousand numbers of a normal distribution, and three that are far out."""
    return np.concatenate([numbers.standard_normal(100_000), [60.0, -75.0, 80.0]]).astype(
        np.float32
    )


def test_a_histogram_of_batches_is_that_of_all_at_once():
    batches = [numbers.standard_normal(500).astype(np.float32) for _ in range(5)]
    in_parts, at_once = seen(*batches), seen(np.concatenate(batches))
    np.testing.assert_array_equal(in_parts.counts, at_once.counts)
    assert in_parts.counts.sum() + in_parts.zeros == 2500 and in_parts.largest == at_once.largest


def test_zeros_are_counted_apart():
    one = seen(np.array([0, 0, 1, 2], np.float32))
    assert one.zeros == 2 and one.counts.sum() == 2


def test_divergence_cuts_off_what_is_rare_and_far_out():
    one = seen(with_outliers())
    assert one.largest == 80 and 2.5 < divergence_bound(one) < 12


def test_divergence_keeps_all_of_a_flat_distribution():
    one = seen(np.linspace(0, 3, 200_000, dtype=np.float32))
    assert divergence_bound(one) > 0.97 * 3


def test_a_percentile_is_that_of_the_magnitudes():
    values = numbers.standard_normal(200_000).astype(np.float32)
    one = seen(values)
    assert percentile_bound(one, 99) == pytest.approx(
        np.percentile(np.abs(values), 99), abs=one.largest / BINS
    )
    assert percentile_bound(one, 100) == pytest.approx(one.largest)


def test_a_percentile_counts_the_zeros_behind_a_relu():
    values = np.maximum(numbers.standard_normal(200_000), 0).astype(np.float32)
    one = seen(values)
    for percentile in (75, 99):
        assert percentile_bound(one, percentile) == pytest.approx(
            np.percentile(values, percentile), abs=one.largest / BINS
        )


@pytest.mark.parametrize("calibration", ["minmax", "percentile", "kl_divergence", "global_scale"])
def test_zero_is_one_of_the_integers_whatever_the_range(calibration):
    settings = QuantizeSettings(calibration)
    for values in (
        np.linspace(2, 5, 99),
        np.linspace(-7, -1, 99),
        np.linspace(-1, 3, 99),
        np.zeros(9),
    ):
        scale, zero = scale_and_zero_point(seen(values.astype(np.float32)), settings)
        assert 0 <= zero <= 255 and scale > 0 and isinstance(zero, int)
    positive, _ = scale_and_zero_point(
        seen(np.linspace(0, 5, 99, dtype=np.float32)), QuantizeSettings("minmax")
    )
    assert positive == pytest.approx(5 / 255)


@pytest.mark.parametrize(("low", "high"), [(-1, 3), (-3, 1), (-7, 2), (-1, 9)])
def test_the_ends_of_a_range_are_off_by_half_a_step_at_the_most(low, high):
    values = np.linspace(low, high, 99, dtype=np.float32)
    scale, zero = scale_and_zero_point(seen(values), QuantizeSettings("minmax"))
    for end, integer in ((low, 0), (high, 255)):
        assert abs((integer - zero) * scale - end) <= 0.501 * scale


def test_the_global_scale_is_the_same_for_every_tensor():
    found = [
        scale_and_zero_point(seen(values.astype(np.float32)), QuantizeSettings("global_scale"))
        for values in (np.linspace(0, 1, 9), np.linspace(-9, 1, 9))
    ]
    assert found == [(8.0 / 128, 0), (8.0 / 128, 128)]


def test_nan_and_infinity_have_no_range():
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            seen(np.array([1, value], np.float32))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("weight_scale", ["max", "power2"])
def test_a_weight_is_off_by_half_a_step_at_the_most(weight_scale, per_channel):
    weight = numbers.standard_normal((6, 4, 3, 3)).astype(np.float32) * np.array(
        [1, 5, 0.1, 0, 3, 1e-3], np.float32
    ).reshape(-1, 1, 1, 1)
    scales = weight_scales(
        weight, 0, QuantizeSettings(weight_scale=weight_scale, per_channel=per_channel)
    )
    steps = quantize_weight_by_given_scales(weight, scales, 0)
    assert scales.shape == ((6,) if per_channel else ()) and steps.dtype == np.int8
    each = scales.reshape(-1, 1, 1, 1) if per_channel else scales
    assert (np.abs(steps * each - weight) <= 0.5 * each + 1e-7).all()
    if weight_scale == "power2":
        assert (np.log2(scales) == np.round(np.log2(scales))).all()


def test_a_weight_beyond_its_scale_is_cut_off_at_127_on_both_sides() -> None:
    """-128 has no counterpart: products of it would leave 16 bits."""
    weight = np.array([[-200.0, -128.0, -127.4, 127.4, 200.0]], "float32")
    whole = quantize_weight_by_given_scales(weight, np.float32(1), 0)
    assert whole.dtype == np.int8 and whole.tolist() == [[-127, -127, -127, 127, 127]]
