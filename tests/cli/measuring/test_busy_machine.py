"""A number measured while other work has the CPU is not called steady."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from farm_processes import Farm


@pytest.fixture
def busy_cpus() -> Iterator[None]:
    """Other work on every CPU, twice over."""
    words = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(2 * len(os.sched_getaffinity(0))):
            stack.callback(stack.enter_context(subprocess.Popen(words)).kill)
        yield


def test_other_work_on_the_cpus_makes_a_number_noisy(farm: Farm, busy_cpus: None) -> None:
    done = farm.run("bench", "--device", "host", "digits", "--minimum", "1", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["samples"]["held_up"] > 0.2
    assert run["verdict"] == "NOISY"
