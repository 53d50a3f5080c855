from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import formatting
from farm.types import Agreement, DeviceResults, Failure, Latency, Run, Verdict

RUN = Run(
    "1",
    "host",
    "digits",
    "x86",
    "local:",
    "2026-07-01T12:00:00+00:00",
    Verdict.STABLE,
    "IQR 4.0 % of the median, 20 samples",
)
TIMED = dataclasses.replace(RUN, latency=Latency(20, 2.31, 2.31, 2.31, 0.0924, None, None))


def answered(correct: int | None, total: int | None, **others: int) -> Run:
    samples = DeviceResults(
        (), 0.1, Agreement(3.04e-7, 120.0, True, True), correct, total, {}, {}, {}, 0
    )
    return dataclasses.replace(RUN, samples=samples, **others)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.00231, "0.00231"),
        (0.0009996, "0.00100"),
        (0.000312, "3.12e-4"),
        (9.996, "10.0"),
        (97.84, "97.8"),
        (999.6, "1000"),
        (1234.5678, "1235"),
        (-2.5, "-2.50"),
        (math.inf, "inf"),
    ],
)
def test_figures_have_three_significant_digits(value: float, shown: str) -> None:
    assert formatting.format_number(value) == shown


@given(st.floats(1e-12, 1e12))
def test_a_figure_is_right_to_its_last_digit(value: float) -> None:
    assert float(formatting.format_number(value)) == pytest.approx(value, rel=0.00501)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0s"), (9.99, "9.9s"), (10.2, "10s"), (59.9, "59s"), (60, "1:00"), (7384, "2:03:04")],
)
def test_times_are_as_short_as_they_can_be(seconds: float, shown: str) -> None:
    assert formatting.format_duration(seconds) == shown


def test_a_latency_has_its_spread_where_there_are_samples_enough() -> None:
    assert formatting.format_median_latency_and_iqr(TIMED) == "2.31 ms ±4 %"
    assert (
        formatting.format_median_latency_and_iqr(
            dataclasses.replace(TIMED, latency=Latency(1, 2.31, 2.31, 2.31, 0.0, None, None))
        )
        == "2.31 ms"
    )
    assert formatting.format_median_latency_and_iqr(RUN) == ""


def test_a_latency_under_emulation_is_no_number() -> None:
    assert (
        formatting.format_median_latency_and_iqr(dataclasses.replace(TIMED, url="qemu:"))
        == "emulated"
    )


def test_an_answer_is_said_from_the_longest_way_to_the_shortest() -> None:
    assert formatting.result_descriptions_longest_first(
        answered(450, 460, reference_correct=449, reference_total=460)
    ) == [
        "top-1 97.8 % (ref 97.6 %), max err 3.0e-7",
        "top-1 97.8 % (ref 97.6 %)",
        "top-1 97.8 %",
    ]
    assert formatting.result_descriptions_longest_first(answered(450, 460)) == [
        "top-1 97.8 %, max err 3.0e-7",
        "top-1 97.8 %",
    ]
    assert (
        formatting.result_descriptions_longest_first(answered(None, None))
        == formatting.result_descriptions_longest_first(answered(0, 0))
        == ["max err 3.0e-7"]
    )
    assert formatting.result_descriptions_longest_first(RUN) == [""]


def test_why_is_the_reason_or_what_went_wrong_or_how_to_make_the_device_usable() -> None:
    failure = Failure(
        "DeviceError",
        "pi3 is unavailable",
        "qemu-arm is not installed",
        "apt-get install qemu-user",
        5,
    )
    assert formatting.verdict_reason(RUN) == RUN.reason
    assert (
        formatting.verdict_reason(dataclasses.replace(RUN, verdict=Verdict.FAILED, failure=failure))
        == "pi3 is unavailable"
    )
    unavailable = dataclasses.replace(RUN, verdict=Verdict.UNAVAILABLE, failure=failure)
    assert (
        formatting.verdict_reason(unavailable)
        == "qemu-arm is not installed; apt-get install qemu-user"
    )


def test_complaints_of_a_device_that_are_alike_are_one() -> None:
    errors = [
        ("pi3", "a", "gone"),
        ("pi3", "b", "slow"),
        ("host", "a", "gone"),
        ("pi3", "c", "gone"),
    ]
    assert formatting.group_errors(errors) == [
        ("pi3 b", "slow"),
        ("host a", "gone"),
        ("pi3 a, c", "gone"),
    ]


@given(st.text() | st.text("\x1b[]0;m\x07\\"))
def test_all_text_becomes_printable(text: str) -> None:
    assert formatting.sanitized_line(text).isprintable()


def test_every_verdict_has_a_style() -> None:
    assert set(formatting.VERDICT_STYLE) == set(Verdict)
