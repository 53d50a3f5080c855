"""A board that slows itself down while it is measured: its files under /sys are simulated, its
agent and all that follows are real.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from farm_processes import HOST, Farm, server
from rpc_servers import configure

from farm.errors import FarmError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline

SLOW_DOWN_AFTER_S = 2.5  # a warm-up of at most one, and some samples


@dataclass(frozen=True)
class Board:
    """What a board's kernel tells: each file below `folder` lies where the agent reads it."""

    folder: Path

    def write(self, **values: str) -> None:
        places = {
            "frequency": "cpu0/cpufreq/scaling_cur_freq",
            "most": "cpu0/cpufreq/cpuinfo_max_freq",
            "governor": "cpu0/cpufreq/scaling_governor",
            "zone": "thermal/thermal_zone0/type",
            "temperature": "thermal/thermal_zone0/temp",
            "flags": "platform/soc/soc:firmware/get_throttled",
        }
        for name, value in values.items():
            path = self.folder / places[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value)

    @property
    def mounts(self) -> str:
        over = {
            "cpu0": "/sys/devices/system/cpu/cpu0",
            "thermal": "/sys/class/thermal",
            "platform": "/sys/devices/platform",
        }
        return " && ".join(
            f"mount --bind {self.folder / name} {place}" for name, place in over.items()
        )


@pytest.fixture
def board(farm: Farm) -> Iterator[Board]:
    """In a mount namespace of its own, so that nobody else sees its files."""
    made = Board(farm.folder / "board")
    made.write(
        frequency="1400000",
        most="1400000",
        governor="ondemand",
        zone="cpu-thermal",
        temperature="55000",
        flags="0",
    )
    try:
        subprocesses.run_program(
            ["unshare", "--mount", "sh", "-c", made.mounts],
            deadline=Deadline(10),
            what="a board's files",
        )
    except (FarmError, OSError) as error:
        pytest.skip(f"no files can be simulated here: {error}")
    agent = [sys.executable, "-m", "farm", "agent", "--port", "0"]
    words = ["unshare", "--mount", "sh", "-c", f'{made.mounts} && exec "$@"', "sh", *agent]
    with server(
        farm.folder,
        *words,
        says=r"listening on [^:]*:(\d+)",
        env={**farm.env, "FARM_TEST": "a server"},
    ) as port:
        configure(farm, f"rpc://{HOST}:{port}")
        yield made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frequency": "600000"}, "its clock fell from 1400 to 600 MHz"),
        ({"flags": "40004"}, "it is throttled"),
    ],
    ids=["its frequency drops", "its firmware says so"],
)
def test_a_board_that_slows_down_on_the_way_is_called_throttled(
    farm: Farm, board: Board, change: dict[str, str], words: str
) -> None:
    running = farm.start("bench", "--device", "board", "digits", "--minimum", "5", "--json")
    running.says("measuring")
    time.sleep(SLOW_DOWN_AFTER_S)
    board.write(**change)
    done = running.end()
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["verdict"] == "THROTTLED" and words in run["reason"], run["reason"]
    assert run["samples"]["facts_before"]["governor"] == "ondemand"
    assert all(
        {"time_s", "host_s", "temperatures_c"} <= set(facts)
        for facts in run["samples"]["facts_during"]
    )
