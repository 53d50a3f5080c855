"""farm deploy: install a model on a device if its answer there is right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from farm.commands.common import Session, with_session
from farm.commands.measure.bench import (
    outcome_exit_code,
    outcome_to_json,
    print_planned_jobs,
    run_jobs,
)
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import (
    FiniteFloatRange,
    add_cluster_option,
    add_device_selection_options,
    add_gate_options,
    configured_name_completer,
)
from farm.commands.output import echo, show_error
from farm.commands.reservation_option import reserved_devices, with_reservation

if TYPE_CHECKING:
    from farm.pipeline import JobsOutcome
    from farm.types import Artifact, Run


@click.command()
@click.argument(
    "models", nargs=-1, metavar="[MODEL]...", shell_complete=configured_name_completer("models")
)
@add_device_selection_options
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="SECONDS",
    help="The longest a job may take on a device.",
)
@add_gate_options
@with_model_properties
@add_cluster_option
@click.option(
    "--canary",
    "canaries",
    type=click.IntRange(1),
    metavar="N",
    help="Deploy to the first N devices; to the others only if all is right there.",
)
@with_reservation
@click.option("--dry-run", is_flag=True, help="Print the jobs and do nothing.")
@with_session
def deploy(
    session: Session,
    models: tuple[str, ...],
    devices: tuple[str, ...],
    tags: tuple[str, ...],
    everywhere: bool,
    described: ModelProperties,
    cluster: str | None,
    deadline_s: float | None,
    min_snr_db: float | None,
    min_top1: float | None,
    canaries: int | None,
    reservation: int | None,
    dry_run: bool,
) -> None:
    """Install a model on a device: build it, push it, run it once, and check its answer.

    If the answer agrees with the reference, the model stays on the device as the current release of
    its name: farm run uses it from then on, and so does farm-agent run on the board itself. See
    also the commands deployments, rollback, undeploy.

    MODEL is a name of devices.toml, a file, or python:package.module:function; the default is the
    models of [bench].

    \b
    farm deploy --device pi3 digits
    farm deploy --device pi3 --device rk3399 model.onnx
    farm deploy --tag lab --canary 1 digits
    """
    from farm.errors import error_from_failure
    from farm.pipeline import expand_jobs
    from farm.types import MeasurementSettings

    session.cluster = cluster
    fleet = session.fleet()
    plan = replace(
        MeasurementSettings.once(),
        deadline_s=fleet.bench.plan.deadline_s,
        install=True,
        min_snr_db=min_snr_db,
        min_top1=min_top1,
    )
    chosen = [described.of(model) for model in fleet.models_together(models or fleet.bench.models)]
    boards = fleet.select_devices(devices, tags, everywhere)
    on = reserved_devices(session, boards, reservation)
    jobs = expand_jobs(on, chosen, plan, deadline_s)
    if dry_run:
        print_planned_jobs(session, jobs)
        return
    outcome = run_jobs(session, jobs, canaries or 0)
    if session.as_json:
        session.document("deploy", outcome_to_json(outcome))
    else:
        for run in outcome.runs:
            if run.failure:
                show_error(error_from_failure(run.failure))
            else:
                echo(_line(run, _artifact(outcome, run)))
    raise SystemExit(outcome_exit_code(outcome))


def _artifact(outcome: JobsOutcome, run: Run) -> Artifact | None:
    return next((made for made in outcome.artifacts if made.digest == run.artifact_digest), None)


def _line(run: Run, artifact: Artifact | None) -> str:
    from farm.types import Verdict

    samples = run.samples
    if samples is None:
        return f"{run.model} on {run.device}: {run.reason}"
    right = run.verdict is not Verdict.WRONG
    answer = "right" if right else f"WRONG ({run.reason})"
    sent = (
        f"{samples.uploaded / 1e6:.1f} MB sent"
        if samples.uploaded
        else "nothing to send, it was there already"
    )
    size = f"{artifact.nbytes / 1e6:.1f} MB, " if artifact else ""
    snr = (
        f", signal to noise {samples.agreement.snr_db:.1f} dB"
        if math.isfinite(samples.agreement.snr_db)
        else ""
    )
    difference = f"largest difference {samples.agreement.max_abs:.2g} from the reference{snr}"
    kept = (
        f"release {samples.release} is current"
        if samples.release
        else "not kept there"
        if right
        else "not installed"
    )
    return (
        f"{run.model} on {run.device}: {answer}, {difference}; {size}{sent}, artifact "
        f"{(run.artifact_digest or '')[:12]}; {kept}"
    )
