"""The measures of an answer beside its absolute difference, the limits that they may have, and the
gates of deploy and bench.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from farm import stats
from farm.types import LIMITS, Agreement, Limits, Plan

SCORES = np.array([[1.0, 5.0, 2.0, 3.0, 4.0, 0.5], [9.0, 1.0, 2.0, 3.0, 4.0, 5.0]], np.float32)


def off(values: np.ndarray, by: float) -> np.ndarray:
    return (values * (1 + by)).astype(values.dtype)


def test_the_relative_difference_is_of_values_that_count() -> None:
    reference = np.array([100.0, 10.0, 1e-9])
    found = stats.measure_agreement([np.array([100.0, 11.0, 1e-3])], [reference], LIMITS["float32"])
    assert found.max_rel == pytest.approx(0.1) and found.max_abs == pytest.approx(1.0)


def test_the_cosine_does_not_see_a_scale_and_sees_a_direction() -> None:
    scaled = stats.measure_agreement([off(SCORES, 0.5)], [SCORES], LIMITS["int8"])
    assert scaled.cosine == pytest.approx(1.0) and scaled.snr_db == pytest.approx(6.02, abs=0.01)
    assert stats.measure_agreement([-SCORES], [SCORES], LIMITS["int8"]).cosine == pytest.approx(
        -1.0
    )
    assert stats.measure_agreement(
        [np.array([1e200, 1e200])], [np.array([1e200, 0.0])], LIMITS["int8"]
    ).cosine == pytest.approx(math.sqrt(0.5))


def test_rows_whose_best_class_is_another_are_counted() -> None:
    ours = SCORES.copy()
    ours[0, 1] = 0.0  # the best one becomes the last
    found = stats.measure_agreement([ours], [SCORES], LIMITS["float32"])
    assert (found.same_top1, found.top1, found.top5) == (False, 0.5, 0.5)
    ours[0, 1] = 3.5
    assert stats.measure_agreement([ours], [SCORES], LIMITS["float32"]).top5 == 1.0
    assert stats.measure_agreement([SCORES[:, :1]], [SCORES[:, :1]], LIMITS["float32"]).top1 is None


@pytest.mark.parametrize(
    ("limits", "right", "words"),
    [
        (Limits(min_snr_db=39.0), True, ""),
        (Limits(min_snr_db=41.0), False, "40.0 dB, and 41 dB are the limit"),
        (Limits(max_abs=1e-4), False, ""),
        (Limits(max_abs=0.02), True, ""),
        (Limits(max_abs=0.02, min_snr_db=41.0), False, "41 dB"),
        (Limits(same_top1=True), True, ""),
        (Limits(), True, ""),
    ],
)
def test_an_answer_is_right_within_all_of_its_limits(
    limits: Limits, right: bool, words: str
) -> None:
    found = stats.measure_agreement([off(SCORES, 0.01)], [SCORES], limits)
    assert found.right is right and words in found.why and bool(words) <= bool(found.why)


def test_limits_of_cosine_and_best_class_say_why() -> None:
    assert (
        "cosine"
        in stats.measure_agreement([SCORES[::-1].copy()], [SCORES], Limits(min_cosine=0.99)).why
    )
    assert (
        "0 % of the rows"
        in stats.measure_agreement([SCORES[::-1].copy()], [SCORES], Limits(same_top1=True)).why
    )


def test_no_limit_allows_nan_or_another_shape() -> None:
    for ours in (np.full_like(SCORES, np.nan), SCORES[:1], SCORES.astype(np.float64)):
        assert not stats.measure_agreement([ours], [SCORES], Limits()).right


ANSWER = Agreement(1e-3, 45.0, False, True, top1=0.5)


@pytest.mark.parametrize(
    ("plan", "counted", "words"),
    [
        (Plan(), (None, None), ""),
        (Plan(min_snr_db=45.0), (None, None), ""),
        (Plan(min_snr_db=46.0), (None, None), "45.0 dB, less than the 46 dB of --min-snr"),
        (Plan(min_top1=0.5), (None, None), ""),
        (Plan(min_top1=0.6), (None, None), "50.0 %, less than the 60 % of --min-top1"),
        (Plan(min_top1=0.6), (7, 10), ""),
        (Plan(min_top1=0.8), (7, 10), "70.0 %"),
    ],
)
def test_what_the_plan_asks_for_must_be_reached(
    plan: Plan, counted: tuple[int | None, int | None], words: str
) -> None:
    said = stats.unmet_requirements(plan, ANSWER, *counted)
    assert words in said and bool(words) == bool(said)


def test_a_share_of_classes_cannot_be_asked_of_what_has_none() -> None:
    assert "no scores" in stats.unmet_requirements(
        Plan(min_top1=0.1), replace(ANSWER, top1=None), None, None
    )
