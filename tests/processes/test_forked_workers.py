"""A worker that is forked finds what a worker finds that is a program, and can do the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_commands
import forked_workers
import pytest
import worker_state
from timeouts import LIMIT_S

from farm import sandbox

_MARK = "0123456789abcdef" * 2


@pytest.mark.skipif(not sandbox.sandbox_support().complete, reason="there is no sandbox here")
def test_it_finds_what_a_program_finds_and_computes_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, worker_state.__file__, str(tmp_path), _MARK],
        env={**os.environ, "FARM_TEST": forked_commands.NO_MARK, "OF_TEST": "a value"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT_S,
    )
    program, fork = json.loads(done.stdout)
    before, after = fork["before"], fork["after"]
    before["files"].remove("socket")  # to its own fork, which is kept for sandboxes
    assert fork == program
    assert before["mark"] == [f"FARM_TEST={_MARK}"]
    assert before["environment"]["OF_TEST"] == "a value"
    assert (before["TVM"], before["torch"], before["TVM later"]) == (False, False, True)
    assert before["sandbox"] == [True, False]
    assert before["computed"] == after["computed"] == [0, 2, 4, 6]
    assert after["in the group"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([sys.executable, "-c", "... worker_main.main()", "3", "/scratch"], True),
        ([sys.executable, "-c", "... fork_server.main()", "3"], False),
        (["/usr/bin/true"], False),
    ],
)
def test_only_workers_are_forked(command: list[Any], expected: bool) -> None:
    assert forked_workers.is_start_of_worker(command) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([sys.executable, "-c", "... fork_server.main()", "3"], True),
        ([sys.executable, "-c", "... worker_main.main()", "3", "/scratch"], False),
        (["/usr/bin/true"], False),
    ],
)
def test_a_worker_forks_the_servers_of_its_sandboxes_only(
    command: list[Any], expected: bool
) -> None:
    assert forked_workers.is_start_of_fork_server(command) is expected


def test_variables_that_libraries_read_and_folders_without_tvm_need_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Libraries that other tests have imported into this process may have set some of them
    monkeypatch.setattr(forked_workers, "_environment", dict(os.environ))
    assert forked_workers.can_fork({**os.environ, "FARM_CACHE": "/elsewhere"})
    assert not forked_workers.can_fork({**os.environ, "TVM_NUM_THREADS": "1"})
    (tmp_path / "linux-vdso.so.1").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    assert not forked_workers.can_fork(os.environ)
