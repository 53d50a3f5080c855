"""farm check: report a model's content, its cost, and everything that prevents a build."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from farm import this_machine
from farm.commands.common import Session, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import configured_name_completer
from farm.commands.output import echo, show_error
from farm.errors import UsageError
from farm.formatting import format_count

if TYPE_CHECKING:
    from farm.pipeline.build_feasibility import BuildPrediction
    from farm.pipeline.guard_page_check import GuardReport


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@click.option(
    "-p",
    "--profile",
    "profile_name",
    default=this_machine.native_profile_name() or "x86",
    show_default=True,
    help="The kind of board.",
    shell_complete=configured_name_completer("profiles"),
)
@click.option(
    "--guard",
    "with_guard",
    is_flag=True,
    help="Also run it here, each tensor against a guard page.",
)
@with_model_properties
@with_session
def check(
    session: Session, model: str, profile_name: str, with_guard: bool, described: ModelProperties
) -> None:
    """Check whether a model would build for a profile, and report its content and its cost.

    Nothing is run or stored. All operators that cannot be imported are listed at once, with their
    position in the graph. The exit code is 0 if the model would build.

    With --guard the model is built for this machine, and its kernels run one by one. Each tensor
    and workspace lies against memory that cannot be touched, behind it and then before it. Each
    kernel has to write all of its outputs, nothing else, and the same bits with one, two and three
    threads. The exit code is 7 if one does not.

    \b
    farm check model.onnx --profile rasp3b
    farm check --guard model.onnx
    """
    from farm.commands.progress import Spinner
    from farm.importers.fingerprints import external_weight_files
    from farm.importers.format_risks import format_risk_of
    from farm.pipeline.build_feasibility import predict_build as predict_build
    from farm.pipeline.guard_page_check import check_with_guards

    fleet = session.fleet()
    profile, chosen = fleet.profile(profile_name), described.of(fleet.model(model))
    host = host_profile(fleet)
    if with_guard and profile.target != host.target:
        raise UsageError(
            f"--guard runs the model on this machine, and {profile.name} is another",
            f"its code would be that of the profile {host.name}",
            f"farm check --guard --profile {host.name} {model}",
        )
    with Spinner(session, f"{chosen.name} for {profile.name}") as spinner:
        capability = format_risk_of(chosen)
        beside = [str(file) for file in external_weight_files(chosen)]
        report = predict_build(chosen, profile, store=session.artifacts(), show=spinner.show)
        guarded = None
        if with_guard and report.builds:
            guarded = check_with_guards(chosen, host, store=session.artifacts(), show=spinner.show)
    if session.as_json:
        format_of = None if capability is None else asdict(capability)
        session.document(
            "check",
            {
                "model": chosen.name,
                "profile": profile.name,
                "format": format_of,
                "external_weights": beside,
                **_body(report, guarded),
            },
        )
    else:
        if capability is not None:
            echo(f"format      {capability}")
        if beside:
            more = f" and {len(beside) - _SHOWN} more files" if len(beside) > _SHOWN else ""
            echo(f"weights     in {', '.join(beside[:_SHOWN])}{more}")
        _show(report)
        if guarded is not None:
            _show_guarded(guarded)
    if guarded is not None and not guarded.right:
        _explain_guarded(guarded, chosen.name)
    if not report.builds:
        _explain(report, chosen.name, profile.name)


_SHOWN = 5  # of the files with a model's weights


def _body(report: BuildPrediction, guarded: GuardReport | None) -> dict[str, Any]:
    from farm.store import as_strict_json

    outline = None if report.outline is None else asdict(report.outline)
    failure = None if report.failure is None else asdict(report.failure)
    return {
        "builds": report.builds,
        "outline": outline,
        "operations": report.operations,
        "stored_bytes": report.stored_bytes,
        "loaded_bytes": report.loaded_bytes,
        "working_bytes": report.working_bytes,
        "batch": report.batch,
        "failure": failure,
        "guard": None if guarded is None else as_strict_json(asdict(guarded)),
    }


def _show(report: BuildPrediction) -> None:
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
        and report.stored_bytes is not None
        and report.loaded_bytes is not None
        and report.working_bytes is not None
    ):
        echo(f"arithmetic  {report.operations / 1e9:.3f} GFLOP an inference")
        total = report.working_bytes + report.loaded_bytes
        echo(f"files       {report.stored_bytes / 1e6:.1f} MB of parameters, besides the code")
        echo(
            f"memory      {total / 1e6:.1f} MB (estimated): {report.loaded_bytes / 1e6:.1f} MB of "
            f"parameters, {report.working_bytes / 1e6:.1f} MB of intermediate results"
        )
    for problem in outline.problems:
        echo(f"unsupported {problem.operator}{': ' if problem.what else ''}{problem.what}")
        echo(f"{'':12}at {', '.join(problem.nodes)}")


def _explain(report: BuildPrediction, model: str, profile: str) -> None:
    """Print why the model would not build, and exit with the code that building would return."""
    from farm.errors import ModelError, error_from_failure

    if report.failure is not None:
        show_error(error_from_failure(report.failure))
        sys.exit(report.failure.exit_code)
    assert report.outline is not None
    problems = report.outline.problems
    named = ", ".join(sorted({problem.operator for problem in problems}))
    error = ModelError(
        f"{model} would not build for {profile}", f"not supported: {named}", problems[0].fix
    )
    show_error(error)
    sys.exit(error.exit_code)


def _show_guarded(report: GuardReport) -> None:
    echo(
        f"guard       {format_count(report.kernels, 'kernel')}, with guard pages behind and before "
        "each tensor and workspace, and 1, 2 and 3 threads"
    )
    for one in report.faulty:
        layer = f", {one.layer}" if one.layer else ""
        echo(f"{'':12}{one.kernel}, {one.number} of {report.kernels}{layer}")
        echo(f"{'':14}{one.what}; guard at the {one.guard}, {format_count(one.threads, 'thread')}")
    if report.agreement is None:
        echo(f"{'':12}the kernels behind these were not run")
    elif not report.agreement.right:
        echo(f"{'':12}the answer differs from {report.engine}'s by {report.agreement.max_abs:.3g}")
    elif report.right:
        echo(f"{'':12}each writes all of its outputs, nothing else, and always the same bits")


def _explain_guarded(report: GuardReport, model: str) -> None:
    """Print that a model's kernels are wrong, and exit with the code of a wrong answer."""
    from farm.errors import WrongAnswer

    if report.faulty:
        what = f"{model}: {format_count(len(report.faulty), 'kernel')} of {report.kernels} "
        what += "left memory, or wrote none, or depended on the number of threads"
        why = ", ".join(sorted({one.kernel for one in report.faulty}))
    else:
        what = f"{model}: the kernels are in order, and the answer is not {report.engine}'s"
        why = "the import or a pass over the graph changes what the model computes"
    fix = "do not use this build; report the model to farm, or export it another way"
    error = WrongAnswer(what, why[:600], fix)
    show_error(error)
    sys.exit(error.exit_code)
