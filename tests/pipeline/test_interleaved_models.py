"""The models of a device take turns, each with its share of the measurement, and are one run each
in the end.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from farm.pipeline.interleaving import (
    FinishedRounds,
    limit_uninterleaved_jobs_to_one_round,
    merge_rounds,
)
from farm.types import (
    PRESETS,
    Agreement,
    Device,
    DeviceResults,
    Job,
    MeasurementSettings,
    Model,
    Profile,
)

PROFILE = Profile("x86", {"kind": "llvm"}, "")
HOST, BOARD = Device("host", PROFILE, "local:"), Device("pi3", PROFILE, "qemu:")
PLAN = MeasurementSettings(
    count=102, most=10_001, minimum_s=6.0, maximum_s=60.0, precision=0.004, rounds=4, install=True
)


def job(model: str, device: Device = HOST, plan: MeasurementSettings = PLAN) -> Job:
    return Job(device, Model(model, f"{model}.onnx"), plan)


def samples(*seconds: float, right: bool = True, **changes: object) -> DeviceResults:
    agreement = Agreement(1e-6 if right else 1.0, 100.0, None, right)
    made = DeviceResults(
        seconds,
        0.1,
        agreement,
        9,
        10,
        {"a": "first"},
        {"a": "last"},
        {"compute": sum(seconds)},
        5,
        measured_s=2.0,
        wall_s=3.0,
    )
    return replace(made, **changes)


def test_only_jobs_that_have_something_to_take_turns_with_do() -> None:
    jobs = limit_uninterleaved_jobs_to_one_round(
        [
            job("a"),
            job("b"),
            job("a", BOARD),
            job("b", BOARD),
            job("a", replace(HOST, name="other")),
        ]
    )
    assert [one.plan.rounds for one in jobs] == [4, 4, 1, 1, 1]
    assert [
        one.plan.rounds
        for one in limit_uninterleaved_jobs_to_one_round(
            [job("a", plan=MeasurementSettings.once()), job("b", plan=MeasurementSettings.once())]
        )
    ] == [1, 1]


def test_nobody_begins_a_round_before_the_others_of_the_device_are_as_far() -> None:
    turns, jobs = FinishedRounds(), [job("a"), job("b"), job("a", BOARD)]
    assert turns.take(jobs[0], samples(1.0)) is None
    assert not turns.may_begin(jobs[0], jobs), "b has not had its first, whatever keeps it"
    assert turns.may_begin(jobs[1], jobs) and turns.may_begin(jobs[2], jobs)
    assert turns.take(jobs[1], samples(1.0)) is None
    assert turns.may_begin(jobs[0], jobs)


def test_rounds_share_the_samples_and_the_time_and_the_first_does_what_is_done_once() -> None:
    turns, one = FinishedRounds(), job("a")
    first = turns.plan_of(one)
    assert (first.count, first.minimum_s, first.maximum_s, first.precision) == (
        26,
        1.5,
        15.0,
        pytest.approx(0.008),
    )
    assert first.install and first.dataset_limit is None and first.block == 0
    turns.take(one, samples(1.0, block=7))
    assert first.most == 2501
    later = turns.plan_of(one)
    assert not later.install and later.dataset_limit == 0 and later.block == 7


def test_the_share_of_waiting_is_that_of_the_rounds_that_tell_it_by_their_length() -> None:
    parts = [
        samples(1.0, held_up=held_up, measured_s=measured_s)
        for held_up, measured_s in ((0.1, 1.0), (0.3, 3.0), (None, 4.0))
    ]
    assert merge_rounds(parts).held_up == pytest.approx(0.25)


def test_rounds_are_one_measurement_in_the_end() -> None:
    parts = [
        samples(1.0, 2.0, held_up=0.1, facts_during=({"a": "early"},)),
        samples(
            3.0,
            held_up=0.3,
            memory_peak_bytes=7,
            correct=None,
            total=None,
            warm=False,
            facts_during=({"a": "late"}, {"a": "later"}),
        ),
    ]
    one = merge_rounds(parts)
    assert one.seconds == (1.0, 2.0, 3.0) and one.ledger == {"compute": 6.0} and one.uploaded == 10
    assert (one.measured_s, one.wall_s, one.memory_peak_bytes) == (4.0, 6.0, 7)
    assert one.held_up == pytest.approx(0.2) and (one.correct, one.total) == (9, 10)
    assert (one.facts_before, one.facts_after) == ({"a": "first"}, {"a": "last"})
    assert [facts["a"] for facts in one.facts_during] == ["early", "late", "later"]
    assert one.warm is None, "the first does not tell"
    assert one.energy_j is None
    assert (
        merge_rounds(
            [replace(part, energy_j=energy) for part, energy in zip(parts, (3.0, 4.0), strict=True)]
        ).energy_j
        == 7.0
    )
    assert (
        merge_rounds([replace(parts[0], energy_j=3.0), parts[1]]).energy_j is None
    )  # of which part would it be?


def test_a_job_is_done_with_its_last_round() -> None:
    turns, one = FinishedRounds(), job("a")
    for number in (1.0, 2.0, 3.0):
        assert turns.take(one, samples(number)) is None
    done = turns.take(one, samples(4.0))
    assert done is not None and done.seconds == (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_of_all_rounds_counts(order: int) -> None:
    parts = [
        samples(1.0, memory_peak_bytes=peak, warm=warm, agreement=Agreement(off, 1.0, None, True))
        for peak, warm, off in ((7, True, 1e-6), (9, False, 3e-6), (8, True, 2e-6))
    ][::order]
    one = merge_rounds(parts)
    assert (one.memory_peak_bytes, one.warm, one.agreement.max_abs) == (9, False, 3e-6)
    assert merge_rounds([replace(part, warm=True) for part in parts]).warm is True
    wrong = replace(parts[0], agreement=Agreement(1e-9, 1.0, None, False))
    assert not merge_rounds([wrong, *parts[1:]]).agreement.right


def test_a_wrong_answer_in_any_round_ends_the_job_and_is_its_answer() -> None:
    turns, one = FinishedRounds(), job("a")
    assert turns.take(one, samples(1.0)) is None
    done = turns.take(one, samples(1.0, right=False))
    assert done is not None and not done.agreement.right


def test_the_standard_preset_takes_turns() -> None:
    assert replace(MeasurementSettings(), **PRESETS["standard"]).rounds == 3  # type: ignore[arg-type]
