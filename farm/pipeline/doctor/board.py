"""Check devices layer by layer, from the name to a model's answer, and report the first failure."""

from __future__ import annotations

from collections.abc import Sequence

from farm.pipeline.doctor.checks import Examination, Finding, error_of_first_failed_check
from farm.pipeline.operations import Show
from farm.pipeline.worker_tasks import open_pool
from farm.store import RunStore, Store
from farm.types import Device, Model, Profile

__all__ = ["Finding", "error_of_first_failed_check", "examine_devices"]


def examine_devices(
    devices: Sequence[Device],
    *,
    model: Model,
    host: Profile,
    store: Store,
    keep: RunStore,
    slots: int,
    show: Show,
) -> dict[str, list[Finding]]:
    """Return the findings of each device, layer by layer, up to its first failure.

    The last layer is the answer of `model`; its run is stored in `keep`. `host` is the profile of
    this machine, `slots` how many builds run at once.
    """
    with open_pool(store) as pool:
        examination = Examination(pool, devices, host, store, slots, show)
        examination.reach()
        examination.place()
        examination.open_session()
        examination.prove(model, keep)
        return examination.found
