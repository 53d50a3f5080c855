"""farm cache: what builds have left on this machine and in the shared cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from farm.commands.common import Session, with_session
from farm.commands.options import FiniteFloatRange
from farm.commands.output import echo

if TYPE_CHECKING:
    from farm.store import SharedCacheClient, Store, StoredFolder


@click.group(invoke_without_command=True)
@with_session
def cache(session: Session) -> None:
    """Show what imports and builds have left on this machine and in the shared cache.

    The shared cache is a bucket that devices.toml names, for example cache = "s3://lab/farm", or
    the variable FARM_SHARED_CACHE. What one machine has built, others fetch.

    \b
    farm cache
    farm cache fetch
    farm cache prune --days 30
    """
    if click.get_current_context().invoked_subcommand:
        return
    from farm import views

    store = session.artifacts()
    upstream = _upstream(store)
    here, there = store.entries(), upstream.entries() if upstream else []
    if session.as_json:
        found = {"here": here, "shared": there}
        places = {"here": str(store.root), "shared": upstream.location.url if upstream else None}
        session.document(
            "cache",
            {
                "places": [
                    {"place": places[name], **_body(found[name])} for name in found if places[name]
                ]
            },
        )
        return
    rows = [(str(store.root), here)] + ([(upstream.location.url, there)] if upstream else [])
    console = session.out()
    console.print(
        views.cache_table(
            [views.CacheRow(place, *_totals(entries)) for place, entries in rows], console.width
        )
    )


@cache.command(name="fetch")
@with_session
def fetch(session: Session) -> None:
    """Copy what is in the shared cache, and not here, to this machine.

    Builds fetch what they need by themselves; this is for a machine that will be without a network.
    """
    from farm.commands.progress import Spinner
    from farm.errors import UsageError
    from farm.types import Progress, Stage

    store = session.artifacts()
    upstream = _upstream(store)
    if upstream is None:
        fix = 'name a bucket in devices.toml, cache = "s3://BUCKET/PREFIX", or in FARM_SHARED_CACHE'
        raise UsageError(
            "there is no shared cache", "neither devices.toml nor the environment names one", fix
        )
    here = {(one.kind, one.digest) for one in store.entries()}
    missing = [one for one in upstream.entries() if (one.kind, one.digest) not in here]
    got: list[StoredFolder] = []
    with Spinner(session, "the shared cache") as spinner:
        for number, one in enumerate(missing):
            spinner.show(
                Progress(Stage.LOADING, f"{number + 1} of {len(missing)}", number / len(missing))
            )
            got += [one] if store.fetch(one.kind, one.digest) else []
    if session.as_json:
        session.document("fetched", _body(got))
    else:
        echo(f"{_in_words(got)} fetched, {len(here)} were here")
    if len(got) < len(missing):
        raise UsageError(
            f"{len(missing) - len(got)} could not be fetched",
            "see the warning",
            "run the command again",
        )


@cache.command(name="prune")
@click.option(
    "--days",
    type=FiniteFloatRange(0),
    required=True,
    help="Remove what was not used for so many days.",
)
@click.option(
    "--shared",
    "in_shared",
    is_flag=True,
    help="In the shared cache: what was written so many days ago.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@with_session
def prune(session: Session, days: float, in_shared: bool, dry_run: bool) -> None:
    """Remove what was not used for some days, here or in the shared cache.

    It is built again when it is needed. The record of runs is not touched.
    """
    from farm.errors import UsageError

    store = session.artifacts()
    place: Store | SharedCacheClient | None = _upstream(store) if in_shared else store
    if place is None:
        raise UsageError(
            "there is no shared cache",
            "neither devices.toml nor the environment names one",
            "leave --shared out",
        )
    limit = datetime.now(UTC) - timedelta(days=days)
    old = [one for one in place.entries() if one.used <= limit]
    if not dry_run:
        place.remove(old)
    if session.as_json:
        session.document("pruned", {**_body(old), "dry_run": dry_run})
    else:
        echo(f"{_in_words(old)} {'would be ' if dry_run else ''}removed")


def _upstream(store: Store) -> SharedCacheClient | None:
    from farm.store import SharedCacheClient

    return store.upstream if isinstance(store.upstream, SharedCacheClient) else None


def _totals(entries: Sequence[StoredFolder]) -> tuple[int, int, int]:
    """Return the number of models and of builds, and the bytes of all."""
    counts = Counter(one.kind for one in entries)
    return counts["models"], counts["artifacts"], sum(one.nbytes for one in entries)


def _body(entries: Sequence[StoredFolder]) -> dict[str, int]:
    return dict(zip(("models", "builds", "nbytes"), _totals(entries), strict=True))


def _in_words(entries: Sequence[StoredFolder]) -> str:
    models, builds, nbytes = _totals(entries)
    return f"{models} models and {builds} builds ({nbytes / 1e6:.1f} MB)"
