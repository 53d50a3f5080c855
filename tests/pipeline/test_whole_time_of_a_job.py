"""The time of a job is that of its session, of its process around, and of what was made for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from farm.pipeline.worker_tasks import add_build_and_process_times
from farm.types import Agreement, Artifact, DeviceResults, PreparedModel

RIGHT = Agreement(0.0, 90.0, None, True)
HERE = Path("x")
IMPORT = PreparedModel(
    "net", "d", HERE, (), (), "ONNX Runtime", RIGHT, "float32", None, None, {"import": 3.0}
)
BUILD = Artifact(
    *("net", "pi", "d", HERE, "d", HERE, "d"), (), (), {}, {}, 0, (), {"lower": 1.0, "code": 4.0}
)
SESSION = DeviceResults(
    (0.5,), 0.1, RIGHT, None, None, {}, {}, {"compute": 6.0, "connect": 1.0}, 0, wall_s=7.0
)


@pytest.mark.parametrize(
    ("has_import", "has_build", "build_s"),
    [(False, False, 8.0), (True, False, 5.0), (True, True, 0.0)],
)
def test_what_was_there_already_takes_no_time(
    has_import: bool, has_build: bool, build_s: float
) -> None:
    made = (replace(IMPORT, cached=has_import), replace(BUILD, cached=has_build))
    whole = add_build_and_process_times(SESSION, made, 9.0)
    assert whole.wall_s == build_s + 9.0
    assert dict(whole.ledger) == {"build": build_s, "process": 2.0, "compute": 6.0, "connect": 1.0}


def test_a_session_that_tells_no_time_takes_that_of_its_process() -> None:
    whole = add_build_and_process_times(replace(SESSION, wall_s=None), (), 9.0)
    assert (whole.wall_s, whole.ledger["process"]) == (9.0, 0.0)
