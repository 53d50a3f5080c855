"""TVM's own tests of its tracker, with farm's tracker and the lab's server in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm_programs
import tvm_tracker_checks
from timeouts import LIMIT_S
from tracker_processes import Running, tracker


@pytest.fixture(params=["tracker", "lab serve"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A tracker of farm's, with people and without."""
    folder = tempfile.mkdtemp(prefix="farm-", dir="/tmp")  # the path of a Unix socket is short
    words, options = request.param.split(), ("--unknown-key-s", "100000")
    try:
        with tracker(Path(folder), *options, words=words) as one:
            yield one
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("check", ["register", "request", "pending", "drop"])
def test_the_checks_of_tvms_tracker_pass(running: Running, check: str) -> None:
    done = subprocess.run(
        [sys.executable, tvm_tracker_checks.__file__, str(running.port), check],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=tvm_programs.environment(
            {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == '"done"'
    assert "Traceback" not in running.said
