"""The measures of an answer beside its absolute difference, the limits that they may have, and the
gates of deploy and bench.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from farm import stats
from farm.types import LIMITS, Agreement, MeasurementSettings, OutputErrorLimits

SCORES = np.array([[1.0, 5.0, 2.0, 3.0, 4.0, 0.5], [9.0, 1.0, 2.0, 3.0, 4.0, 5.0]], np.float32)


def off(values: np.ndarray, by: float) -> np.ndarray:
    return (values * (1 + by)).astype(values.dtype)


def test_the_relative_difference_is_of_values_that_count() -> None:
    reference = np.array([100.0, 10.0, 1e-9])
    found = stats.compare_outputs_with_reference(
        [np.array([100.0, 11.0, 1e-3])], [reference], LIMITS["float32"]
    )
    assert found.max_rel == pytest.approx(0.1) and found.max_abs == pytest.approx(1.0)


def test_the_cosine_does_not_see_a_scale_and_sees_a_direction() -> None:
    scaled = stats.compare_outputs_with_reference([off(SCORES, 0.5)], [SCORES], LIMITS["int8"])
    assert scaled.cosine == pytest.approx(1.0) and scaled.snr_db == pytest.approx(6.02, abs=0.01)
    assert stats.compare_outputs_with_reference(
        [-SCORES], [SCORES], LIMITS["int8"]
    ).cosine == pytest.approx(-1.0)
    assert stats.compare_outputs_with_reference(
        [np.array([1e200, 1e200])], [np.array([1e200, 0.0])], LIMITS["int8"]
    ).cosine == pytest.approx(math.sqrt(0.5))


def test_rows_whose_best_class_is_another_are_counted() -> None:
    ours = SCORES.copy()
    ours[0, 1] = 0.0  # the best one becomes the last
    found = stats.compare_outputs_with_reference([ours], [SCORES], LIMITS["float32"])
    assert (found.same_top1, found.top1, found.top5) == (False, 0.5, 0.5)
    for score in (3.5, 0.75):  # the second best, the fifth
        ours[0, 1] = score
        found = stats.compare_outputs_with_reference([ours], [SCORES], LIMITS["float32"])
        assert (found.top1, found.top5) == (0.5, 1.0)
    assert (
        stats.compare_outputs_with_reference(
            [SCORES[:, :1]], [SCORES[:, :1]], LIMITS["float32"]
        ).top1
        is None
    )


def test_equal_scores_are_in_the_order_of_their_classes() -> None:
    reference = np.eye(7, dtype=np.float32)
    found = stats.compare_outputs_with_reference(
        [np.full_like(reference, 0.5)], [reference], LIMITS["float32"]
    )
    assert (found.top1, found.top5) == (pytest.approx(1 / 7), pytest.approx(5 / 7))


@pytest.mark.parametrize(
    ("limits", "right", "words"),
    [
        (OutputErrorLimits(min_snr_db=39.0), True, ""),
        (OutputErrorLimits(min_snr_db=41.0), False, "40.0 dB, and 41 dB are the limit"),
        (OutputErrorLimits(max_abs=1e-4), False, ""),
        (OutputErrorLimits(max_abs=0.02), True, ""),
        (OutputErrorLimits(max_abs=0.02, min_snr_db=41.0), False, "41 dB"),
        (OutputErrorLimits(same_top1=True), True, ""),
        (OutputErrorLimits(min_cosine=0.99), True, ""),
        (OutputErrorLimits(), True, ""),
    ],
)
def test_an_answer_is_right_within_all_of_its_limits(
    limits: OutputErrorLimits, right: bool, words: str
) -> None:
    found = stats.compare_outputs_with_reference([off(SCORES, 0.01)], [SCORES], limits)
    assert found.right is right and words in found.why and bool(words) <= bool(found.why)


def test_limits_of_cosine_and_best_class_say_why() -> None:
    assert (
        "cosine"
        in stats.compare_outputs_with_reference(
            [SCORES[::-1].copy()], [SCORES], OutputErrorLimits(min_cosine=0.99)
        ).why
    )
    assert (
        "0 % of the rows"
        in stats.compare_outputs_with_reference(
            [SCORES[::-1].copy()], [SCORES], OutputErrorLimits(same_top1=True)
        ).why
    )


def test_no_limit_allows_nan_or_another_shape() -> None:
    for ours in (np.full_like(SCORES, np.nan), SCORES[:1], SCORES.astype(np.float64)):
        assert not stats.compare_outputs_with_reference([ours], [SCORES], OutputErrorLimits()).right


ANSWER = Agreement(1e-3, 45.0, False, True, top1=0.5)


@pytest.mark.parametrize(
    ("plan", "counted", "words"),
    [
        (MeasurementSettings(), (None, None), ""),
        (MeasurementSettings(min_snr_db=45.0), (None, None), ""),
        (
            MeasurementSettings(min_snr_db=46.0),
            (None, None),
            "45.0 dB, less than the 46 dB of --min-snr",
        ),
        (MeasurementSettings(min_top1=0.5), (None, None), ""),
        (
            MeasurementSettings(min_top1=0.6),
            (None, None),
            "50.0 %, less than the 60 % of --min-top1",
        ),
        (MeasurementSettings(min_top1=0.6), (7, 10), ""),
        (MeasurementSettings(min_top1=0.8), (7, 10), "70.0 %"),
        (MeasurementSettings(min_top1=0.4), (0, 10), "0.0 %"),
    ],
)
def test_what_the_plan_asks_for_must_be_reached(
    plan: MeasurementSettings, counted: tuple[int | None, int | None], words: str
) -> None:
    said = stats.missed_accuracy_requirement_reason(plan, ANSWER, *counted)
    assert words in said and bool(words) == bool(said)


def test_a_share_of_classes_cannot_be_asked_of_what_has_none() -> None:
    assert "no scores" in stats.missed_accuracy_requirement_reason(
        MeasurementSettings(min_top1=0.1), replace(ANSWER, top1=None), None, None
    )
