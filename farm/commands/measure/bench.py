"""farm bench: measure models on devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.api.resolve import deadline_from_options_or_preset, model_with_batch, plan_with_overrides
from farm.commands import engine_option
from farm.commands.common import Session, check_writable, with_session, write_atomically
from farm.commands.judge import baseline_comparison
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import (
    FiniteFloatRange,
    add_cluster_option,
    add_device_selection_options,
    add_gate_options,
    configured_name_completer,
    parse_whole_numbers,
)
from farm.commands.output import echo, show_error
from farm.commands.reservation_option import reserved_devices, with_reservation
from farm.commands.thread_options import (
    ThreadSettings,
    devices_per_thread_setting,
    thread_options_decorator,
)
from farm.formatting import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.pipeline import JobsOutcome
    from farm.types import Job


@click.command()
@click.argument(
    "models", nargs=-1, metavar="[MODEL]...", shell_complete=configured_name_completer("models")
)
@add_device_selection_options
@click.option("--quick", "preset", flag_value="quick", help="10 samples, 0.2 s: a first look.")
@click.option(
    "--standard",
    "preset",
    flag_value="standard",
    help="100 samples, 5 s, until the median is precise, at most 60 s.",
)
@click.option(
    "--mlperf",
    "preset",
    flag_value="mlperf",
    help="The rules of MLPerf SingleStream: 600 s, p90 by early stopping.",
)
@click.option("--baseline", metavar="NAME", help="Compare with the runs of a baseline.")
@baseline_comparison.fail_on_option
@baseline_comparison.interleaved_option
@click.option(
    "--save-baseline", metavar="NAME", help="Name these runs, to compare later ones with them."
)
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a file for Prometheus's textfile collector.",
)
@click.option("--count", type=click.IntRange(1), help="The least number of samples.")
@click.option(
    "--minimum",
    "minimum_s",
    type=FiniteFloatRange(0),
    metavar="SECONDS",
    help="The shortest time to take samples.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Interleave a device's models, in N rounds. [default: 1; --standard: 3]",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="SECONDS",
    help="The longest a job may take on a device.",
)
@click.option(
    "--batch",
    "batches",
    metavar="N",
    default="",
    help="Samples per inference, or several: 1,8,32; shows inferences/s.",
)
@engine_option.against_option
@add_gate_options
@thread_options_decorator(several=True)
@with_model_properties
@add_cluster_option
@with_reservation
@click.option("--dry-run", is_flag=True, help="Print the jobs and do nothing.")
@with_session
def bench(
    session: Session,
    models: tuple[str, ...],
    devices: tuple[str, ...],
    tags: tuple[str, ...],
    everywhere: bool,
    described: ModelProperties,
    cluster: str | None,
    asked: ThreadSettings,
    batches: str,
    reservation: int | None,
    dry_run: bool,
    preset: str | None,
    baseline: str | None,
    fail_on: float | None,
    in_turns: bool,
    save_baseline: str | None,
    against: tuple[str, ...],
    prometheus: Path | None,
    **plan: Any,
) -> None:
    """Measure models on devices: latency, agreement with the reference, accuracy.

    MODEL is a name of devices.toml, a file, or python:package.module:function; the default is the
    models of [bench]. Each model is built once per kind of board, several builds run in parallel,
    and all devices work at the same time. Every run is stored: see farm history.

    \b
    farm bench --all
    farm bench --device pi3 --device rk3399 resnet18
    farm bench --tag lab model.onnx --json > result.json
    farm bench --device rk3399 --threads 1,2 --cores big --cores little resnet18
    farm bench --all --standard --baseline release-1 --fail-on 5% --in-turns
    farm bench --device pi5 --rounds 5 old.onnx new.onnx
    farm bench --device host --against onnxruntime,torch resnet18
    farm bench --device host --batch 1,8,32 resnet18
    farm bench --tag lab --reservation 3 resnet18
    """
    from farm import metrics
    from farm.pipeline import expand_jobs
    from farm.pipeline.other_engines import check_engines_usable

    session.cluster = cluster
    before = baseline_comparison.load_baseline_runs(session, baseline, fail_on, in_turns)
    fleet = session.fleet()
    named = [described.of(model) for model in fleet.models_together(models or fleet.bench.models)]
    chosen = [
        model_with_batch(model, batch)
        for model in named
        for batch in parse_whole_numbers("--batch", batches) or [None]
    ]
    boards = fleet.select_devices(devices, tags, everywhere)
    on = devices_per_thread_setting(session, reserved_devices(session, boards, reservation), asked)
    deadline_s = deadline_from_options_or_preset(preset, plan)
    jobs = expand_jobs(on, chosen, plan_with_overrides(fleet.bench.plan, preset, plan), deadline_s)
    if dry_run:
        print_planned_jobs(session, jobs)
        return
    if in_turns:
        baseline_comparison.check_builds_remeasurable(session, before, jobs)
    check_engines_usable(against, jobs)
    check_writable(prometheus)
    outcome = run_jobs(session, jobs)
    baseline_comparison.save_baseline(session, save_baseline, outcome.runs)
    if prometheus:
        write_atomically(prometheus, metrics.metrics_of_runs(outcome.runs))
    if not session.as_json:
        _show(session, outcome)
    pairs = baseline_comparison.compare_with_baseline(
        session, before, outcome.runs, in_turns, deadline_s
    )
    if pairs and not session.as_json:
        baseline_comparison.show_comparison(session, pairs, "the same farm bench with --in-turns")
    contests = engine_option.measure_other_engines(
        session, jobs, outcome, against
    )  # after the table, so that a failure here does not lose it
    if session.as_json:
        extra = {"comparison": [pair.as_json() for pair in pairs]} if baseline else {}
        extra |= {"against": engine_option.engine_comparisons_to_json(contests)} if against else {}
        session.document("bench", {**outcome_to_json(outcome), **extra})
    elif contests:
        engine_option.print_engine_comparisons(session, contests)
    if outcome.good:
        baseline_comparison.exit_on_regression(pairs, fail_on)
    raise SystemExit(outcome_exit_code(outcome))


def run_jobs(session: Session, jobs: Sequence[Job], canaries: int = 0) -> JobsOutcome:
    """Execute the jobs, showing the live dashboard."""
    from farm import dashboard
    from farm.processes import signals

    farm = session.farm()
    with (
        signals.defer_signals(),
        dashboard.show_jobs(session.progress(), jobs, quiet=session.verbosity < 0) as show,
    ):
        return farm.execute(jobs, show=show, tick=show.tick, canaries=canaries)


def print_planned_jobs(session: Session, jobs: Sequence[Job]) -> None:
    """Print the jobs of --dry-run."""
    if session.as_json:
        body = [
            {
                "device": job.device.name,
                "model": job.model.name,
                "profile": job.device.profile.name,
                "url": job.device.url,
                "threads": job.device.options.get("threads"),
                "cores": job.device.options.get("cores", ""),
                "pinned": bool(job.device.options.get("pinned")),
                "batch": job.model.batch,
            }
            for job in jobs
        ]
        session.document("jobs", {"jobs": body})
        return
    for job in jobs:
        echo(f"{job.title} on {job.device.name} ({job.device.profile.name}, {job.device.url})")
    builds = {job.build for job in jobs}
    echo(f"{format_count(len(jobs), 'job')}, {format_count(len(builds), 'build')}")


def outcome_to_json(outcome: JobsOutcome) -> dict[str, Any]:
    """Return an outcome as JSON."""
    from farm.store import run_to_json

    ledger = {
        "wall_s": outcome.ledger.wall_s,
        "builds_s": outcome.ledger.builds_s,
        "devices_s": dict(outcome.ledger.devices),
    }
    builds = [
        {
            "model": made.model,
            "profile": made.profile,
            "digest": made.digest,
            "cached": made.cached,
            "seconds": dict(made.seconds),
        }
        for made in outcome.artifacts
    ]
    return {"runs": [run_to_json(run) for run in outcome.runs], "builds": builds, "ledger": ledger}


def outcome_exit_code(outcome: JobsOutcome) -> int:
    """Return 0 if every run is good, the code of a single bad run, or 1 for several runs.

    If nothing but boards of a lab was missing, the code is that of a device, and not 1.
    """
    from farm.errors import UnavailableError, WrongAnswer
    from farm.types import Verdict

    if outcome.good:
        return 0
    failures = [run.failure for run in outcome.runs if not run.good]
    if all(one is not None and one.kind == UnavailableError.__name__ for one in failures):
        return UnavailableError.exit_code
    if len(outcome.runs) > 1:
        return 1
    run = outcome.runs[0]
    if run.verdict is Verdict.WRONG or run.failure is None:
        return WrongAnswer.exit_code
    return run.failure.exit_code


def _show(session: Session, outcome: JobsOutcome) -> None:
    from farm import views
    from farm.errors import error_from_failure
    from farm.views.runs import finished_jobs_table

    console = session.out()
    console.print(finished_jobs_table(outcome.runs, console.width))
    if session.verbosity > 0:
        parts = {
            f"{run.title} on {run.device}": run.samples.ledger
            for run in outcome.runs
            if run.samples
        }
        console.print(views.ledger_table(parts, console.width))
    ledger = outcome.ledger
    slowest = max(ledger.devices.items(), key=lambda item: item[1], default=None)
    worked = f"slowest device {slowest[0]} {slowest[1]:.1f} s, " if slowest else ""
    built = sum(not made.cached for made in outcome.artifacts)
    sent = sum(run.samples.uploaded for run in outcome.runs if run.samples)
    echo(
        f"{ledger.wall_s:.1f} s: builds done after {ledger.builds_s:.1f} s ({built} new, "
        f"{len(outcome.artifacts) - built} kept), "
        f"{worked}{sent / 1e6:.1f} MB uploaded"
    )
    shown: set[tuple[str, str]] = set()
    for run in outcome.runs:
        if run.failure and (run.failure.what, run.failure.why) not in shown:
            shown.add((run.failure.what, run.failure.why))
            show_error(error_from_failure(run.failure))
