"""farm compare: is B slower than A, and how surely."""

from __future__ import annotations

import click

from farm.commands import comparing
from farm.commands.common import Session, shared


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@comparing.fail_on
@shared
def compare(session: Session, first: str, second: str, fail_on: float | None) -> None:
    """Compare kept runs: is B slower than A, by how much, and how surely.

    A and B are ids of runs (their first letters will do, see farm history) or names of baselines, of which each model on each
    device is compared with its own. Only STABLE runs are evidence.

    \b
    farm compare 4f2a 91c7
    farm compare release-1 release-2 --fail-on 5%
    """
    pairs = session.farm().compare(first, second)
    if session.as_json:
        session.document("comparison", {"pairs": [pair.as_json() for pair in pairs]})
    else:
        comparing.show(session, pairs)
    if slower := comparing.regression(pairs, fail_on):
        comparing.end_with(slower)
