from __future__ import annotations

import dataclasses
import itertools
import json
import math
import multiprocessing
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Connection, MetaData, Table, Text, select

from farm.errors import FarmError, InternalError
from farm.store import RunStore, run_from_json, run_to_json
from farm.store.backends import SqliteBackend
from farm.store.database import MigratedDatabase
from farm.types import Agreement, DeviceResults, Failure, Latency, Run, Verdict

SPAWN = multiprocessing.get_context("spawn")

TEXTS = st.text(max_size=8) | st.just("models/\udcff.onnx")  # a file name that is no UTF-8
FACTS = st.dictionaries(TEXTS, TEXTS, max_size=3)
COUNTS = st.none() | st.integers(0, 10**6)
FLOATS = st.floats()
AGREEMENTS = st.builds(
    Agreement,
    *(FLOATS, FLOATS, st.none() | st.booleans(), st.booleans()),
    **dict.fromkeys(("max_rel", "cosine", "top1", "top5"), st.none() | FLOATS),
    why=TEXTS,
)
SAMPLES = st.builds(
    DeviceResults,
    seconds=st.lists(FLOATS, max_size=5).map(tuple),
    first_s=FLOATS,
    agreement=AGREEMENTS,
    correct=COUNTS,
    total=COUNTS,
    facts_before=FACTS,
    facts_after=FACTS,
    ledger=st.dictionaries(TEXTS, FLOATS, max_size=3),
    uploaded=st.integers(0, 2**63),
    release=COUNTS,
    block=st.integers(1, 1000),
    warm=st.none() | st.booleans(),
    facts_during=st.lists(FACTS, max_size=2).map(tuple),
    memory_peak_bytes=COUNTS,
    **dict.fromkeys(("held_up", "measured_s", "wall_s", "energy_j"), st.none() | FLOATS),
)
INTERVALS = st.none() | st.tuples(FLOATS, FLOATS)
LATENCIES = st.builds(
    Latency,
    *(st.integers(1), FLOATS, FLOATS, FLOATS, FLOATS, st.none() | FLOATS, st.none() | FLOATS),
    **dict.fromkeys(("p95_ms", "p90_early_ms"), st.none() | FLOATS),
    **dict.fromkeys([f"p{share}_interval_ms" for share in (50, 90, 95, 99)], INTERVALS),
    block=st.integers(1, 1000),
)
RUNS = st.builds(
    Run,
    started_at=st.datetimes().map(lambda moment: moment.isoformat()),
    **dict.fromkeys(("id", "device", "model", "profile", "url", "reason", "cores"), TEXTS),
    verdict=st.sampled_from(Verdict),
    **dict.fromkeys(("artifact_digest", "model_digest"), st.none() | TEXTS),
    **dict.fromkeys(("threads", "batch"), st.none() | st.integers(1, 64)),
    pinned=st.booleans(),
    samples=st.none() | SAMPLES,
    latency=st.none() | LATENCIES,
    reference_correct=COUNTS,
    reference_total=COUNTS,
    versions=FACTS,
    failure=st.none() | st.builds(Failure, TEXTS, TEXTS, TEXTS, TEXTS, st.integers(1, 255)),
)


def a_run(
    id: str,  # noqa: A002
    device: str = "host",
    model: str = "digits",
    started_at: str = "2026-07-01T12:00:00+00:00",
) -> Run:
    return Run(id, device, model, "x86", "local:", started_at, Verdict.STABLE, "")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "data" / "runs.sqlite")


NO_NUMBERS = dataclasses.replace(
    a_run("1"),
    samples=DeviceResults(
        (math.inf,),
        math.nan,
        Agreement(math.inf, -math.inf, None, False, math.inf, -math.inf, math.inf, math.nan),
        *(None, None, {}, {}, {"feed": math.inf}, 0),
        held_up=math.inf,
        measured_s=math.inf,
        wall_s=-math.inf,
        energy_j=math.inf,
    ),
    latency=Latency(1, *[math.inf] * 7, *[(-math.inf, math.inf)] * 4, math.inf),
)


@given(RUNS)
@example(NO_NUMBERS)
def test_a_run_survives_strict_json_exactly(run: Run) -> None:
    document = json.dumps(run_to_json(run), allow_nan=False)
    assert repr(run_from_json(json.loads(document))) == repr(
        run
    )  # by repr: NaN is NaN, and 0.0 is not -0.0


@settings(max_examples=40)
@given(RUNS)
def test_a_run_survives_the_store_exactly(run: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder) / "runs.sqlite")
        store.keep(run)
        assert repr(store.get(run.id)) == repr(run)
        assert repr(store.runs(model=run.model, device=run.device)) == repr([run])


