"""What compare and bench share: finding runs by name, showing a comparison, and its exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from farm.api.choosing import worth_keeping
from farm.errors import FarmError, Regression, UsageError, did_you_mean
from farm.stats import CONFIDENCE, Change

if TYPE_CHECKING:
    from farm.commands.common import Session
    from farm.comparison import Pair
    from farm.types import Job, Run


class Percentage(click.ParamType):  # type: ignore[type-arg]
    """A share: 5% or 0.05."""

    name = "percentage"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(value).strip())
        share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
        if not 0 <= share < 10:
            self.fail(f"{value!r} is no share such as 5% or 0.05", param, ctx)
        return share


fail_on = click.option(
    "--fail-on",
    type=Percentage(),
    metavar="SHARE",
    help="Exit with 8 where a model is surely slower, and a slowdown of this share (5%) is not ruled out.",
)


in_turns = click.option(
    "--in-turns", is_flag=True, help="Measure both builds again in turns, which tells on a noisy machine what the kept figures cannot."
)


def baseline_named(session: Session, name: str | None, fail_on: float | None, in_turns: bool = False) -> list[Run]:
    """The runs of the baseline that bench is given. Raises UsageError, before anything is measured, where there is none of the name."""
    if name is None:
        for option in [*(["--fail-on"] if fail_on is not None else []), *(["--in-turns"] if in_turns else [])]:
            raise UsageError(f"{option} is told nothing to compare with", "", "add --baseline NAME; make one with: farm baseline save NAME")
        return []
    record = session.record()
    if not (found := record.baseline(name)):
        known = did_you_mean(name, record.baselines())
        raise UsageError(f"there is no baseline {name!r}", known, f"farm baseline save {name}, or: farm bench --save-baseline {name}")
    return found


def save(session: Session, name: str | None, runs: Sequence[Run]) -> None:
    """Make the good ones of these runs a baseline, if it has a name."""
    if name is not None and (good := worth_keeping(runs)):
        session.record().save_baseline(name, good)


def check_builds(session: Session, before: Sequence[Run], jobs: Sequence[Job]) -> None:
    """Raises UsageError, before anything is measured, where a build of the baseline that may have to be measured again cannot be."""
    from farm.pipeline.comparing import contest
    from farm.store import Store, cache_root

    asked = {(job.device.name, job.title) for job in jobs if not job.device.emulated}
    for run in before:
        if (run.device, run.title) in asked:
            contest(run, run, session.fleet(), Store(cache_root()))


def against(session: Session, before: Sequence[Run], runs: Sequence[Run], in_turns: bool) -> list[Pair]:
    """The runs beside those of a baseline; where these do not tell, both builds are measured again `in_turns`, if that is asked for."""
    from farm import comparison

    known = {(run.device, run.title) for run in before}
    after = [run for run in runs if (run.device, run.title) in known]
    if not after:
        return []
    confidence = 1 - (1 - CONFIDENCE) / 2 if in_turns else CONFIDENCE  # as there are two ways to be wrong
    pairs = comparison.compare(comparison.pair_up(before, after), confidence)
    unsure = [pair for pair in pairs if in_turns and may_be_told(pair)]
    again = measured_in_turns(session, [(pair.first, pair.second) for pair in unsure], confidence=confidence) if unsure else []
    found = {pair.second.id: pair for pair in again}
    return [found.get(pair.second.id, pair) for pair in pairs]


def may_be_told(pair: Pair) -> bool:
    """Whether its kept runs do not tell, and turns might."""
    sides = (pair.first, pair.second)
    return pair.found.change is Change.UNSURE and all(run.good and run.model_digest and not run.emulated for run in sides)


def measured_in_turns(session: Session, pairs: Sequence[tuple[Run, Run]], **how: Any) -> list[Pair]:
    from farm.commands.progress import Spinner

    with Spinner(session, "in turns") as spinner:
        return session.farm().in_turns(pairs, show=spinner.show, **how)


def show(session: Session, pairs: Sequence[Pair], again: str) -> None:
    """The table, and where it cannot tell, the command that might: `again`."""
    from farm.views.comparing import comparison_table

    console = session.out()
    console.print(comparison_table(pairs, console.width))
    if unsure := [pair for pair in pairs if pair.turns is None and pair.failure is None and may_be_told(pair)]:
        command = f"farm compare --in-turns {unsure[0].first.id} {unsure[0].second.id}" if len(unsure) == 1 else again
        click.echo(f"to tell on a noisy machine, measure both builds again in turns: {command}")


def regression(pairs: Sequence[Pair], slowdown: float | None) -> Regression | None:
    """The error of what became too slow; none without a bar."""
    if slowdown is None or not (slow := [pair for pair in pairs if pair.found.reaches(slowdown)]):
        return None
    why = "\n".join(f"{pair.second.title} on {pair.second.device}: {pair.found.reason}" for pair in slow)
    what = f"{len(slow)} of {len(pairs)} became slower, by {100 * slowdown:g} % or more as far as one can tell"
    return Regression(what, why, "find what changed: farm history MODEL --device NAME; where it is meant to be so: farm baseline save NAME")


def end_of(pairs: Sequence[Pair], slowdown: float | None) -> None:
    """Exit where something became too slow, or could not be measured in turns; nothing else is left to show then."""
    failures = [pair.failure for pair in pairs if pair.failure]
    if slower := regression(pairs, slowdown):
        end_with(slower, *failures)
    if failures:
        end_with(*failures)


def end_with(error: FarmError, *others: FarmError) -> None:
    """Show the errors, and exit with the first; the document, if any, is printed already."""
    from farm.commands.common import show_error

    for one in (*others, error):
        show_error(one)
    raise SystemExit(error.exit_code)
