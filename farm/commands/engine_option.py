"""--against: run the same models in other engines on this machine, interleaved with farm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from farm.commands.output import echo

if TYPE_CHECKING:
    from farm.commands.common import Session
    from farm.pipeline import JobsOutcome
    from farm.types import EngineComparison, Job

against_option = click.option(
    "--against",
    metavar="ENGINE,...",
    callback=lambda _context, _parameter, text: _engines(text),
    help=(
        "On this machine, also run the models in onnxruntime, torch or litert, interleaved with "
        "farm."
    ),
)


def _engines(text: str | None) -> tuple[str, ...]:
    """Return the engines in a comma-separated list; none if the option is not given."""
    names = tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))
    if text is not None and not names:
        raise click.BadParameter("it names no engine, such as onnxruntime")
    return names


def measure_other_engines(
    session: Session, jobs: Sequence[Job], outcome: JobsOutcome, names: tuple[str, ...]
) -> list[EngineComparison]:
    """Measure the other engines for each job whose answer was right. Raises FarmError."""
    if not names:
        return []
    from farm.commands.common import host_profile
    from farm.commands.progress import Spinner
    from farm.pipeline.other_engines import compare_engines_on_host_cpu
    from farm.types import Verdict

    right = {
        (run.device, run.title)
        for run in outcome.runs
        if run.samples and run.verdict is not Verdict.WRONG
    }
    chosen = [job for job in jobs if (job.device.name, job.title) in right]
    with Spinner(session, f"against {', '.join(names)}") as spinner:
        return compare_engines_on_host_cpu(
            chosen,
            names,
            host=host_profile(session.fleet()),
            store=session.artifacts(),
            show=spinner.show,
        )


def print_engine_comparisons(session: Session, found: Sequence[EngineComparison]) -> None:
    """Print the table, and why an engine is missing from it."""
    from farm.views.other_engines import engine_table

    console = session.out()
    console.print(engine_table(found, console.width))
    for contest in found:
        for name, why in contest.missing.items():
            echo(f"{contest.model}: not in {name}: {why}")


def engine_comparisons_to_json(found: Sequence[EngineComparison]) -> list[dict[str, Any]]:
    """Return the comparisons as JSON."""
    from farm.views.other_engines import engines_to_json

    return [engines_to_json(contest) for contest in found]
