"""farm check: report a model's content, its cost, and everything that prevents a build."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from farm import this_machine
from farm.commands.common import Session, shared
from farm.commands.model_options import Described, with_description
from farm.commands.options import complete
from farm.commands.output import echo, show_error

if TYPE_CHECKING:
    from farm.pipeline.check import Report


@click.command()
@click.argument("model", shell_complete=complete("models"))
@click.option(
    "-p",
    "--profile",
    "profile_name",
    default=this_machine.native_profile() or "x86",
    show_default=True,
    help="The kind of board.",
    shell_complete=complete("profiles"),
)
@with_description
@shared
def check(session: Session, model: str, profile_name: str, described: Described) -> None:
    """Check whether a model would build for a profile, and report its content and its cost.

    Nothing is run or stored. All operators that cannot be imported are listed at once, with their
    position in the graph. The exit code is 0 if the model would build.

    \b
    farm check model.onnx --profile rasp3b
    """
    from farm.commands.progress import Spinner
    from farm.importers.capabilities import capability_of
    from farm.pipeline.check import check as check_model

    fleet = session.fleet()
    profile, chosen = fleet.profile(profile_name), described.of(fleet.model(model))
    with Spinner(session, f"{chosen.name} for {profile.name}") as spinner:
        capability = capability_of(chosen)
        report = check_model(chosen, profile, store=session.artifacts(), show=spinner.show)
    if session.as_json:
        format_of = None if capability is None else asdict(capability)
        session.document(
            "check",
            {"model": chosen.name, "profile": profile.name, "format": format_of, **_body(report)},
        )
    else:
        if capability is not None:
            echo(f"format      {capability}")
        _show(report)
    if not report.builds:
        _explain(report, chosen.name, profile.name)


def _body(report: Report) -> dict[str, Any]:
    outline = None if report.outline is None else asdict(report.outline)
    failure = None if report.failure is None else asdict(report.failure)
    return {
        "builds": report.builds,
        "outline": outline,
        "operations": report.operations,
        "loaded_bytes": report.loaded_bytes,
        "working_bytes": report.working_bytes,
        "batch": report.batch,
        "failure": failure,
    }


def _show(report: Report) -> None:
    outline = report.outline
    if outline is None:
        return
    for label, lines in (("input", outline.inputs), ("output", outline.outputs)):
        for line in lines:
            echo(f"{label:12}{line}")
    if report.batch:
        echo(f"batch       {report.batch}")
    echo(f"parameters  {outline.parameters:,} ({outline.parameter_bytes / 1e6:.1f} MB)")
    echo(
        "operators   " + ", ".join(f"{name} x{count}" for name, count in outline.operators.items())
    )
    if (
        report.operations is not None
        and report.loaded_bytes is not None
        and report.working_bytes is not None
    ):
        echo(f"arithmetic  {report.operations / 1e9:.3f} GFLOP an inference")
        total = report.working_bytes + report.loaded_bytes
        echo(
            f"memory      {total / 1e6:.1f} MB, {report.working_bytes / 1e6:.1f} MB of it for "
            "intermediate results (estimated)"
        )
    for problem in outline.problems:
        echo(f"unsupported {problem.operator}{': ' if problem.what else ''}{problem.what}")
        echo(f"{'':12}at {', '.join(problem.nodes)}")


def _explain(report: Report, model: str, profile: str) -> None:
    """Print why the model would not build, and exit with the code that building would return."""
    from farm.errors import ModelError, of_failure

    if report.failure is not None:
        show_error(of_failure(report.failure))
        sys.exit(report.failure.exit_code)
    assert report.outline is not None
    problems = report.outline.problems
    named = ", ".join(sorted({problem.operator for problem in problems}))
    error = ModelError(
        f"{model} would not build for {profile}", f"not supported: {named}", problems[0].fix
    )
    show_error(error)
    sys.exit(error.exit_code)