def test_json_of_an_emulated_run_carries_its_samples_and_says_what_they_are() -> None:
    samples = DeviceResults(
        (0.25, 0.5), 1.0, Agreement(math.inf, -math.inf, None, False), None, None, {}, {}, {}, 0
    )
    run = dataclasses.replace(a_run("1"), url="qemu:", samples=samples)
    body = run_to_json(run)
    assert (body["schema"], body["emulated"], body["verdict"]) == ("farm/run/1", True, "STABLE")
    assert body["samples"]["seconds"] == [0.25, 0.5]
    measures = {
        "max_abs": "inf",
        "snr_db": "-inf",
        "same_top1": None,
        "right": False,
        "max_rel": None,
        "cosine": None,
    }
    assert body["samples"]["agreement"] == {**measures, "top1": None, "top5": None, "why": ""}
    assert run_to_json(a_run("1"))["emulated"] is False


def test_json_of_a_run_tells_its_throughput_its_power_and_its_energy() -> None:
    samples = DeviceResults(
        (0.004,) * 20, 1.0, Agreement(0.0, math.inf, None, True), None, None, {}, {}, {}, 0,
        measured_s=2.0, energy_j=300.0,
    )  # fmt: skip
    latency = Latency(20, 4.0, 4.0, 4.0, 0.0, None, None)
    body = run_to_json(dataclasses.replace(a_run("1"), samples=samples, latency=latency, batch=8))
    assert (body["inferences_per_s"], body["power_w"], body["inference_j"]) == (2000, 150, 0.075)
    body = run_to_json(a_run("1"))
    assert (body["inferences_per_s"], body["power_w"], body["inference_j"]) == (None,) * 3


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "farm/run/2"},
        {"verdict": "GOOD"},
        {"samples": {}},
        {"latency": [1]},
        {"failure": {"what": "x"}},
    ],
)
def test_what_is_no_run_of_ours_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(FarmError, match="cannot be read"):
        run_from_json({**run_to_json(a_run("1")), **change})


def test_runs_come_newest_first_and_are_chosen_by_model_and_device(store: RunStore) -> None:
    for run in (
        a_run("old", started_at="2026-07-01T12:00:00+00:00"),
        a_run("new", started_at="2026-07-03T12:00:00+00:00"),
        a_run("pi3", device="pi3", started_at="2026-07-02T12:00:00+00:00"),
        a_run("resnet18", model="resnet18", started_at="2026-07-02T12:00:00+00:00"),
    ):
        store.keep(run)

    def ids(**choice: object) -> list[str]:
        return [run.id for run in store.runs(**choice)]  # type: ignore[arg-type]

    assert ids() == [
        "new",
        "resnet18",
        "pi3",
        "old",
    ]  # at the same time: the one kept last is first
    assert ids(limit=2) == ["new", "resnet18"]
    assert ids(limit=0) == []
    assert ids(model="digits", device="host") == ["new", "old"]
    assert ids(device="PI3") == []


def test_the_newest_runs_are_those_of_each_model_on_each_device(store: RunStore) -> None:
    for day, model, device in itertools.product(
        range(1, 4), ("digits", "resnet18"), ("host", "pi3")
    ):
        name = f"{model} {device} {day}"
        store.keep(a_run(name, device, model, f"2026-07-0{day}T12:00:00+00:00"))
    pairs = [("resnet18", "pi3"), ("resnet18", "host"), ("digits", "pi3"), ("digits", "host")]
    every = [f"{model} {device} {day}" for day in (3, 2, 1) for model, device in pairs]
    assert [run.id for run in store.newest(2)] == every[:8]
    assert [run.id for run in store.newest(1, devices=["pi3"])] == [every[0], every[2]]
    assert [run.id for run in store.newest(1, models=["digits"])] == every[2:4]
    assert [run.id for run in store.newest(9, ["digits"], ["host"])] == every[3::4]


def test_of_the_newest_runs_the_first_of_each_title_on_a_device_has_its_samples(
    store: RunStore,
) -> None:
    for day, device, threads in itertools.product(range(1, 4), ("host", "pi3"), (1, 2)):
        run = a_run(f"{device} {threads} {day}", device, started_at=f"2026-07-0{day}T12:00:00Z")
        results = DeviceResults(
            (day / 8, threads / 8), 1.0, Agreement(0.0, math.inf, None, True),
            None, None, {}, {}, {}, 0,
        )  # fmt: skip
        store.keep(dataclasses.replace(run, samples=results, threads=threads))
    found = {run.id: run.samples.seconds for run in store.newest(9) if run.samples}
    assert len(found) == 12
    assert {name: seconds for name, seconds in found.items() if seconds} == {
        f"{device} {threads} 3": (3 / 8, threads / 8)
        for device, threads in itertools.product(("host", "pi3"), (1, 2))
    }


def test_a_failed_run_is_kept_like_any_other(store: RunStore) -> None:
    failure = Failure("DeadlineError", "pi3 did not answer", "frozen", "farm devices -v", 6)
    run = dataclasses.replace(a_run("1"), verdict=Verdict.FAILED, failure=failure)
    store.keep(run)
    assert store.runs() == [run]


