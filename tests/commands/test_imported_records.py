"""Records that `farm records import` refuses: a schedule may bring code of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.commands.judge import records
from farm.errors import UsageError
from farm.types import TuningRecord

WHEN = "2026-01-02T03:04:05"


def record(workload: str, **choice: object) -> TuningRecord:
    return TuningRecord("znver4", workload, choice, 2e-6, 5e-6, 9, WHEN, "host")


def test_a_schedule_that_farm_does_not_write_is_found_behind_other_records() -> None:
    tiles, empty = record("dense 1x8", rows=4), record("pool", trace=[[], []])
    records._check_traces(Path("in.jsonl"), [tiles, empty])
    evil = record("softmax", trace=[[["Evaluate", [], ["__import__('os')"], []]], []])
    for found in ([evil], [tiles, evil], [tiles, empty, evil, tiles]):
        with pytest.raises(UsageError, match="a schedule that farm does not write") as refused:
            records._check_traces(Path("in.jsonl"), found)
        assert "the record of softmax" in refused.value.why
