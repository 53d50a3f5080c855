"""What every command shares: its options, the two consoles, how an error is shown, and how JSON is written.

Data goes to stdout; progress, tables of progress and errors go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from farm.api.choosing import build_lanes as build_lanes
from farm.api.choosing import host_profile as host_profile
from farm.errors import FarmError

if TYPE_CHECKING:
    from rich.console import Console

    from farm.api import Farm
    from farm.config import Fleet
    from farm.store import RunStore
    from farm.types import Model

Command = TypeVar("Command", bound=Callable[..., Any])


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

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Let the command line hear of it; rich would exit as if something had failed."""
            raise BrokenPipeError

    return Piped(stderr=stderr, highlight=False, emoji=False)


def shared(command: Command) -> Command:
    """The options that every command has; it receives them as its first argument, a Session."""

    def with_session(*args: Any, config: Path | None, store: str | None, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> Any:
        return command(Session(config, as_json, -1 if quiet else int(verbose), store), *args, **kwargs)

    with_session.__doc__, with_session.__name__ = command.__doc__, command.__name__
    with_session.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    for option in reversed(_SHARED):
        option(with_session)
    return with_session  # type: ignore[return-value]


_SHARED = (
    click.option("--config", type=click.Path(path_type=Path), help="The devices.toml to use. [default: $FARM_CONFIG, or the nearest]"),
    click.option("--store", metavar="URL", help="Where runs are kept: a file, or postgresql://... [default: that of devices.toml]"),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, help="More detail."),
)


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion of the configured `devices`, `profiles` or `models`."""

    def names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from farm.config import load

        try:
            return [name for name in getattr(load(context.params.get("config")), kind) if name.startswith(incomplete)]
        except FarmError:
            return []

    return names


device_options = (
    click.option(
        "-d", "--device", "devices", multiple=True, metavar="NAME", help="A device; may be repeated.", shell_complete=complete("devices")
    ),
    click.option("-t", "--tag", "tags", multiple=True, metavar="TAG", help="All devices with the tag; may be repeated."),
    click.option("-a", "--all", "everywhere", is_flag=True, help="All devices."),
)


def on_devices(command: Command) -> Command:
    """The options that choose devices."""
    for option in reversed(device_options):
        command = option(command)
    return command


_TYPES_AND_MODULE = "farm.model"  # where click's context keeps what --dtype and --module say, for with_shapes


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_TYPES_AND_MODULE, {})[parameter.name] = value


_MODEL_OPTIONS = (
    click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME:1,3,224,224",
        help="The shape of an input that the model leaves open; may be repeated.",
    ),
    click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        metavar="[NAME:]TYPE",
        callback=_keep,
        expose_value=False,
        help="The element type of an input of TorchScript (ids:int64), or of all floats of a module (float16); may be repeated.",
    ),
    click.option(
        "--module",
        metavar="PKG.MOD:FUNCTION",
        callback=_keep,
        expose_value=False,
        help="The function that returns the module, and example inputs, for a .pth file of weights.",
    ),
)


def with_gates(command: Command) -> Command:
    """What an answer must reach, or the run is WRONG; the command receives `min_snr_db` and `min_top1`, a share."""
    top1 = click.option(
        "--min-top1",
        type=click.FloatRange(0, 100),
        callback=lambda _context, _parameter, value: None if value is None else value / 100,
        metavar="PERCENT",
        help="WRONG below this: of the labelled samples, or of rows with the reference's best class.",
    )
    snr = click.option("--min-snr", "min_snr_db", type=float, metavar="DB", help="WRONG below this ratio of signal to noise.")
    return snr(top1(command))


def shape_option(command: Command) -> Command:
    """The options that say of a model what its file leaves open. The command gets those of --shape; `with_shapes` knows the others."""
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command


def says_more(shapes: tuple[str, ...]) -> bool:
    """Whether any of the options of `shape_option` was given."""
    return bool(shapes) or any(click.get_current_context().meta.get(_TYPES_AND_MODULE, {}).values())


def with_shapes(model: Model, shapes: tuple[str, ...]) -> Model:
    """The model with what --shape, --dtype and --module say of it. Raises UsageError for what is no name and shape, or no type."""
    from farm.errors import UsageError
    from farm.types import DTYPES

    given = dict(model.shapes)
    for text in shapes:
        name, _, numbers = text.rpartition(":")
        try:
            given[name] = tuple(int(number) for number in numbers.split(","))
        except ValueError:
            name = ""
        if not name or any(extent < 1 for extent in given[name]):
            raise UsageError(f"--shape {text}: no input's name and shape", "extents are whole numbers above 0", "--shape NAME:1,3,224,224")
    more = click.get_current_context().meta.get(_TYPES_AND_MODULE, {})
    types = dict(model.dtypes)
    for text in more.get("dtypes", ()):
        name, _, dtype = text.rpartition(":")
        if dtype not in DTYPES or not (name or "float" in dtype):
            fix = "--dtype float16, or of one input --dtype NAME:int64"
            raise UsageError(f"--dtype {text}: no such type", f"an input is one of {', '.join(DTYPES)}; all floats together a float", fix)
        types[name] = dtype
    module = more.get("module")
    if module is not None:
        module = _function(module, "--module")
    return replace(model, shapes=given, dtypes=types, module=module or model.module)


def _function(text: str, option: str) -> str:
    """The `python:` source that an option names. Raises UsageError for what is none."""
    from farm.errors import UsageError
    from farm.types.python_source import python_source

    try:
        return python_source(text)
    except ValueError as exc:
        raise UsageError(f"{option} names no function", str(exc), f"{option} package.module:function") from exc


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
