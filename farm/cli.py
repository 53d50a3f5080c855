"""The `farm` command line: collects the commands, and turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import NoReturn

import click

from farm import __version__, ownership, this_machine
from farm.commands.completion import VARIABLE
from farm.commands.output import (
    defer_warnings,
    echo_json,
    echo_text,
    sanitize_standard_streams,
    show_error,
)
from farm.errors import (
    FarmError,
    InternalError,
    Interrupted,
    UsageError,
    did_you_mean,
)
from farm.processes import signals
from farm.tvm_import_without_torch import hide_torch_from_now_on

# The commands in the order of `farm --help`, the most used first.
GROUPS = {
    "Measure": ("deploy", "run", "bench", "profile", "accuracy", "bisect", "tune"),
    "Judge and show": ("history", "compare", "baseline", "report", "runs", "records"),
    "Models": ("check", "compile", "quantize", "export", "cache"),
    "Devices": (
        "devices",
        "add",
        "remove",
        "doctor",
        "provision",
        "deployments",
        "rollback",
        "undeploy",
    ),
    "Servers": ("agent", "tracker", "lab"),
    "For programs": ("schema", "completion"),
}


# Where each command is, in farm.commands. A module is imported once its command is asked for: all
# of them take a fifth of the time of a short command.
_COMMANDS = {
    "devices": "devices.devices:devices",
    "add": "devices.add:add",
    "remove": "devices.add:remove",
    "deploy": "measure.deploy:deploy",
    "bench": "measure.bench:bench",
    "run": "measure.run:run",
    "bisect": "measure.bisect:bisect",
    "profile": "measure.profile:profile",
    "accuracy": "measure.accuracy:accuracy",
    "check": "models.check:check",
    "compile": "models.compile:compile_",
    "export": "models.export:export",
    "quantize": "models.quantize:quantize",
    "cache": "models.cache:cache",
    "tune": "measure.tune:tune",
    "records": "judge.records:records",
    "history": "judge.history:history",
    "compare": "judge.compare:compare",
    "baseline": "judge.baseline:baseline",
    "report": "judge.report:report",
    "runs": "judge.runs:runs",
    "deployments": "devices.deployments:deployments",
    "rollback": "devices.deployments:rollback",
    "undeploy": "devices.deployments:undeploy",
    "provision": "devices.provision:provision",
    "doctor": "devices.doctor:doctor",
    "agent": "servers.agent_and_tracker:agent",
    "tracker": "servers.agent_and_tracker:tracker",
    "lab": "servers.lab:lab",
    "schema": "schema:schema",
    "completion": "completion:completion",
}


class _LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name, each imported when it is asked for. `places` are as in `_COMMANDS`."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command. Raises KeyError."""
        if name not in self._loaded:
            module, _, attribute = self._places[name].partition(":")
            imported = importlib.import_module(f"farm.commands.{module}")
            self._loaded[name] = getattr(imported, attribute)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add a command that is there already."""
        self._places[name], self._loaded[name] = "", command

    def __delitem__(self, name: str) -> None:
        """Remove a command."""
        del self._places[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        """Return the names, in order."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self._places)


def help_summary(command: click.Command) -> str:
    """Return the first clause of a command's help: the text before the first colon or full stop.

    A semicolon ends it too.
    """
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"[:;.](?= |$)", first)[0]


