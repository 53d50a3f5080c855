"""farm check: whether a model would build, what is in it, and all that stands in the way."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import Session, shared, show_error
from farm.commands.describing import Described, with_description
from farm.commands.options import complete

if TYPE_CHECKING:
    from farm.pipeline.check import Report


@click.command()
@click.argument("model", shell_complete=complete("models"))
@click.option(
    "-p", "--profile", "profile_name", default="x86", show_default=True, help="The kind of board.", shell_complete=complete("profiles")
)
@with_description
@shared
def check(session: Session, model: str, profile_name: str, described: Described) -> None:
    """Say what is in a model, what it would cost, and whether it would build for a profile; nothing is run or kept.

    Every operator that cannot be imported is named at once, with where it sits in the graph. The exit code is 0 where the model would
    build.

    \b
    farm check model.onnx --profile rasp3b
    """
    from farm.commands.progress import Spinner
    from farm.pipeline.check import check as check_model
    from farm.store import Store, cache_root

    fleet = session.fleet()
    profile, chosen = fleet.profile(profile_name), described.of(fleet.model(model))
    with Spinner(session, f"{chosen.name} for {profile.name}") as spinner:
        report = check_model(chosen, profile, store=Store(cache_root()), show=spinner.show)
    if session.as_json:
        session.document("check", {"model": chosen.name, "profile": profile.name, **_body(report)})
    else:
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
            click.echo(f"{label:12}{line}")
    if report.batch:
        click.echo(f"batch       {report.batch}")
    click.echo(f"parameters  {outline.parameters:,} ({outline.parameter_bytes / 1e6:.1f} MB)")
    click.echo("operators   " + ", ".join(f"{name} x{count}" for name, count in outline.operators.items()))
    if report.operations is not None and report.loaded_bytes is not None and report.working_bytes is not None:
        click.echo(f"arithmetic  {report.operations / 1e9:.3f} GFLOP an inference")
        total = report.working_bytes + report.loaded_bytes
        click.echo(f"memory      {total / 1e6:.1f} MB, {report.working_bytes / 1e6:.1f} MB of it for intermediate results (estimated)")
    for problem in outline.problems:
        click.echo(f"unsupported {problem.operator}{': ' if problem.what else ''}{problem.what}")
        click.echo(f"{'':12}at {', '.join(problem.nodes)}")


def _explain(report: Report, model: str, profile: str) -> None:
    """Show why it would not build, and exit with the code that building would end with."""
    from farm.errors import ModelError, of_failure

    if report.failure is not None:
        show_error(of_failure(report.failure))
        sys.exit(report.failure.exit_code)
    assert report.outline is not None
    problems = report.outline.problems
    named = ", ".join(sorted({problem.operator for problem in problems}))
    error = ModelError(f"{model} would not build for {profile}", f"not supported: {named}", problems[0].fix)
    show_error(error)
    sys.exit(error.exit_code)
