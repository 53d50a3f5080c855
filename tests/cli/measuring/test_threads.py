"""--threads, --cores, --pinned and the options of devices.toml: a row for each setting, and the
device's own word that it computed so.
"""

from __future__ import annotations

import os

import pytest
from farm_processes import DIGITS, QUICK, Farm

ALLOWED = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="this machine has one core")


def test_a_bench_has_a_row_for_each_setting_and_keeps_it(farm: Farm) -> None:
    done = farm.run(
        "bench", "--device", "host", "digits", "--threads", "1,2", "--cores", "big", "--json"
    )
    assert done.code == 0, done.err
    runs = done.json["runs"]
    assert [(run["threads"], run["cores"], run["pinned"]) for run in runs] == [
        (1, "big", False),
        (2, "big", False),
    ]
    assert [run["samples"]["facts_before"]["threads"] for run in runs] == ["1", "2"]
    assert len(done.json["builds"]) == 1
    kept = farm.run("history", "--json").json["runs"]
    assert sorted((run["threads"], run["cores"]) for run in kept) == [(1, "big"), (2, "big")]
    assert farm.run("history").out.count("big") == 2


def test_each_core_by_itself(farm: Farm) -> None:
    done = farm.run("bench", "--device", "pi3", "digits", "--cores", "each", "--json")
    runs = done.json["runs"]
    assert [run["cores"] for run in runs] == [
        facts["thread_cores"] for facts in (run["samples"]["facts_before"] for run in runs)
    ]
    assert len(runs) >= 2 and {run["threads"] for run in runs} == {1}


def test_a_setting_that_the_device_has_not_the_cores_for_fails_in_its_row_only(farm: Farm) -> None:
    done = farm.run("bench", "--device", "host", "digits", "--threads", "1,999", "--json")
    good, bad = done.json["runs"]
    assert done.code == 1 and good["verdict"] in ("STABLE", "NOISY", "RIGHT")
    assert (
        bad["failure"]["what"] == "host cannot compute with these threads and cores"
        and "a core takes one" in bad["failure"]["why"]
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--threads", "0"),
        ("--threads", "two"),
        ("--cores", "large"),
        ("--cores", "each", "--threads", "2"),
        ("--cores", "1,"),
    ],
)
def test_what_is_no_setting_is_a_mistake_of_usage(farm: Farm, words: tuple[str, ...]) -> None:
    done = farm.run("bench", "--device", "host", "digits", *words)
    assert done.code == 2 and done.error["fix"]


def test_a_devices_own_options_hold_for_a_run_and_the_command_line_overrides_them(
    farm: Farm,
) -> None:
    import numpy as np

    np.save(farm.folder / "x.npy", np.zeros((1, 1, 8, 8), "float32"))
    farm.configure(
        DIGITS
        + QUICK
        + (
            '[devices.host]\nprofile = "x86"\nurl = "local:"\noptions = { threads = 999, cores = '
            '"all" }\n'
        )
    )
    asked = ("run", "--device", "host", "digits", "--input", "x.npy")
    assert "a core takes one" in farm.run(*asked).error["why"]
    assert farm.run(*asked, "--threads", "2").code == 0
