"""The doctor: asks devices layer by layer, from the name to a model's answer, and names the first layer that fails and the cure."""

from __future__ import annotations

from collections.abc import Sequence

from farm.pipeline.examination import Examination, Finding, failed
from farm.pipeline.single import Show
from farm.pipeline.tasks import crew_of
from farm.store import RunStore, Store
from farm.types import Device, Model, Profile

__all__ = ["Finding", "examine", "failed"]


def examine(
    devices: Sequence[Device],
    *,
    model: Model,
    host: Profile,
    store: Store,
    keep: RunStore,
    lanes: int,
    show: Show,
) -> dict[str, list[Finding]]:
    """What was found on each layer of each device, up to its first that fails. The answer of `model` is the last; its run is kept.

    `host` is the profile of this machine, `lanes` how many builds run at once.
    """
    with crew_of(store) as crew:
        examination = Examination(crew, devices, host, store, lanes, show)
        examination.reach()
        examination.place()
        examination.open_session()
        examination.prove(model, keep)
        return examination.found
