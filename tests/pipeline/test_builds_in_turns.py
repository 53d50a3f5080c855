"""Which two runs can be measured again in turns, and on which device with which cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import timed

from farm.config import Fleet, parse_fleet
from farm.errors import UsageError
from farm.pipeline.compare import _device

FLEET = """
[devices.pi5]
profile = "rasp4-64"
url = "ssh://pi5"
options = { threads = 4, cores = "all", pinned = true, store = "/data" }
[devices.pi3]
profile = "rasp3b"
url = "qemu:"
"""
RUN = replace(timed("pi5", "net", 1), profile="rasp4-64")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return parse_fleet(FLEET, tmp_path / "devices.toml")


def test_builds_are_measured_with_the_threads_and_cores_of_their_runs(fleet: Fleet) -> None:
    assert _device(RUN, RUN, fleet).options == {"store": "/data"}
    asked = replace(RUN, threads=2, cores="big", pinned=True)
    assert _device(asked, asked, fleet).options == {
        "store": "/data",
        "threads": 2,
        "cores": "big",
        "pinned": True,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "pi3"}, "of different devices"),
        ({"profile": "rasp4"}, "of different kinds of board"),
        ({"threads": 2}, "of different threads or cores"),
        ({"cores": "big"}, "of different threads or cores"),
        ({"pinned": True}, "of different threads or cores"),
    ],
)
def test_runs_that_differ_in_more_than_the_build_are_refused(
    fleet: Fleet, change: dict[str, object], words: str
) -> None:
    for pair in ((RUN, replace(RUN, **change)), (replace(RUN, **change), RUN)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=words):
            _device(*pair, fleet)


def test_runs_of_a_board_that_is_another_now_or_is_emulated_are_refused(fleet: Fleet) -> None:
    other = replace(RUN, profile="rasp4")
    with pytest.raises(UsageError, match="pi5 is another board"):
        _device(other, other, fleet)
    emulated = replace(RUN, device="pi3", profile="rasp3b")
    with pytest.raises(UsageError, match="pi3 is emulated"):
        _device(emulated, emulated, fleet)
