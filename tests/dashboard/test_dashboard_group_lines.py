"""The dashboard of a thousand devices: a line for each group of them, and those that are odd."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dashboard_drawing import DIED, a_run, after, drawn

from farm.dashboard import JobBoard
from farm.types import Device, Event, Job, MeasurementSettings, Model, Profile, Run, Stage, Verdict


def fleet(profiles: dict[str, int], tags: tuple[str, ...] = (), models: int = 1) -> list[Job]:
    """Jobs on boards of these numbers by profile, named like pi3-7; tags go round."""
    found = []
    for profile, count in profiles.items():
        for number in range(count):
            tag = (tags[number % len(tags)],) if tags else ()
            board = Device(f"{profile}-{number}", Profile(profile, {}, ""), "rpc://board", tags=tag)
            found += [
                Job(board, Model(f"model{one}", ""), MeasurementSettings()) for one in range(models)
            ]
    return found


def took(p50_ms: float, verdict: Verdict = Verdict.STABLE) -> Run:
    run = a_run(verdict, url="rpc://board")
    assert run.latency
    return replace(run, latency=replace(run.latency, p50_ms=p50_ms))


def done(device: str, run: Run, model: str = "model0") -> Event:
    return Event(device, model, Stage.DONE, run=run)


def died(device: str) -> Event:
    return Event(device, "model0", Stage.FAILED, run=a_run(Verdict.FAILED, failure=DIED))


def words(board: JobBoard, start: str, height: int = 24, width: int = 100) -> list[str]:
    return next(
        line for line in drawn(board, width, height) if line[2:].startswith(f"{start} ")
    ).split()


def test_a_thousand_devices_are_a_line_for_each_profile() -> None:
    events = [done(f"pi3-{number}", took(40 + number)) for number in range(5)]
    events += [Event(f"pi3-{number}", "model0", Stage.MEASURING) for number in (7, 8)]
    board = after(*events, plan=fleet({"pi3": 600, "pi4": 400}))
    text = drawn(board, 100, 24)
    assert len(text) <= 24
    assert words(board, "pi3")[1:3] == ["pi3", "600"]
    assert words(board, "pi3")[-6:] == ["5/600", "42.0", "ms", "40.0", "to", "44.0"]
    assert words(board, "pi4")[-1] == "0/400"


def test_devices_of_one_profile_are_grouped_by_their_tags() -> None:
    text = drawn(after(plan=fleet({"pi3": 100}, ("rack1", "rack2"))), 100, 24)
    assert [line.split()[1:3] for line in text[3:5]] == [["rack1", "50"], ["rack2", "50"]]


def test_where_there_is_room_for_all_devices_each_has_its_line() -> None:
    plan = fleet({"pi3": 100})
    assert any("pi3-99" in line for line in drawn(after(plan=plan), 100, 120))
    assert not any("pi3-99" in line for line in drawn(after(plan=plan), 100, 100))


def test_what_failed_comes_first_then_odd_results_then_what_runs_longest() -> None:
    events = [
        Event("pi3-90", "model0", Stage.MEASURING),
        Event("pi3-80", "model0", Stage.MEASURING),
        *(done(f"pi3-{number}", took(40.0)) for number in range(20)),
        done("pi3-30", took(80.0)),
        done("pi3-31", took(41.0, Verdict.NOISY)),
        died("pi3-40"),
        died("pi3-41"),
    ]
    text = drawn(after(*events, plan=fleet({"pi3": 99})), 100, 24)
    begin = next(place for place, line in enumerate(text) if "DEVICE " in line) + 1
    assert [line.split()[1] for line in text[begin : begin + 6]] == [
        "pi3-41",
        "pi3-40",
        "pi3-31",
        "pi3-30",
        "pi3-90",
        "pi3-80",
    ]
    assert text[-1].startswith("✗ ")


def test_a_latency_is_far_from_others_of_its_model_whether_it_is_longer_or_shorter() -> None:
    usual = [
        done(f"pi3-{number}", took(p50_ms), model)
        for number in range(9)
        for model, p50_ms in (("model0", 40.0), ("model1", 400.0))
    ]
    odd = [done("pi3-20", took(20.0)), done("pi3-21", took(200.0), "model1")]
    board = after(*usual, *odd, plan=fleet({"pi3": 99}, models=2))
    text = drawn(board, 100, 24)
    begin = next(place for place, line in enumerate(text) if "DEVICE " in line) + 1
    assert [line.split()[1::2][:2] for line in text[begin:] if line.split()] == [
        ["pi3-21", "model1"],
        ["pi3-20", "model0"],
    ]


def test_a_group_with_failures_comes_first_and_groups_without_room_are_counted() -> None:
    plan = fleet({f"kind{number}": 10 for number in range(40)})
    text = drawn(after(died("kind33-4"), plan=plan), 100, 20)
    assert len(text) <= 20
    assert text[3].split()[1:3] == ["kind33", "10"]
    hidden = next(line for line in text if line.startswith("… and "))
    assert hidden.startswith(f"… and {40 - (text.index(hidden) - 3)} groups, ")


def test_latencies_of_several_models_are_not_mixed() -> None:
    events = [done("pi3-0", took(40.0)), done("pi3-0", took(400.0), "model1")]
    assert words(after(*events, plan=fleet({"pi3": 100}, models=2)), "pi3")[-1] == "2/200"


@pytest.mark.parametrize(("width", "height"), [(80, 7), (40, 12), (200, 60)])
def test_every_line_fits(width: int, height: int) -> None:
    events = [died(f"pi3-{number}") for number in range(90)] + [
        done(f"pi4-{number}", took(40 + number)) for number in range(90)
    ]
    text = drawn(after(*events, plan=fleet({"pi3": 400, "pi4": 400, "x86": 200})), width, height)
    assert len(text) <= height
    assert max(map(len, text)) <= width
