"""farm compare: test whether B is slower than A."""

from __future__ import annotations

import shlex

import click

from farm.commands.common import Session, with_session
from farm.commands.judge import baseline_comparison
from farm.commands.options import FiniteFloatRange
from farm.commands.reservation_option import checked_reserved_devices, with_reservation
from farm.errors import UsageError
from farm.types import PairedStoppingRule


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@baseline_comparison.fail_on_option
@baseline_comparison.interleaved_option
@click.option(
    "--seconds",
    type=FiniteFloatRange(1),
    metavar="S",
    help="With --in-turns, the longest to measure a pair, but at least ten rounds. [default: 20]",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=FiniteFloatRange(1),
    metavar="S",
    help="With --in-turns, the longest a pair may take besides that.",
)
@with_reservation
@with_session
def compare(
    session: Session,
    first: str,
    second: str,
    fail_on: float | None,
    in_turns: bool,
    seconds: float | None,
    deadline_s: float | None,
    reservation: int | None,
) -> None:
    """Compare stored runs: is B slower than A, by how much, and with what confidence.

    A and B are ids of runs (their first letters suffice, see farm history) or names of baselines.
    Of baselines, the runs of the same model on the same device are compared. Only STABLE runs are
    evidence.

    With --in-turns the stored figures are not used. Both builds, which must still be in the cache,
    are loaded on the device side by side and measured interleaved, one inference at a time. A
    disturbance of the machine then affects both, so that NOISY runs can be judged too.

    \b
    farm compare 4f2a 91c7
    farm compare 4f2a 91c7 --in-turns
    farm compare release-1 release-2 --fail-on 5%
    """
    if not in_turns and (seconds or deadline_s or reservation):
        option = "--seconds" if seconds else "--deadline" if deadline_s else "--reservation"
        raise UsageError(
            f"{option}: nothing is measured",
            "kept runs are compared",
            "add --in-turns",
        )
    if in_turns:
        until = PairedStoppingRule() if seconds is None else PairedStoppingRule(seconds=seconds)
        if reservation is not None:
            fleet = session.fleet()
            names = dict.fromkeys(run.device for run, _ in session.farm().pairs(first, second))
            boards = [fleet.device(name) for name in names]
            checked_reserved_devices(session, boards, reservation)
        pairs = baseline_comparison.measure_interleaved(
            session, session.farm().pairs(first, second), until=until, deadline_s=deadline_s
        )
    else:
        pairs = session.farm().compare(first, second)
    if session.as_json:
        session.document("comparison", {"pairs": [pair.as_json() for pair in pairs]})
    else:
        baseline_comparison.show_comparison(
            session, pairs, f"farm compare --in-turns {shlex.quote(first)} {shlex.quote(second)}"
        )
    baseline_comparison.exit_on_regression(pairs, fail_on)
