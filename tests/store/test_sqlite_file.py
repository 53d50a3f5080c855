from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from test_run_store import a_run

from farm.store import RunStore, TuningRecordStore, database, sqlite_file
from farm.types import TuningRecord


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path / "runs.sqlite")
    store.ready()
    return store


def rows(store: RunStore) -> list[tuple[object, ...]]:
    assert store.path
    with closing(sqlite3.connect(store.path)) as db:
        return db.execute("SELECT * FROM runs ORDER BY number").fetchall()


def test_a_run_is_stored_the_same_without_sqlalchemy(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run("one", model="models/\udcff\0.onnx")
    with monkeypatch.context() as without:
        without.setattr(database, "MigratedDatabase", None)
        store.ready()
        store.keep(run)
    other = RunStore(tmp_path / "other.sqlite")
    monkeypatch.setattr(sqlite_file, "transact", lambda *_: None)
    other.keep(run)
    assert len(rows(store)) == 1
    assert rows(store) == rows(other)
    assert store.runs() == [run]


def test_tuning_records_are_read_the_same_without_sqlalchemy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = TuningRecordStore(tmp_path / "records.sqlite")
    for core in ("b", "a", "c\udcff"):
        records.keep(TuningRecord(core, "dense", {}, 1e-6, 2e-6, 3, "2026-07-01", "pi3"))
    with monkeypatch.context() as without:
        without.setattr(database, "MigratedDatabase", None)
        found = records.records()
    monkeypatch.setattr(sqlite_file, "transact", lambda *_: None)
    assert [record.core[0] for record in found] == ["a", "b", "c"]
    assert found == records.records()


def transacted(path: Path, version: int = 2) -> int | None:
    return sqlite_file.transact(
        path, version, sqlite_file.CHANGE, lambda db: db.execute("DELETE FROM runs").rowcount
    )


def test_what_is_unusual_is_left_to_the_general_way(store: RunStore, tmp_path: Path) -> None:
    store.keep(a_run("one"))
    assert store.path
    missing, broken = tmp_path / "missing.sqlite", tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database, but long enough to be read as one" * 100)
    assert transacted(missing) is None and not missing.exists()
    assert transacted(broken) is None
    assert transacted(store.path, version=3) is None
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert transacted(store.path) is None
    assert len(rows(store)) == 1
    assert transacted(store.path) == 1


def test_a_change_that_fails_changes_nothing(store: RunStore) -> None:
    store.keep(a_run("one"))
    assert store.path

    def fail(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM runs")
        db.execute("DELETE FROM nowhere")

    assert sqlite_file.transact(store.path, 2, sqlite_file.CHANGE, fail) is None
    assert len(rows(store)) == 1