def test_asking_before_anything_is_kept_finds_nothing_and_makes_no_file(store: RunStore) -> None:
    assert (store.runs(), store.get("1")) == ([], None)
    assert not store.path.parent.exists()


def test_a_run_is_kept_once(store: RunStore) -> None:
    store.keep(a_run("1"))
    with pytest.raises(InternalError, match="1 is kept already"):
        store.keep(a_run("1"))
    assert len(store.runs()) == 1


def test_a_name_is_never_sql(store: RunStore) -> None:
    name = "x'; DROP TABLE runs; --"
    store.keep(a_run("1", model=name))
    assert [run.model for run in store.runs(model=name)] == [name]


def keep_many(path: Path, name: str) -> None:
    for number in range(25):
        RunStore(path).keep(a_run(f"{name}-{number}", device=name))


def test_processes_keep_runs_at_once_from_the_very_first(store: RunStore) -> None:
    children = [
        SPAWN.Process(target=keep_many, args=(store.path, f"lane{number}")) for number in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert {run.id for run in store.runs()} == {
        f"lane{lane}-{number}" for lane in range(4) for number in range(25)
    }


def test_tables_that_another_farm_has_just_made_are_used(tmp_path: Path) -> None:
    names = Table("names", MetaData(), Column("name", Text))

    def farm(place: SqliteBackend) -> MigratedDatabase:
        return MigratedDatabase(place, "names", "names", names.metadata)

    class Overtaken(SqliteBackend):
        """The other one is faster, once this one has seen that there are no tables."""

        def version(self, db: Connection) -> int:
            found = SqliteBackend.version(self, db)
            if found == 0:
                farm(SqliteBackend(self.path)).change(
                    lambda other: other.execute(names.insert(), {"name": "pi5"})
                )
            return found

    slower = farm(Overtaken(tmp_path / "names.sqlite"))
    assert slower.ask(lambda db: db.scalars(select(names.c.name)).all()) == ["pi5"]


def test_tables_of_any_older_farm_get_the_migrations_that_they_lack(tmp_path: Path) -> None:
    names = Table("names", MetaData(), Column("name", Text))

    def naming(number: int) -> Callable[[Connection], None]:
        return lambda db: db.execute(names.insert(), {"name": f"migration {number}"})

    for version in (1, 2, 3):
        place = SqliteBackend(tmp_path / f"{version}.sqlite")
        migrations = tuple(map(naming, (1, 2)))
        MigratedDatabase(place, "names", "names", names.metadata, migrations[: version - 1]).ask(
            lambda _: None
        )
        newest = MigratedDatabase(place, "names", "names", names.metadata, migrations)
        found = newest.ask(lambda db: db.scalars(select(names.c.name)).all())
        assert found == ["migration 1", "migration 2"][version - 1 :]


def test_a_record_that_is_no_database_is_reported_with_how_to_move_it_away(store: RunStore) -> None:
    store.path.parent.mkdir()
    store.path.write_bytes(b"not SQLite at all" * 100)
    for use in (store.runs, lambda: store.keep(a_run("1"))):
        with pytest.raises(FarmError) as caught:
            use()
        assert "not a database" in caught.value.why
        assert f"mv {store.path} {store.path}.broken" in caught.value.fix


def test_a_damaged_database_is_reported(store: RunStore) -> None:
    for number in range(50):
        store.keep(a_run(f"{number}"))
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(FarmError) as caught:
        store.runs()
    assert "malformed" in caught.value.why
    assert ".broken" in caught.value.fix


def test_a_damaged_row_is_reported(store: RunStore) -> None:
    store.keep(a_run("1"))
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE runs SET body = '{'")
    with pytest.raises(FarmError, match="cannot be used"):
        store.runs()


def test_a_record_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (
        tmp_path / "file" / "runs.sqlite",
        tmp_path,
        Path("/sys/farm/runs.sqlite"),
    ):  # not even root may write to sysfs
        with pytest.raises(FarmError) as caught:
            RunStore(path).keep(a_run("1"))
        assert str(path) in caught.value.why
        assert "FARM_DATA" in caught.value.fix


def test_a_server_without_psycopg_is_said_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(FarmError, match="PostgreSQL cannot be used") as caught:
        RunStore("postgresql://somebody@127.0.0.1:1/without-psycopg").ready()
    assert caught.value.fix == "pip install 'tvm-farm[postgresql]'"


def test_a_record_of_a_newer_farm_is_left_alone(store: RunStore) -> None:
    store.keep(a_run("1"))
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA user_version = 99")
    for use in (store.runs, lambda: store.keep(a_run("2"))):
        with pytest.raises(FarmError, match="newer farm"):
            use()
    with sqlite3.connect(store.path) as db:
        assert db.execute("SELECT COUNT(*) FROM runs").fetchone() == (1,)