class _Group(click.Group):
    """Commands in the order in which they are added, with a hint for a mistyped one."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names of the commands, in order."""
        return list(self.commands)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, each with the first clause of its help."""
        width = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), help_summary(self.commands[name])) for name in names]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise UsageError with a suggestion for an unknown one."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise UsageError(
                f"there is no command {args[0]!r}",
                did_you_mean(args[0], self.commands),
                "farm --help",
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Group,
    commands=_LazyCommands(_COMMANDS),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="farm")
@click.pass_context
def cli(context: click.Context) -> None:
    """Compile neural networks, push them to real boards, run them, and judge them.

    Boards and models are named in devices.toml; without a board, farm has emulated ones built in.

    \b
    farm devices                        list the devices
    farm deploy --device pi3 digits     build, push, run once, compare with the reference
    farm bench --all                    measure every model on every device

    \b
    Exit codes: 0 all is well; 1 some of several jobs failed; 2 a wrong argument or devices.toml;
    3 the model; 4 the build; 5 the device; 6 a deadline; 7 a wrong answer; 8 slower than the
    baseline; 70 a bug of farm's own; 130 Ctrl-C (of another signal: 128 and its number).
    """
    if context.invoked_subcommand is None:
        echo_text(context.get_help())


def main() -> NoReturn:
    """Run the command line and exit."""
    signals.raise_stopped_on_signals()
    hide_torch_from_now_on()
    try:
        with sanitize_standard_streams(), defer_warnings():
            code = _run()
    except BrokenPipeError:  # the reader, such as `head`, closed the pipe
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python reports it while it exits
        code = 128 + signal.SIGPIPE
    except OSError:  # the terminal is gone, so that no message can be shown
        code = 128 + signal.SIGHUP
    sys.exit(code)


def _run() -> int:
    try:
        _call()
    except FarmError as error:
        return _fail(error)
    except click.ClickException as error:
        return _fail(_usage_error(error))
    except signals.Stopped as stopped:
        return _fail(Interrupted("interrupted"), stopped.exit_code)
    except click.exceptions.Exit as exit_:  # of --help and --version
        return exit_.exit_code
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    except BrokenPipeError:
        raise
    except Exception as error:
        return _fail(_output_error(error) or _internal_error(error))
    return 0


def _call() -> None:
    """Invoke the command, as click's own `main` does but without its error handling.

    That would hide a closed pipe and treat EOFError as Ctrl-C.
    """
    if instruction := os.environ.get(VARIABLE):
        from click.shell_completion import shell_complete

        raise SystemExit(shell_complete(cli, {}, "farm", VARIABLE, instruction))
    with cli.make_context("farm", sys.argv[1:]) as context:
        this_machine.check_system()
        cli.invoke(context)


def _fail(error: FarmError, code: int | None = None) -> int:
    """Print an error and return its exit code; with --json, also print the error as a document."""
    show_error(error)
    code = error.exit_code if code is None else code
    if "--json" in sys.argv:
        from farm.views import json_document

        with contextlib.suppress(OSError):
            echo_json(
                json_document("error", {"error": {**asdict(error.as_failure()), "exit_code": code}})
            )
    return code


def _usage_error(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "farm"
    command = next((word for word in sys.argv[1:] if word in _COMMANDS), None)
    if (
        isinstance(error, click.NoSuchOption)
        and path == "farm"
        and command
        and _has_option(command, error.option_name)
    ):
        return UsageError(
            f"{error.option_name} stands before the command",
            "options belong to a command",
            f"farm {command} {error.option_name} ...; farm {command} --help",
        )
    return UsageError(error.format_message(), "", f"{path} --help")


def _has_option(command: str, option: str) -> bool:
    found = cli.get_command(click.Context(cli), command)
    return found is not None and any(option in parameter.opts for parameter in found.params)


def _output_error(error: Exception) -> FarmError | None:
    """Return the error for output that cannot be written, such as on a full disk; None otherwise.

    Errors of named files are not of this kind.
    """
    if (
        isinstance(error, OSError)
        and error.filename is None
        and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    ):
        fix = "free space on the disk that it goes to, or send it elsewhere"
        return FarmError("the output cannot be written", error.strerror or "", fix)
    return None


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line without the values of options that may be secret.

    The log that contains it becomes part of a bug report.
    """
    secret, shown = ("--key", "--store"), []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, _ = word.partition("=")
        shown.append(
            "..." if before in secret else f"{option}=..." if equals and option in secret else word
        )
    return shown


def _internal_error(error: Exception) -> InternalError:
    """Return the error for a bug of farm, and write the traceback to a log file."""
    from farm.store import user_data_dir

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    log = user_data_dir() / "logs" / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
    try:
        ownership.make_private_folder(log.parent)
        with os.fdopen(ownership.open_private(log), "w") as file:
            file.write(f"{' '.join(_without_secrets(sys.argv))}\n{text}")
        fix = f"this is a bug of farm's; please report it with {log}"
    except OSError:
        fix = f"this is a bug of farm's; please report it with:\n{text}"
    return InternalError(f"{type(error).__name__}: {error}", "farm did not expect this", fix)
