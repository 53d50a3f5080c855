"""The published schemas: every document that is written has one, and what is really written is
valid by it. Those of commands that need a
device are met in cli/output/test_published.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from report_runs import many, timed

import farm
from farm.cli import cli
from farm.store import RunStore, run_to_json
from farm.types import QUANTIZED
from farm.views.schema import NAMES, schema


def valid(body: Any) -> str:
    """The name of the schema by which a document is valid."""
    name = str(body["schema"]).split("/")[1]
    jsonschema.Draft202012Validator(schema(name)).validate(body)
    assert set(body) <= set(schema(name)["properties"])
    return name


def test_every_document_that_farm_writes_has_a_schema() -> None:
    sources = "".join(path.read_text("utf-8") for path in Path(farm.__file__).parent.rglob("*.py"))
    written = set(re.findall(r'\b(?:\w+_)?(?:document|json_response)\(\s*"(\w+)"', sources)) | set(
        re.findall(r'"farm/(\w+)/\d+"', sources)
    )
    assert set(NAMES) == written - set(
        QUANTIZED
    )  # what recipe files of farm quantize have, for farm alone


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_itself(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_every_kind_of_run_is_valid_and_a_damaged_one_is_not() -> None:
    for run in many():
        assert valid(json.loads(json.dumps(run_to_json(run)))) == "run"
    body = json.loads(json.dumps(run_to_json(timed("a", "b", 1))))
    for damage in (
        {"verdict": "GOOD"},
        {"samples": {}},
        {"schema": "farm/run/2"},
        {"started_at": 5},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema("run")).validate({**body, **damage})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    store = RunStore(tmp_path / "data" / "runs.sqlite")
    store.add(many())
    return store


@pytest.mark.parametrize(
    "line",
    [
        "history",
        "report",
        "baseline save release",
        "baseline list",
        "baseline remove release",
        "compare pi5-resnet18-3 pi5-resnet18-9",
        "compare pi5-resnet18-3 host-resnet18-1",
        "records",
        "records export out.jsonl",
        "records remove --core nothing",
        "cache",
        "cache prune --days 1 --dry-run",
        "devices",
        "bench --all digits --dry-run --threads 1,2",
    ],
)
def test_what_a_command_prints_is_valid(kept: RunStore, line: str) -> None:
    kept.save_baseline("release", [timed("pi5", "resnet18", 1)])
    done = CliRunner().invoke(cli, [*line.split(), "--json"], catch_exceptions=False)
    assert valid(json.loads(done.stdout)) in NAMES


def test_the_command_prints_a_schema_or_their_names() -> None:
    assert json.loads(CliRunner().invoke(cli, ["schema", "bench"]).stdout) == schema("bench")
    assert CliRunner().invoke(cli, ["schema"]).stdout.split() == sorted(NAMES)
