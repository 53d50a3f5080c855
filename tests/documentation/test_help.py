"""`farm --help` shows every command once, by what it is for, in whole clauses."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from farm.cli import GROUPS, cli, help_summary

WITH_COMMANDS = [cli, *(one for one in cli.commands.values() if isinstance(one, click.Group))]


def shown(command: click.Command) -> str:
    return command.get_help(click.Context(command, info_name="farm", terminal_width=80))


def test_every_command_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(cli.commands)


def test_the_help_has_the_groups_in_their_order() -> None:
    assert re.findall(r"^(\w[\w ]+):$", shown(cli), re.MULTILINE) == ["Options", *GROUPS]


@pytest.mark.parametrize("command", WITH_COMMANDS, ids=lambda one: one.name)
def test_no_line_of_the_help_is_cut(command: click.Group) -> None:
    _, _, listed = shown(command).partition("--help")
    assert set(command.commands) <= set(listed.split())
    assert not re.search(r"\.\.\.$", listed, re.MULTILINE)


@pytest.mark.parametrize("command", cli.commands.values(), ids=lambda command: str(command.name))
def test_a_summary_is_the_first_clause_of_the_help(command: click.Command) -> None:
    assert 10 < len(help_summary(command)) < 140
    assert " ".join((command.help or "").split()).startswith(help_summary(command))
    assert help_summary(command) in " ".join(shown(cli).split())


def test_a_command_is_imported_once_it_is_asked_for() -> None:
    program = (
        "import sys; from farm.cli import cli; cli.commands['schema']; "
        "print([name for name in sys.modules if name.startswith('farm.commands.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "farm.commands.schema" in done.stdout, done.stderr
    assert "measure" not in done.stdout and "judge" not in done.stdout
