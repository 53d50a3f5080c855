"""Shared by compare, bench and report: baselines by name, comparisons, and their exit codes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from farm.api.resolve import comparable_runs
from farm.commands.output import echo, show_error
from farm.errors import FarmError, Regression, UsageError, did_you_mean
from farm.stats import CONFIDENCE, ChangeVerdict

if TYPE_CHECKING:
    from farm.commands.common import Session
    from farm.comparison import RunComparison
    from farm.types import Job, Run


class PercentageParamType(click.ParamType):  # type: ignore[type-arg]
    """A share, given as 5% or 0.05."""

    name = "percentage"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share as a number from 0 up to, but not including, 10."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(value).strip())
        share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
        if not 0 <= share < 10:
            self.fail(f"{value!r} is no share such as 5% or 0.05", param, ctx)
        return share


fail_on_option = click.option(
    "--fail-on",
    type=PercentageParamType(),
    metavar="SHARE",
    help=(
        "Exit with 8 if a model is significantly slower, and a slowdown of this share (5%) is not "
        "ruled out."
    ),
)


interleaved_option = click.option(
    "--in-turns",
    is_flag=True,
    help=(
        "Measure both builds again, interleaved; this can decide on a noisy machine what stored "
        "runs cannot."
    ),
)


def load_baseline_runs(
    session: Session, name: str | None, fail_on: float | None, in_turns: bool = False
) -> list[Run]:
    """Return the runs of a baseline; none if `name` is None.

    Raises UsageError, before anything is measured, if there is no such baseline, or if an option
    needs one and none is given.
    """
    if name is None:
        for option in [
            *(["--fail-on"] if fail_on is not None else []),
            *(["--in-turns"] if in_turns else []),
        ]:
            raise UsageError(
                f"{option} is told nothing to compare with",
                "",
                "add --baseline NAME; make one with: farm baseline save NAME",
            )
        return []
    record = session.record()
    if not (found := record.baseline(name)):
        known = did_you_mean(name, record.baselines())
        raise UsageError(
            f"there is no baseline {name!r}",
            known,
            (
                f"farm baseline save {shlex.quote(name)}, or: farm bench --save-baseline "
                f"{shlex.quote(name)}"
            ),
        )
    return found


def save_baseline(session: Session, name: str | None, runs: Sequence[Run]) -> None:
    """Store the good runs among these as a baseline, if a name is given."""
    if name is not None and (good := comparable_runs(runs)):
        session.record().save_baseline(name, good)


def check_builds_remeasurable(session: Session, before: Sequence[Run], jobs: Sequence[Job]) -> None:
    """Raise UsageError if a build of the baseline could not be measured again.

    It is called before anything is measured. Only the runs of `before` that `jobs` will be compared
    with are checked.
    """
    from farm.pipeline.compare import pair_of_builds

    asked = {(job.device.name, job.title) for job in jobs if not job.device.emulated}
    for run in before:
        if (run.device, run.title) in asked:
            pair_of_builds(run, run, session.fleet(), session.artifacts())


def compare_with_baseline(
    session: Session,
    before: Sequence[Run],
    runs: Sequence[Run],
    in_turns: bool,
    deadline_s: float | None,
) -> list[RunComparison]:
    """Compare runs with those of a baseline.

    With `in_turns`, both builds are measured again, interleaved, for each pair that the stored runs
    do not decide. `deadline_s` overrides the device's deadline.
    """
    from farm import comparison

    known = {(run.device, run.title) for run in before}
    after = [run for run in runs if (run.device, run.title) in known]
    if not after:
        return []
    confidence = (
        1 - (1 - CONFIDENCE) / 2 if in_turns else CONFIDENCE
    )  # Bonferroni: each pair may be tested twice
    pairs = comparison.compare_run_pairs(comparison.pair_runs(before, after), confidence)
    unsure = [pair for pair in pairs if in_turns and needs_interleaved_measurement(pair)]
    both = [(pair.first, pair.second) for pair in unsure]
    again = (
        measure_interleaved(session, both, confidence=confidence, deadline_s=deadline_s)
        if unsure
        else []
    )
    found = {pair.second.id: pair for pair in again}
    return [found.get(pair.second.id, pair) for pair in pairs]


def needs_interleaved_measurement(pair: RunComparison) -> bool:
    """Return whether stored runs do not decide the comparison, but an interleaved one might."""
    return pair.found.change is ChangeVerdict.UNSURE and _measurable(pair)


def _measurable(pair: RunComparison) -> bool:
    """Return whether both builds can be measured interleaved.

    The cache is not checked: see `farm.pipeline.compare.pair_of_builds`.
    """
    sides = (pair.first, pair.second)
    alike = (
        len({(run.device, run.profile, run.threads, run.cores, run.pinned) for run in sides}) == 1
    )
    return alike and all(
        run.good and run.artifact_digest and run.model_digest and not run.emulated for run in sides
    )


def measure_interleaved(
    session: Session, pairs: Sequence[tuple[Run, Run]], **how: Any
) -> list[RunComparison]:
    """Measure the builds of the pairs interleaved, showing a spinner."""
    from farm.commands.progress import Spinner

    with Spinner(session, "in turns") as spinner:
        return session.farm().in_turns(pairs, show=spinner.show, **how)


def show_comparison(session: Session, pairs: Sequence[RunComparison], again: str) -> None:
    """Print the comparison, and the command that might decide pairs for which it is inconclusive.

    The command is `again` if several pairs are inconclusive and all can be measured interleaved;
    else one `farm compare` per pair.
    """
    from farm.views.comparison import comparison_table

    console = session.out()
    console.print(comparison_table(pairs, console.width))
    if unsure := [
        pair
        for pair in pairs
        if pair.turns is None and pair.failure is None and needs_interleaved_measurement(pair)
    ]:
        each = [
            f"farm compare --in-turns {shlex.quote(pair.first.id)} {shlex.quote(pair.second.id)}"
            for pair in unsure
        ]
        for command in [again] if len(unsure) > 1 and all(map(_measurable, pairs)) else each:
            echo(f"to tell on a noisy machine, measure both builds again in turns: {command}")


def regression_error(pairs: Sequence[RunComparison], slowdown: float | None) -> Regression | None:
    """Return the error for pairs that became slower by `slowdown`; None without a limit.

    A pair counts if it is significantly slower, and its interval does not exclude this slowdown.
    """
    if slowdown is None or not (slow := [pair for pair in pairs if pair.found.reaches(slowdown)]):
        return None
    why = "\n".join(
        f"{pair.second.title} on {pair.second.device}: {pair.found.reason}" for pair in slow
    )
    what = (
        f"{len(slow)} of {len(pairs)} became slower, by {100 * slowdown:g} % or more as far as "
        "one can tell"
    )
    return Regression(
        what,
        why,
        (
            "find what changed: farm history MODEL --device NAME; where it is meant to be so: "
            "farm baseline save NAME"
        ),
    )


def exit_on_regression(pairs: Sequence[RunComparison], slowdown: float | None) -> None:
    """Exit with an error if something became too slow, or could not be measured interleaved.

    Call it last: everything else must be printed before.
    """
    failures = [pair.failure for pair in pairs if pair.failure]
    if slower := regression_error(pairs, slowdown):
        exit_with_comparison_errors(slower, *failures)
    if failures:
        exit_with_comparison_errors(*failures)


def exit_with_comparison_errors(error: FarmError, *others: FarmError) -> None:
    """Print the errors and exit with the code of the first."""
    for one in (*others, error):
        show_error(one)
    raise SystemExit(error.exit_code)
