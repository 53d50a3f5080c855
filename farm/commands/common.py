"""The session that every command receives, its options, and writing files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.api.resolve import host_profile as host_profile
from farm.api.resolve import max_parallel_builds as max_parallel_builds
from farm.commands import output
from farm.commands.options import options_as_one_argument

if TYPE_CHECKING:
    from rich.console import Console

    from farm.api import Farm
    from farm.config import Fleet
    from farm.store import RunStore, Store


@dataclass
class Session:
    """One invocation of the command line: its configuration and its output options."""

    config: Path | None
    as_json: bool
    verbosity: int  # -1 quiet, 0, 1 verbose
    store: str | None = field(default=None, repr=False)
    cluster: str | None = None
    _farm: Farm | None = field(default=None, init=False, repr=False)

    def farm(self) -> Farm:
        """Return the farm, loaded once.

        Raises ConfigError with all mistakes in the configuration.
        """
        from farm.api import Farm

        if self._farm is None:
            self._farm = Farm.load(self.config, store=self.store, cluster=self.cluster)
        return self._farm

    def use(self, fleet: Fleet) -> None:
        """Use a fleet whose configuration file does not exist yet."""
        from farm.api import Farm

        self._farm = Farm(fleet, self.store, cluster=self.cluster)

    def fleet(self) -> Fleet:
        """Return the configuration. Raises ConfigError with all mistakes in it."""
        return self.farm().fleet

    def record(self) -> RunStore:
        """Return the database of runs."""
        return self.farm().record

    def artifacts(self) -> Store:
        """Return the store of builds, with the shared cache behind it if one is configured.

        Raises ConfigError with all mistakes in the configuration.
        """
        from farm.store import open_local_store_over_shared_cache

        return open_local_store_over_shared_cache(self.fleet().cache)

    def out(self) -> Console:
        """Return the console for tables (stdout)."""
        return output.console(stderr=False)

    def err(self) -> Console:
        """Return the console for progress (stderr)."""
        return output.console(stderr=True)

    def progress(self) -> Console | Callable[[str], None]:
        """Return where progress goes (stderr): a console if it is a terminal.

        Otherwise, what prints a line: rich takes a tenth of the time of a short command to load.
        """
        return self.err() if output.is_terminal(err=True) else partial(output.echo, err=True)

    def document(self, kind: str, body: Mapping[str, Any]) -> None:
        """Print one JSON document with its schema's name and version."""
        from farm.views import json_document

        output.echo_json(json_document(kind, body))


def _session(
    config: Path | None, store: str | None, as_json: bool, quiet: bool, verbose: bool
) -> Session:
    return Session(config, as_json, -1 if quiet else int(verbose), store)


with_session = options_as_one_argument(
    "session",
    _session,
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="The devices.toml to use. [default: $FARM_CONFIG, or the nearest]",
    ),
    click.option(
        "--store",
        metavar="URL",
        help="Where runs are stored: a file, or postgresql://... [default: that of devices.toml]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
    click.option("-v", "--verbose", is_flag=True, help="Show more detail."),
)
"""Decorator: the options that every command has; it receives them as `session`, a Session."""


def report_no_runs(session: Session, models: Sequence[str], devices: Sequence[str]) -> None:
    """Print to stderr that no run is stored, or none of these models on these devices."""
    if (models or devices) and session.record().runs(limit=1):
        asked = [f"of {', '.join(models)}"] if models else []
        asked += [f"on {', '.join(devices)}"] if devices else []
        output.echo(f"no runs {' '.join(asked)} among those that are kept: farm history", err=True)
    else:
        output.echo("no runs yet: farm bench --all", err=True)


def check_writable(path: Path | None) -> None:
    """Raise UsageError if `write_atomically` could not write a file; call it before measuring."""
    from farm.errors import UsageError

    folder = path.absolute().parent if path else None
    if folder and not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} is not there, or is not yours to write to"
        raise UsageError(
            f"{path} cannot be written", why, "name a file in a folder that you may write to"
        )


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically; its permissions stay. Raises UsageError if it cannot be written."""
    from farm.errors import UsageError

    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.touch()
        if path.exists():  # it may hold keys, and be closed to others
            beside.chmod(path.stat().st_mode & 0o777)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written",
            exc.strerror or str(exc),
            "name a file in a folder that you may write to",
        ) from exc
