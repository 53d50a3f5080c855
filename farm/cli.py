"""farm's command line: gathers the commands, and turns what goes wrong into words and an exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from datetime import datetime
from typing import NoReturn

import click

from farm import __version__, interrupts
from farm.commands import (
    accuracy,
    baseline,
    bench,
    bisect,
    check,
    compare,
    completion,
    deploy,
    deployments,
    devices,
    doctor,
    exchange,
    export,
    history,
    profile,
    provision,
    quantize,
    records,
    report,
    run,
    schema,
    serve,
    tune,
)
from farm.commands.common import show_error
from farm.commands.compile import compile_
from farm.commands.completion import VARIABLE
from farm.errors import FarmError, InternalError, Interrupted, UsageError, did_you_mean
from farm.lightly import leave_torch_out


class _Group(click.Group):
    """Commands in the order in which one needs them, and a hint for a mistyped one."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise UsageError(f"there is no command {args[0]!r}", did_you_mean(args[0], self.commands), "farm --help")
        return super().resolve_command(ctx, args)


@click.group(cls=_Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="farm")
@click.pass_context
def cli(context: click.Context) -> None:
    """A device farm for neural networks: compile, push, run and judge models on real boards.

    Boards and models are named in devices.toml; with no board at all, emulated ones come along.

    \b
    farm devices                        what is in the farm
    farm deploy --device pi3 digits     build, push, run once, compare with the reference
    farm bench --all                    every model on every device, at once

    \b
    Exit codes: 0 all is well; 1 some of several jobs failed; 2 a wrong argument or devices.toml; 3 the model;
    4 the build; 5 the device; 6 a deadline; 7 a wrong answer; 8 slower than the baseline; 70 a bug of farm's own;
    130 Ctrl-C (of another signal: 128 and its number).
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (
    devices.devices,
    deploy.deploy,
    bench.bench,
    run.run,
    bisect.bisect,
    profile.profile,
    accuracy.accuracy,
    check.check,
    compile_,
    export.export,
    quantize.quantize,
    tune.tune,
    records.records,
    history.history,
    compare.compare,
    baseline.baseline,
    report.report,
    exchange.runs,
    *(deployments.deployments, deployments.rollback, deployments.undeploy, provision.provision, doctor.doctor),
    *(serve.agent, serve.tracker, schema.schema, completion.completion),
):
    cli.add_command(command)


def main() -> NoReturn:
    """The entry point."""
    interrupts.catch()
    leave_torch_out()
    try:
        code = _run()
    except BrokenPipeError:  # whoever read us, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains while it exits
        code = 128 + signal.SIGPIPE
    except OSError:  # the terminal is gone, and with it whom to tell
        code = 128 + signal.SIGHUP
    sys.exit(code)


def _run() -> int:
    try:
        _call()
    except FarmError as error:
        return _fail(error)
    except click.ClickException as error:
        return _fail(_usage_error(error))
    except interrupts.Stopped as stopped:
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
    """What click's own `main` does, less its treatment of errors, which hides a closed pipe and takes EOFError for Ctrl-C."""
    if instruction := os.environ.get(VARIABLE):
        from click.shell_completion import shell_complete

        raise SystemExit(shell_complete(cli, {}, "farm", VARIABLE, instruction))
    with cli.make_context("farm", sys.argv[1:]) as context:
        cli.invoke(context)


def _fail(error: FarmError, code: int | None = None) -> int:
    """Show an error; with --json, stdout gets its one document nevertheless."""
    show_error(error)
    code = error.exit_code if code is None else code
    if "--json" in sys.argv:
        from farm.views import document

        with contextlib.suppress(OSError):
            click.echo(json.dumps(document("error", {"error": {**asdict(error.as_failure()), "exit_code": code}}), indent=1))
    return code


def _usage_error(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    return UsageError(error.format_message(), "", f"{context.command_path if context else 'farm'} --help")


def _output_error(error: Exception) -> FarmError | None:
    """A disk that has no room for what we print. The errors of files have a name."""
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        fix = "free space on the disk that it goes to, or send it elsewhere"
        return FarmError("the output cannot be written", error.strerror or "", fix)
    return None


def _internal_error(error: Exception) -> InternalError:
    """A bug of ours: one line for the user, everything in a file."""
    from farm.store import data_root

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    log = data_root() / "logs" / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{' '.join(sys.argv)}\n{text}")
        fix = f"this is a bug of farm's; please report it with {log}"
    except OSError:
        fix = f"this is a bug of farm's; please report it with:\n{text}"
    return InternalError(f"{type(error).__name__}: {error}", "farm did not expect this", fix)
