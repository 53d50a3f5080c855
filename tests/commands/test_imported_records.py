"""Records that `farm records import` refuses: a schedule may bring code of its own."""

from __future__ import annotations

from pathlib import Path

import forked_commands
import pytest

from farm.commands.judge import records
from farm.errors import UsageError
from farm.store import TuningRecordStore, write_records_file
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


def test_nothing_of_a_file_with_such_a_schedule_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    tiles = record("dense 1x8", rows=4)
    evil = record("softmax", trace=[[["Evaluate", [], ["__import__('os')"], []]], []])
    file = tmp_path / "in.jsonl"
    for found, code, kept in (([tiles, evil], 2, []), ([tiles], 0, [tiles])):
        write_records_file(file, found)
        assert forked_commands.run(["records", "import", file]).returncode == code
        assert TuningRecordStore.of_user().records() == kept
