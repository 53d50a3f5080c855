"""The exit code of a command that ran jobs, by what became of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_runs import GONE, failed, timed

from farm.commands.measure.bench import outcome_exit_code
from farm.pipeline.run_jobs import JobsOutcome, WallTimes
from farm.types import Run, Verdict

GOOD = timed("host", "resnet18", 1)
WRONG = replace(timed("pi5", "resnet18", 1), verdict=Verdict.WRONG)
DEAD = failed("pi5", "resnet18", 1)
MISSING = replace(DEAD, failure=replace(GONE, kind="UnavailableError"))


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([GOOD, GOOD], 0),
        ([GOOD, WRONG], 1),
        ([WRONG], 7),
        ([replace(WRONG, failure=GONE)], 7),
        ([DEAD], 5),
        ([replace(DEAD, failure=replace(GONE, exit_code=6))], 6),
        ([GOOD, MISSING], 5),
        ([MISSING, MISSING], 5),
        ([MISSING, WRONG], 1),
        ([MISSING, DEAD], 1),
        ([DEAD, DEAD], 1),
    ],
)
def test_only_missing_boards_have_the_code_of_a_device_beside_good_runs(
    runs: list[Run], code: int
) -> None:
    assert outcome_exit_code(JobsOutcome(tuple(runs), (), WallTimes(1.0, 0.5, {}))) == code
