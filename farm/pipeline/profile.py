"""Profile a model on a device: build it like any other model, then record its inferences."""

from __future__ import annotations

from farm.pipeline.operations import Show, check_usable, do, fit, prepare
from farm.pipeline.worker_tasks import BUILD_S, pool_of, probe_task, profile_task
from farm.store import Store
from farm.types import Device, Model, Profile, Profiled


def profile(
    model: Model,
    device: Device,
    *,
    host: Profile,
    store: Store,
    seconds: float,
    deadline_s: float,
    show: Show,
) -> Profiled:
    """Return the time of each kernel of an inference. `seconds` is about how long to record.

    Raises FarmError.
    """
    check_usable(device)
    with pool_of(store) as pool:
        model, prepared = prepare(pool, model, device.profile, host, store, show)
        fitted = fit(pool, model, prepared, device, store, show)
        what = f"compiling what measures {device.profile.name}"
        # The arithmetic rate of an emulator depends on the instruction: it has no roof.
        probe = (
            do(pool, probe_task, (device.profile, store.root), show, BUILD_S, what)
            if not device.emulated
            else None
        )
        arguments = (device, fitted, probe, seconds, deadline_s, store.root)
        profiled: Profiled = do(
            pool,
            profile_task,
            arguments,
            show,
            deadline_s,
            f"the profile of {model.name} on {device.name}",
        )
        return profiled
