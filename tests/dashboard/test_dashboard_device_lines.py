"""The dashboard when its jobs do not fit: a line a device; and how long it will take yet."""

from __future__ import annotations

import pytest
from dashboard_drawing import DIED, a_run, after, drawn, jobs

from farm.dashboard import JobBoard, eta
from farm.types import Event, Stage, Verdict


def board_of(devices: int, models: int, *events: Event) -> JobBoard:
    return after(*events, plan=jobs(devices, models))


def on(device: int, model: int, stage: Stage, **more: object) -> Event:
    return Event(f"board{device}", f"model{model}", stage, **more)  # type: ignore[arg-type]


def line(text: list[str], device: str) -> str:
    return " ".join(next(line for line in text if f" {device} " in line).split())


def test_jobs_that_do_not_fit_are_a_line_for_each_device() -> None:
    board = board_of(
        8,
        9,
        on(0, 0, Stage.CONNECTING),
        on(0, 0, Stage.DONE, run=a_run()),
        on(0, 1, Stage.MEASURING, note="60 samples", fraction=0.5),
        on(1, 0, Stage.CONNECTING),
        on(1, 0, Stage.FAILED, run=a_run(Verdict.FAILED, failure=DIED)),
    )
    text = drawn(board, 100, 24, now=6.0)
    assert len(text) <= 24
    assert line(text, "board0").split(maxsplit=3)[3].startswith("1/9")
    assert line(text, "board0").endswith("model1 measuring 50% 60 samples")
    assert "1/9 ✗ 1" in line(text, "board1")
    assert line(text, "board7").startswith("· board7 ────────── 0/9")
    assert text[-1].startswith("✗ board1 model0")


def test_a_note_that_does_not_fit_is_left_out_rather_than_cut() -> None:
    board = board_of(8, 9, on(0, 0, Stage.MEASURING, note="60 samples of so many", fraction=0.5))
    assert line(drawn(board, 80, 24), "board0").endswith("model0 measuring 50%")
    assert line(drawn(board, 100, 24), "board0").endswith(
        "model0 measuring 50% 60 samples of so many"
    )


def test_below_the_devices_the_room_is_for_the_latest_results() -> None:
    done = [on(device, model, Stage.DONE, run=a_run()) for model in range(6) for device in range(3)]
    text = drawn(board_of(3, 9, *done), 80, 16)
    assert len(text) == 16
    assert [words.split()[:2] for words in text[6:8]] == [[], ["DEVICE", "MODEL"]]
    assert [words.split()[1:3] for words in text[8:11]] == [
        ["board2", "model5"],
        ["board1", "model5"],
        ["board0", "model5"],
    ]
    assert not any("model5" in words for words in drawn(board_of(3, 9, *done), 80, 9)[6:]), (
        "there is no room for results of three jobs"
    )


def test_few_jobs_have_a_line_each_as_ever() -> None:
    assert any("model1" in text for text in drawn(board_of(2, 2), 80, 24))


def test_of_a_device_that_is_done_the_last_result_is_shown_and_no_latency_of_an_emulated_one() -> (
    None
):
    events = [
        on(device, model, Stage.DONE, run=a_run(url=url))
        for device, url in ((0, "local:"), (1, "qemu:"))
        for model in range(30)
    ]
    text = drawn(board_of(2, 30, *events), 80, 24)
    assert line(text, "board0").endswith("model29 STABLE 43.7 ms ±4 %")
    assert line(text, "board1").endswith("model29 STABLE")


def test_where_devices_do_not_fit_those_at_work_and_those_with_errors_come_first() -> None:
    board = board_of(
        30,
        2,
        on(28, 0, Stage.MEASURING),
        on(29, 0, Stage.FAILED, run=a_run(Verdict.FAILED, failure=DIED)),
    )
    text = drawn(board, 80, 12)
    assert len(text) == 12
    names = [words[1] for words in map(str.split, text[3:-3])]
    assert names[-2:] == ["board28", "board29"]
    assert text[-3].startswith(f"… and {30 - len(names)} devices, {2 * (30 - len(names))} jobs")


