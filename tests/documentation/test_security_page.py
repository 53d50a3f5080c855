"""SECURITY.md names commands, options, urls and keys that exist, and has a row of each party."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import farm
from farm import transports
from farm.cli import cli
from farm.config import schema
from farm.types import RECIPES

PACKAGE = Path(farm.__file__).parent
PAGE = (PACKAGE.parent / "SECURITY.md").read_text("utf-8")
CODE = list(dict.fromkeys(re.findall(r"`([^`]+)`", PAGE)))
COLUMNS = 4


def commands(group: click.Group = cli) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_row_says_what_could_be_done_what_stops_it_and_what_does_not() -> None:
    assert all(len(row) == COLUMNS and all(row) for row in rows())


@pytest.mark.parametrize(
    "party",
    [
        "devices.toml",
        "ONNX",
        "TFLite",
        ".pt2",
        "TorchScript",
        "python:",
        "a board",
        "SSH",
        "network",
        "tracker",
        "lab's door",
        "behind NAT",
        "users",
        "cache",
        "a record of runs",
        "records of tuning",
        "PyPI",
    ],
)
def test_every_party_has_a_row(party: str) -> None:
    assert any(party in row[0] for row in rows())


@pytest.mark.parametrize("line", [code for code in CODE if code.startswith("farm ")])
def test_a_command_of_the_page_is_there(line: str) -> None:
    _, *words = shlex.split(line)
    group: click.Command = cli
    while words and not words[0].startswith("-"):
        assert isinstance(group, click.Group)
        group = group.commands[words.pop(0)]
    options = {name for parameter in group.params for name in parameter.opts}
    assert set(words) <= options


@pytest.mark.parametrize("option", [code for code in CODE if code.startswith("--")])
def test_an_option_of_the_page_is_one_of_a_command(option: str) -> None:
    assert any(
        option in parameter.opts for command in [cli, *commands()] for parameter in command.params
    )


@pytest.mark.parametrize("name", [code for code in CODE if code.startswith("$")])
def test_a_variable_of_the_page_is_read(name: str) -> None:
    trees = (ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py"))
    assert name.lstrip("$") in {
        node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)
    }


@pytest.mark.parametrize("scheme", [code for code in CODE if code.endswith(":")])
def test_a_kind_of_url_of_the_page_is_one(scheme: str) -> None:
    assert scheme in {*(f"{name}:" for name in transports._TRANSPORTS), "python:"}


@pytest.mark.parametrize(
    "key", [code for code in CODE if re.fullmatch(r"[a-z]+", code) and code != "farm"]
)
def test_a_key_of_devices_toml_is_one(key: str) -> None:
    tables = [table for table in vars(schema).values() if hasattr(table, "model_fields")]
    assert any(key in table.model_fields for table in tables)


@pytest.mark.parametrize("suffix", [code for code in CODE if re.fullmatch(r"\.\w+", code)])
def test_a_format_of_the_page_is_one_that_farm_reads(suffix: str) -> None:
    folders = [PACKAGE / "importers", PACKAGE / "inputs"]
    readers = "".join(
        path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py")
    )
    assert f'"{suffix}"' in readers or suffix in RECIPES
