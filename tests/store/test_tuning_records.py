"""Records are kept by core and workload, survive JSON lines, and merge: the faster stays, and a bad
file changes nothing.
"""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from farm.errors import FarmError, UsageError
from farm.store import (
    MergeCounts,
    TuningRecordStore,
    read_records_file,
    record_to_json,
    write_records_file,
)
from farm.types import TuningRecord

CHOICE = {"method": "direct", "tile": [7, 2, 16], "order": "pixels"}
RECORD = TuningRecord(
    "aarch64 cortex-a72",
    "dense 1x8 8x8",
    CHOICE,
    1e-6,
    2e-6,
    9,
    "2026-01-02T03:04:05+00:00",
    "pi4",
    "Cortex-A72",
    4,
)


@pytest.fixture
def store(tmp_path: Path) -> TuningRecordStore:
    return TuningRecordStore(tmp_path / "data" / "records.sqlite")


def test_a_record_is_found_by_its_core_and_operator_and_replaced_by_a_later_one(store):
    other = replace(RECORD, core="x86_64 znver4 avx512")
    third = replace(RECORD, workload="convolution 1x8x8x8 3x3x8x8")
    of_bytes = replace(RECORD, workload="dense_int8 1x8 8x8")
    for record in (RECORD, other, third, of_bytes):
        store.keep(record)
    assert store.records() == [third, RECORD, of_bytes, other]
    assert store.records("cortex-a72", "dense") == [RECORD]
    assert store.choices(RECORD.core) == {
        record.workload: CHOICE for record in (RECORD, third, of_bytes)
    }
    assert store.choices("aarch64 cortex") == {}
    slower = replace(RECORD, seconds=2e-6)
    store.keep(slower)
    assert store.records(operator="dense") == [slower, other]
    assert store.remove("cortex", "convolution") == store.remove("cortex", "dense_int8") == 1
    assert store.records() == [slower, other]
    store.forget(other.core, "dense 1x9 9x9")
    assert store.records() == [slower, other]
    store.forget(other.core, other.workload)
    assert store.records() == [slower] and store.cores() == [slower.core]
    store.keep(other)
    assert store.remove("cortex", None) == 1
    assert store.records() == [other]


def test_a_store_that_was_never_written_is_empty(store):
    assert store.records() == [] and not store.path.exists()


def test_records_survive_a_file_exactly(store, tmp_path):
    records = [RECORD, replace(RECORD, workload="dense 1x9 9x9", threads=0)]
    write_records_file(tmp_path / "out.jsonl", records)
    assert read_records_file(tmp_path / "out.jsonl") == records
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        assert json.loads(line)["schema"] == "farm/record/1"


def test_of_two_records_the_faster_stays_and_of_equals_the_one_that_was_there(store):
    store.keep(RECORD)
    faster, slower, new = (
        replace(RECORD, seconds=5e-7),
        replace(RECORD, seconds=3e-6),
        replace(RECORD, workload="dense 1x9 9x9"),
    )
    assert store.merge([slower, replace(RECORD, device="another"), new]) == MergeCounts(
        new=1, faster=0, left=2
    )
    assert store.records() == [RECORD, new]
    assert store.merge([faster]) == MergeCounts(new=0, faster=1, left=0)
    assert store.records(operator="dense")[0] == faster


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"schema": "farm/record/2"}', "its schema is 'farm/record/2'"),
        ('{"schema": "farm/record/1"}', "it has no core, workload"),
        (json.dumps({**record_to_json(RECORD), "seconds": 0}), "`seconds` is 0"),
        (json.dumps({**record_to_json(RECORD), "seconds": float("nan")}), "`seconds` is nan"),
        (json.dumps({**record_to_json(RECORD), "default_s": "fast"}), "`default_s` is 'fast'"),
        (json.dumps({**record_to_json(RECORD), "choice": 3}), "`choice` is 3"),
        (json.dumps({**record_to_json(RECORD), "runs": 0}), "`runs` is 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, why):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(record_to_json(RECORD)) + "\n\n" + line + "\n")
    with pytest.raises(UsageError) as caught:
        read_records_file(path)
    assert caught.value.what == f"{path}, line 3: no record"
    assert why in caught.value.why


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_records_file(tmp_path / "none.jsonl")
    with pytest.raises(FarmError, match="cannot be written"):
        write_records_file(tmp_path / "none" / "out.jsonl", [])


def _keep(path: Path, number: int) -> None:
    for index in range(20):
        TuningRecordStore(path).keep(replace(RECORD, workload=f"dense {number} {index}"))


def test_several_farms_keep_records_at_once(store):
    processes = [
        multiprocessing.get_context("spawn").Process(target=_keep, args=(store.path, number))
        for number in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(store.records()) == 60