def left(now: float, *events: Event, models: int = 4) -> eta.TimeLeftEstimate:
    return eta.total_time_left(board_of(2, models, *events).devices, now)


BOTH = [
    on(0, 0, Stage.CONNECTING),
    on(1, 0, Stage.CONNECTING),
    on(0, 0, Stage.DONE, run=a_run()),
    on(1, 0, Stage.DONE, run=a_run()),
]


def test_the_time_left_is_that_of_the_device_that_ends_last() -> None:
    """They reach their boards at 1 and 2 s, and are done at 3 and 4 s: 2 s a job."""
    assert left(4.0, *BOTH) == eta.TimeLeftEstimate(6.0, False)
    assert left(
        4.0, *BOTH, *(on(0, model, Stage.DONE, run=a_run()) for model in (1, 2, 3))
    ) == eta.TimeLeftEstimate(6.0, False)


def test_the_time_of_a_job_is_the_usual_one_on_its_device_without_its_build() -> None:
    events = [
        *(on(0, model, Stage.COMPILING) for model in range(4)),  # from 1 to 4 s
        on(0, 0, Stage.CONNECTING),  # at 5 s
        on(0, 0, Stage.DONE, run=a_run()),
        on(0, 1, Stage.CONNECTING),  # at 7 s
        on(0, 1, Stage.MEASURING),
        on(0, 1, Stage.DONE, run=a_run()),
        on(0, 2, Stage.CONNECTING),  # at 10 s
        *(on(0, 2, Stage.MEASURING, fraction=part / 9) for part in range(8)),
        on(0, 2, Stage.DONE, run=a_run()),
    ]
    board = board_of(1, 6, *events)
    found = eta.device_time_left(board.devices["board0"], 20.0)
    assert found == eta.TimeLeftEstimate(6.0, False), "after 1, 2 and 9 s: 3 jobs of 2 s"


def test_what_a_running_job_has_had_is_taken_off_but_not_more_than_it_should_take() -> None:
    assert left(
        6.0, *BOTH, on(0, 1, Stage.CONNECTING), on(1, 1, Stage.CONNECTING)
    ) == eta.TimeLeftEstimate(6.0 - 0.0, False)
    assert left(
        6.5, *BOTH, on(0, 1, Stage.CONNECTING), on(1, 1, Stage.CONNECTING)
    ).seconds == pytest.approx(5.5)
    assert left(
        90.0, *BOTH, on(0, 1, Stage.CONNECTING), on(1, 1, Stage.CONNECTING)
    ) == eta.TimeLeftEstimate(4.0, True)


def test_of_what_nothing_is_known_the_time_is_a_lower_bound() -> None:
    assert left(3.0) == eta.TimeLeftEstimate(0.0, True)
    assert left(3.0).in_words == ""
    found = left(3.0, on(0, 0, Stage.CONNECTING), on(0, 0, Stage.DONE, run=a_run()), models=9)
    assert (found.at_least, found.in_words) == (True, "≥8.0s left")


def test_the_header_says_what_is_left_and_nothing_once_all_is_done() -> None:
    assert "≈6.0s left" in drawn(board_of(2, 4, *BOTH), 100, 24, now=4.0)[0]
    over = [on(device, model, Stage.DONE, run=a_run()) for device in range(2) for model in range(4)]
    assert "left" not in drawn(board_of(2, 4, *over), 100, 24, now=20.0)[0]


def test_a_wide_board_shows_how_a_latency_went() -> None:
    board = board_of(1, 1, on(0, 0, Stage.DONE, run=a_run()))
    assert any("▁" in text for text in drawn(board, 200, 24))
    emulated = board_of(1, 1, on(0, 0, Stage.DONE, run=a_run(url="qemu:")))
    assert not any("▁" in text for text in drawn(emulated, 200, 24))
