"""What compare and bench share: finding runs by name, showing a comparison, and its exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from farm.api.choosing import worth_keeping
from farm.errors import Regression, UsageError, did_you_mean

if TYPE_CHECKING:
    from farm.commands.common import Session
    from farm.comparison import Pair
    from farm.types import Run


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


def baseline_named(session: Session, name: str | None, fail_on: float | None) -> list[Run]:
    """The runs of the baseline that bench is given. Raises UsageError, before anything is measured, where there is none of the name."""
    if name is None:
        if fail_on is not None:
            raise UsageError("--fail-on is told nothing to compare with", "", "add --baseline NAME; make one with: farm baseline save NAME")
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


def against(before: Sequence[Run], runs: Sequence[Run]) -> list[Pair]:
    from farm import comparison

    known = {(run.device, run.title) for run in before}
    after = [run for run in runs if (run.device, run.title) in known]
    return comparison.compare(comparison.pair_up(before, after)) if after else []


def show(session: Session, pairs: Sequence[Pair]) -> None:
    from farm.views.comparing import comparison_table

    console = session.out()
    console.print(comparison_table(pairs, console.width))


def regression(pairs: Sequence[Pair], slowdown: float | None) -> Regression | None:
    """The error of what became too slow; none without a bar."""
    if slowdown is None or not (slow := [pair for pair in pairs if pair.found.reaches(slowdown)]):
        return None
    why = "\n".join(f"{pair.second.title} on {pair.second.device}: {pair.found.reason}" for pair in slow)
    what = f"{len(slow)} of {len(pairs)} became slower, by {100 * slowdown:g} % or more as far as one can tell"
    return Regression(what, why, "find what changed: farm history MODEL --device NAME; where it is meant to be so: farm baseline save NAME")


def end_with(error: Regression) -> None:
    """Show the error; the document, if any, is printed already."""
    from farm.commands.common import show_error

    show_error(error)
    raise SystemExit(error.exit_code)
