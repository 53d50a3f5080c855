"""The record of runs on a real PostgreSQL server: as in a file, with many farms at once, and with
the server restarted in the middle.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import forked_commands
import pytest
from concurrent_writers import hammer
from postgres_server import PostgresServer, binaries, postgres_server
from report_runs import many, timed
from sqlalchemy import Column, Connection, MetaData, Table, Text, text

from farm.errors import FarmError, InternalError
from farm.store import RunStore
from farm.store.backends import PostgresBackend
from farm.store.database import MigratedDatabase

pytest.importorskip(
    "psycopg", reason="psycopg is not installed: pip install 'tvm-farm[postgresql]'"
)
pytestmark = pytest.mark.skipif(
    binaries() is None, reason="there is no PostgreSQL server: apt-get install postgresql"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as one:
        yield one


@pytest.fixture
def store(server: PostgresServer) -> RunStore:
    server.sql("DROP TABLE IF EXISTS baselines, runs, farm_schema, boards")
    return RunStore(server.url)


def test_runs_survive_exactly_and_are_found_as_in_a_file(store: RunStore, tmp_path: Path) -> None:
    beside = RunStore(tmp_path / "runs.sqlite")
    hostile = dataclasses.replace(
        timed("pi5 %s ? \\ ' \"", "models/\udcff.onnx", 3), reason="a\0b 100 %"
    )
    for one in (store, beside):
        assert one.runs() == []
        assert one.add([*many(), hostile]) == len(many()) + 1
        assert one.add(many()) == 0
        one.save_baseline("release", many()[:2])
        one.save_baseline("release", many()[1:3])
    assert store.runs() == beside.runs()
    assert store.runs("resnet18", "pi5", 3) == beside.runs("resnet18", "pi5", 3)
    assert store.newest(2) == beside.newest(2)
    assert store.newest(9, ["resnet18"], ["pi5", "host"]) == beside.newest(
        9, ["resnet18"], ["pi5", "host"]
    )
    assert store.get(hostile.id) == hostile
    assert store.starting_with("pi5-resnet18-1") == beside.starting_with("pi5-resnet18-1")
    assert store.baseline("release") == beside.baseline("release") != []
    assert store.baselines() == {"release": 1}
    assert (store.remove_baseline("release"), store.remove_baseline("release")) == (True, False)


def test_the_settings_of_a_url_reach_the_server(server: PostgresServer) -> None:
    sign = "&" if "?" in server.url else "?"
    given = "options=-c%20search_path%3Dteam&application_name=nightly"
    with PostgresBackend(f"{server.url}{sign}{given}").engine().connect() as db:
        assert db.scalar(text("SHOW search_path")) == "team"
        assert db.scalar(text("SHOW application_name")) == "nightly"
        assert db.scalar(text("SHOW statement_timeout")) == "1min", "the limits hold all the same"
    with PostgresBackend(server.url).engine().connect() as db:
        assert db.scalar(text("SHOW application_name")) == "farm"


def test_a_run_is_kept_once(store: RunStore) -> None:
    store.keep(timed("a", "b", 1))
    with pytest.raises(InternalError, match="a-b-1 is kept already"):
        store.keep(timed("a", "b", 1))


def test_many_writers_one_killed_and_the_server_restarted_lose_nothing(
    store: RunStore, server: PostgresServer, tmp_path: Path
) -> None:
    found = hammer(
        server.url,
        tmp_path,
        writers=10,
        each=12,
        kills=1,
        meanwhile=lambda: server.restart("immediate"),
    )
    assert found.lost == found.halves == found.twice == 0
    assert found.acknowledged >= 9 * 12


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    with pytest.raises(FarmError) as caught:
        RunStore("postgresql://me:secret@127.0.0.1:1/farm").ready()
    assert "Connection refused" in caught.value.why
    assert "secret" not in str(caught.value)
    assert "psql postgresql://me@127.0.0.1:1/farm" in caught.value.fix


def test_a_database_that_is_not_there_is_said_with_how_to_make_it(server: PostgresServer) -> None:
    with pytest.raises(FarmError, match="the record of runs cannot be used") as caught:
        RunStore(server.url.replace("/farm", "/other")).ready()
    assert "createdb" in caught.value.fix


def test_a_record_of_a_newer_farm_is_left_alone(store: RunStore, server: PostgresServer) -> None:
    store.ready()
    server.sql("UPDATE farm_schema SET version = 99")
    with pytest.raises(FarmError, match="written by a newer farm"):
        store.runs()


# What farms that used psycopg themselves have made.
MADE_BEFORE = """
CREATE TABLE farm_schema (version INTEGER NOT NULL);
INSERT INTO farm_schema VALUES (2);
CREATE TABLE runs (
    number BIGSERIAL PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    started_at TEXT COLLATE "C" NOT NULL,
    device TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    seconds BYTEA NOT NULL,
    body TEXT COLLATE "C" NOT NULL
);
CREATE INDEX runs_by_time ON runs (started_at, number);
CREATE TABLE baselines (
    name TEXT COLLATE "C" NOT NULL,
    device TEXT COLLATE "C" NOT NULL,
    title TEXT COLLATE "C" NOT NULL,
    run TEXT COLLATE "C" NOT NULL REFERENCES runs (id),
    PRIMARY KEY (name, device, title)
);
CREATE INDEX runs_by_model ON runs (model, device, started_at);
"""
SHAPE = """
SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default FROM information_schema.columns
WHERE table_schema = 'public' ORDER BY table_name, ordinal_position;
SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexdef
"""  # noqa: E501


def test_a_record_that_an_older_farm_made_is_as_one_of_ours(
    store: RunStore, server: PostgresServer
) -> None:
    store.ready()
    ours = server.sql(SHAPE)
    server.sql("DROP TABLE baselines, runs, farm_schema")
    server.sql(MADE_BEFORE)
    assert server.sql(SHAPE) == ours
    store.keep(timed("a", "b", 1))
    assert [run.id for run in store.runs()] == ["a-b-1"]


def test_a_schema_is_migrated_once_by_whoever_comes_first(
    store: RunStore, server: PostgresServer
) -> None:
    def place(version: int) -> MigratedDatabase:
        def add(db: Connection) -> None:
            db.exec_driver_sql("ALTER TABLE boards ADD COLUMN place TEXT")

        return MigratedDatabase(
            PostgresBackend(server.url), "boards", "boards", boards.metadata, (add,) * (version - 1)
        )

    boards = Table("boards", MetaData(), Column("name", Text))
    place(1).change(lambda db: db.execute(boards.insert(), {"name": "pi5"}))
    found: list[list[Sequence[object]]] = []
    farms = [
        threading.Thread(
            target=lambda: found.append(
                [
                    tuple(row)
                    for row in place(2).ask(
                        lambda db: db.execute(text("SELECT * FROM boards")).all()
                    )
                ]
            )
        )
        for _ in range(6)
    ]
    for one in farms:
        one.start()
    for one in farms:
        one.join()
    assert found == [[("pi5", None)]] * 6
    assert server.sql("SELECT version FROM farm_schema") == "2"


def test_the_command_line_keeps_its_runs_there(
    store: RunStore, server: PostgresServer, tmp_path: Path
) -> None:
    store.add([timed("pi5", "net", 1)])
    (tmp_path / "devices.toml").write_text(
        f'store = "{server.url}"\n[devices.host]\nprofile = "x86"\nurl = "local:"\n'
    )
    words = ("history", "net", "--device", "pi5")
    done = forked_commands.run(words, {**os.environ, "COLUMNS": "120"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pi5" in done.stdout and "net" in done.stdout
