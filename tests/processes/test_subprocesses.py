"""A program and all that it started are ended; what has ended is not waited for."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from timeouts import LIMIT_S

from farm.errors import BuildError
from farm.processes.deadline import Deadline
from farm.processes.subprocesses import run_program

# Orphans come to this process, which reaps none: like the first process of many containers.
_INIT = """
import ctypes, os, sys, time
from pathlib import Path
from farm.processes import subprocesses

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
log = Path(sys.argv[1])
program = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(600)"
child = subprocesses.start_program([sys.executable, "-c", program], log=log, own_group=True)
while len(log.read_text().split()) < 2:
    time.sleep(0.01)
subprocesses.end_program(child, group=True, grace_s=float(sys.argv[2]))
[orphan] = [int(word) for word in log.read_text().split() if int(word) != child.pid]
print(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[0])
"""


def test_an_orphan_that_has_ended_and_is_not_reaped_is_not_waited_for(tmp_path):
    grace_s, begin = 60, time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _INIT, str(tmp_path / "log"), str(grace_s)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["Z"]
    assert time.monotonic() - begin < grace_s


def test_of_a_program_that_fails_the_last_lines_are_told_and_not_more_of_them_than_fits():
    script = "for number in range(20): print(number, 'x' * 1000)\nraise SystemExit(3)"
    with pytest.raises(BuildError, match="compiling failed with exit code 3") as caught:
        run_program([sys.executable, "-c", script], deadline=Deadline(LIMIT_S), what="compiling")
    lines = caught.value.why.splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(12, 20)]
    assert {len(line) for line in lines} == {400}


def test_a_program_that_a_signal_ends_has_failed():
    script = "import os; print('half', flush=True); os.kill(os.getpid(), 9)"
    with pytest.raises(BuildError, match="linking failed") as caught:
        run_program([sys.executable, "-c", script], deadline=Deadline(LIMIT_S), what="linking")
    assert caught.value.why == "half"


def test_a_program_has_the_environment_of_this_one_but_for_what_it_is_given(monkeypatch):
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("CHANGED", "old")
    said = run_program(
        ["sh", "-c", "echo $KEPT $CHANGED"],
        deadline=Deadline(LIMIT_S),
        what="asking",
        env={"CHANGED": "new"},
    )
    assert said == "kept new\n"
