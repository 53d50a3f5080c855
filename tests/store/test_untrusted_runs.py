"""Runs of strangers are imported only if every later command can show them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from report_runs import many, timed

from farm.cli import cli
from farm.errors import FarmError
from farm.store import RunStore, parse_untrusted_run, run_to_json

BODIES = [
    run_to_json(run) for run in (timed("pi5", "resnet18", 1), replace(many()[-1], id="failed"))
]


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in a document."""
    yield at
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2]
        for key, item in items:
            yield from places(item, (*at, key))


def with_value(body: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[path[0]] = with_value(copy[path[0]], path[1:], value)
    return copy


CHANGES = [(index, path) for index, body in enumerate(BODIES) for path in places(body)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@pytest.mark.parametrize(
    "run", [replace(run, id=f"run{number}") for number, run in enumerate(many())]
)
def test_what_farm_exports_is_taken(run: Any) -> None:
    assert run_to_json(parse_untrusted_run(json.dumps(run_to_json(run)))) == run_to_json(run)


@given(change=st.sampled_from(CHANGES), value=JSON)
def test_any_value_anywhere_is_a_run_or_one_error(
    change: tuple[int, tuple[str | int, ...]], value: Any
) -> None:
    index, path = change
    line = json.dumps(with_value(BODIES[index], path, value))
    try:
        run = parse_untrusted_run(line)
    except FarmError:
        return
    assert (
        parse_untrusted_run(json.dumps(run_to_json(run), allow_nan=False)) == run
        or "nan" in line.lower()
    )


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("model",), 7, "model"),
        (("model",), "", "no model"),
        (("device",), {"a": 1}, "device"),
        (("id",), "../../etc/passwd", "id is"),
        (("id",), "", "id is"),
        (("artifact_digest",), "../x", "artifact_digest is"),
        (("model_digest",), "../x", "model_digest is"),
        (("started_at",), "yesterday", "started_at is"),
        (("started_at",), "2026-07-01T12:00:00", "no time zone"),
        (("reason",), "x" * 20_000, "20000 characters"),
        (("versions",), {"farm": 1}, "versions"),
        (("versions",), [], "versions"),
        (("versions",), {"x" * 20_000: "1"}, "20000 characters"),
        (("samples", "seconds"), [1.0, -1.0], "no times above 0"),
        (("samples", "seconds"), [1.0, 0.0], "no times above 0"),
        (("samples", "seconds"), [1e999], "no times above 0"),
        (("samples", "facts_before"), {"cpu": ["x"]}, "facts_before"),
        (("samples", "facts_during"), ["x"], "facts_during"),
        (("latency", "count"), "5", "count"),
        (("latency", "p50_interval_ms"), [1.0], "p50_interval_ms"),
        (("threads",), "2", "threads"),
        (("batch",), 2**63, "beyond 64 bits"),
        (("latency", "count"), -(2**63), "beyond 64 bits"),
        pytest.param(("latency", "p50_ms"), 10**400, "OverflowError", id="beyond float64"),
        (("verdict",), "PERFECT", "PERFECT"),
    ],
)
def test_a_value_that_no_command_could_show_is_refused_with_its_name(
    path: tuple[str, ...], value: Any, why: str
) -> None:
    with pytest.raises(FarmError) as raised:
        parse_untrusted_run(json.dumps(with_value(BODIES[0], path, value)))
    assert why in raised.value.why


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[]",
        "1",
        "[" * 100_000,
        '{"schema": "farm/run/1"}',
        '{"schema": "farm/run/2"}',
        "{",
    ],
)
def test_what_is_no_run_is_one_error(line: str) -> None:
    with pytest.raises(FarmError):
        parse_untrusted_run(line)


def test_a_run_of_infinite_energy_is_imported_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    timed_body = with_value(BODIES[0], ("samples", "measured_s"), 2.0)
    endless = with_value(timed_body, ("samples", "energy_j"), "inf")
    (tmp_path / "runs.jsonl").write_text(json.dumps(endless))
    for command in (["runs", "import", str(tmp_path / "runs.jsonl")], ["history", "--json"]):
        done = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert done.exit_code == 0
    assert json.loads(done.stdout)["runs"][0]["power_w"] == "inf"


def test_a_file_with_one_hostile_run_is_not_imported_and_history_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    good, bad = json.dumps(BODIES[0]), json.dumps({**BODIES[0], "id": "other", "started_at": 5})
    (tmp_path / "runs.jsonl").write_text(f"{good}\n{bad}\n")
    done = CliRunner().invoke(cli, ["runs", "import", str(tmp_path / "runs.jsonl")])
    assert "line 2: no run" in str(done.exception)
    assert RunStore(tmp_path / "data" / "runs.sqlite").runs() == []
    (tmp_path / "runs.jsonl").write_text(good)
    assert CliRunner().invoke(cli, ["runs", "import", str(tmp_path / "runs.jsonl")]).exit_code == 0
    assert "resnet18" in CliRunner().invoke(cli, ["history"], catch_exceptions=False).stdout
