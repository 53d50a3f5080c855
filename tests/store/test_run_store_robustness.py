"""What befalls a record of runs: writers that are killed, farms of other ages, files from
elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import random
import sqlite3
import zlib
from pathlib import Path

import pytest
from concurrent_writers import hammer
from hypothesis import given
from hypothesis import strategies as st

from farm.store import RunStore, run_to_json
from farm.store.sample_encoding import pack_samples, to_float64_bytes, unpack_samples
from farm.types import Agreement, DeviceResults, Run, Verdict

# What the first farm made.
FIRST_SCHEMA = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    started_at TEXT NOT NULL,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    seconds BLOB NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX runs_by_time ON runs (started_at, number);
"""


def a_run(id: str = "1", device: str = "host", seconds: tuple[float, ...] = (0.001, 0.002)) -> Run:  # noqa: A002
    samples = DeviceResults(
        seconds, 1.0, Agreement(0.0, math.inf, None, True), None, None, {}, {}, {}, 0
    )
    return Run(
        id,
        device,
        "digits",
        "x86",
        "local:",
        f"2026-07-01T12:00:00+00:0{len(id)}",
        Verdict.STABLE,
        "",
        samples=samples,
    )


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "data" / "runs.sqlite")


def test_sixteen_writers_of_which_some_are_killed_lose_nothing_that_was_kept(
    store: RunStore, tmp_path: Path
) -> None:
    found = hammer(str(store.path), tmp_path, writers=16, each=30, kills=8)
    assert found.lost == found.twice == found.halves == 0
    assert found.acknowledged >= 8 * 30
    assert found.more <= 8
    assert store.path
    with sqlite3.connect(store.path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@given(st.lists(st.floats() | st.integers(0, 2**33).map(lambda ns: ns / 1e9), max_size=50))
def test_samples_survive_packing_exactly(seconds: list[float]) -> None:
    assert repr(unpack_samples(pack_samples(seconds))) == repr(tuple(seconds))


def test_nanoseconds_take_less_than_half_of_their_floats() -> None:
    draw = random.Random(1)
    seconds = [round(draw.gauss(7e6, 1e5)) / 1e9 for _ in range(5000)]
    assert len(pack_samples(seconds)) < len(to_float64_bytes(seconds)) / 2


@pytest.mark.parametrize("damaged", [b"", b"\2abc", b"\1abc", b"\0abc"])
def test_what_is_no_packed_samples_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="samples"):
        unpack_samples(damaged)


def test_samples_that_unpack_to_too_much_are_refused() -> None:
    """A row of a shared record may be anyone's."""
    with pytest.raises(ValueError, match="more than"):
        unpack_samples(b"\1" + zlib.compress(bytes((4 << 22) + 4)))


def shape(path: Path) -> object:
    """The version of a file, and its tables' columns and indices."""
    with sqlite3.connect(path) as db:
        tables = [
            name
            for (name,) in db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
            )
        ]
        columns = {
            name: db.execute(
                'SELECT name, type, "notnull" OR pk, pk FROM pragma_table_info(?)', (name,)
            ).fetchall()
            for name in tables
        }
        indices = {
            (
                table,
                tuple(
                    column
                    for (column,) in db.execute("SELECT name FROM pragma_index_info(?)", (index,))
                ),
            )
            for table in tables
            for (index,) in db.execute("SELECT name FROM pragma_index_list(?)", (table,)).fetchall()
        }
        return db.execute("PRAGMA user_version").fetchone(), columns, indices


def test_a_record_of_the_first_farm_is_brought_up_to_date(store: RunStore) -> None:
    store.path.parent.mkdir()
    old = a_run(seconds=(0.1, 0.25, 1 / 3))
    body = run_to_json(
        dataclasses.replace(old, samples=dataclasses.replace(old.samples, seconds=()))
    )
    for name in ("block", "warm", "measured_s", "facts_during", "wall_s"):  # which it did not know
        del body["samples"][name]
    with sqlite3.connect(store.path) as db:
        db.executescript(FIRST_SCHEMA)
        row = (
            old.id,
            old.started_at,
            old.device,
            old.model,
            to_float64_bytes((0.1, 0.25, 1 / 3)),
            json.dumps(body),
        )
        db.execute(
            (
                "INSERT INTO runs (id, started_at, device, model, seconds, body) VALUES (?, ?, ?, "
                "?, ?, ?)"
            ),
            row,
        )
        db.execute("PRAGMA user_version = 1")
    assert store.runs() == [old]
    store.keep(a_run("22"))
    store.save_baseline("before", [old])
    assert store.baseline("before") == [old]
    new = RunStore(store.path.with_name("new.sqlite"))
    new.ready()
    assert shape(store.path) == shape(new.path)


def test_runs_from_elsewhere_are_added_once_and_all_or_none(store: RunStore) -> None:
    store.keep(a_run("1"))
    assert store.add([a_run("1"), a_run("22"), a_run("333")]) == 2
    assert store.add([a_run("22")]) == 0

    def breaks() -> object:
        yield a_run("4444")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add(breaks())  # type: ignore[arg-type]
    assert sorted(run.id for run in store.runs()) == ["1", "22", "333"]


def test_a_baseline_has_one_run_for_each_model_on_a_device(store: RunStore) -> None:
    for run in (a_run("1"), a_run("22"), a_run("333", device="pi")):
        store.keep(run)
    store.save_baseline("a", [a_run("1")])
    store.save_baseline("b", [a_run("1"), a_run("333", device="pi")])
    store.save_baseline("b", [a_run("22")])
    assert [run.id for run in store.baseline("b")] == ["22", "333"]
    assert store.baselines() == {"a": 1, "b": 2}
    assert (store.remove_baseline("b"), store.remove_baseline("b")) == (True, False)
    assert (store.baseline("b"), len(store.runs())) == ([], 3)
    assert [run.id for run in store.baseline("a")] == ["1"]


def test_a_baseline_has_one_run_for_each_number_of_threads(store: RunStore) -> None:
    runs = [dataclasses.replace(a_run("1" * number), threads=number) for number in (1, 2)]
    store.add(runs)
    store.save_baseline("b", runs)
    assert sorted(run.id for run in store.baseline("b")) == ["1", "11"]


def test_a_run_is_found_by_the_first_letters_of_its_id(store: RunStore) -> None:
    for name in ("abc1", "abd2", "%_"):
        store.keep(a_run(name))
    assert [
        sorted(run.id for run in store.starting_with(prefix)) for prefix in ("ab", "abc", "%", "x")
    ] == [
        ["abc1", "abd2"],
        ["abc1"],
        ["%_"],
        [],
    ]


@pytest.mark.parametrize("older", [False, True])
def test_nobody_else_reads_a_record_whatever_the_umask(store: RunStore, older: bool) -> None:
    """Its write-ahead log and shared memory, which hold the newest runs, take its mode while they
    are there.
    """
    before = os.umask(0)
    try:
        if older:
            store.keep(a_run())
            assert store.path is not None
            store.path.chmod(0o644)
            store.path.parent.chmod(0o755)
        else:
            store.ready()
        with contextlib.closing(sqlite3.connect(store.path)) as reader:
            store.keep(a_run("2"))
            assert reader.execute("SELECT count(*) FROM runs").fetchone() == (
                1 + older,
            )  # keeps the log there
            store.keep(a_run("3"))
            modes = {path.name: path.stat().st_mode & 0o777 for path in store.path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["runs.sqlite", "runs.sqlite-shm", "runs.sqlite-wal"], 0o600)
    assert older or store.path.parent.stat().st_mode & 0o777 == 0o700
