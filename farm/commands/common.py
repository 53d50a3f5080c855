"""What every command shares: its session, the two consoles, how an error is shown, and how JSON is written.

Data goes to stdout; progress, tables of progress and errors go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.api.choosing import build_lanes as build_lanes
from farm.api.choosing import host_profile as host_profile
from farm.commands.options import gathered
from farm.errors import FarmError

if TYPE_CHECKING:
    from rich.console import Console

    from farm.api import Farm
    from farm.config import Fleet
    from farm.store import RunStore


@dataclass
class Session:
    """One invocation: where its configuration is and how it wants to be talked to."""

    config: Path | None
    as_json: bool
    verbosity: int  # -1 quiet, 0, 1 verbose
    store: str | None = None
    _farm: Farm | None = field(default=None, init=False, repr=False)

    def farm(self) -> Farm:
        """What Python programs get too, read once. Raises ConfigError with every mistake in the configuration."""
        from farm.api import Farm

        if self._farm is None:
            self._farm = Farm.load(self.config, store=self.store)
        return self._farm

    def fleet(self) -> Fleet:
        """The configuration. Raises ConfigError with every mistake in it."""
        return self.farm().fleet

    def record(self) -> RunStore:
        """Where runs are kept."""
        return self.farm().record

    def out(self) -> Console:
        """Where tables for the reader go."""
        return _console(stderr=False)

    def err(self) -> Console:
        """Where progress goes."""
        return _console(stderr=True)

    def document(self, kind: str, body: Mapping[str, Any]) -> None:
        """Print one JSON document with its schema's name and version."""
        from farm.views import document

        click.echo(json.dumps(document(kind, body), indent=1, allow_nan=False))


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    from farm.commands.colours import theme

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Let the command line hear of it; rich would exit as if something had failed."""
            raise BrokenPipeError

    return Piped(stderr=stderr, highlight=False, emoji=False, theme=theme())


def _session(config: Path | None, store: str | None, as_json: bool, quiet: bool, verbose: bool) -> Session:
    return Session(config, as_json, -1 if quiet else int(verbose), store)


shared = gathered(
    "session",
    _session,
    click.option("--config", type=click.Path(path_type=Path), help="The devices.toml to use. [default: $FARM_CONFIG, or the nearest]"),
    click.option("--store", metavar="URL", help="Where runs are kept: a file, or postgresql://... [default: that of devices.toml]"),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, help="More detail."),
)
"""The options that every command has; it receives them as its `session`, a Session."""


def say_no_runs(session: Session, models: Sequence[str], devices: Sequence[str]) -> None:
    """Say on stderr that no run is kept: none at all, or none of these models on these devices."""
    if (models or devices) and session.record().runs(limit=1):
        asked = [f"of {', '.join(models)}"] if models else []
        asked += [f"on {', '.join(devices)}"] if devices else []
        click.echo(f"no runs {' '.join(asked)} among those that are kept: farm history", err=True)
    else:
        click.echo("no runs yet: farm bench --all", err=True)


def check_writable(path: Path | None) -> None:
    """Raise UsageError now, rather than after something was measured, where `write_whole` could not write."""
    from farm.errors import UsageError

    folder = path.absolute().parent if path else None
    if folder and not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} is not there, or is not yours to write to"
        raise UsageError(f"{path} cannot be written", why, "name a file in a folder that you may write to")


def write_whole(path: Path, text: str) -> None:
    """A file, whole or not at all. Raises UsageError where it cannot be written."""
    from farm.errors import UsageError

    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written", exc.strerror or str(exc), "name a file in a folder that you may write to") from exc


def show_error(error: FarmError) -> None:
    """The one way in which an error is shown."""
    for label, text, colour in zip(("error", "why", "fix"), error.parts(), ("red", "yellow", "green"), strict=True):
        if text:
            first, *rest = str(text).splitlines()
            click.echo(f"{click.style(label, fg=colour, bold=True)}: {first}", err=True, color=_colour())
            for line in rest:
                click.echo(f"       {line}", err=True)


def _colour() -> bool | None:
    return False if os.environ.get("NO_COLOR") or not sys.stderr.isatty() else None
