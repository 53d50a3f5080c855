"""Profile a model on a device: build it like any other model, then record its inferences."""

from __future__ import annotations

from farm.pipeline.operations import (
    Show,
    build_model_and_agent_for_device,
    check_device_usable,
    prepare_model,
    run_task,
)
from farm.pipeline.worker_tasks import (
    BUILD_S,
    build_roofline_probe_task,
    open_pool,
    profile_model_task,
)
from farm.store import Store
from farm.types import Device, Model, ModelProfile, Profile


def profile_model(
    model: Model,
    device: Device,
    *,
    host: Profile,
    store: Store,
    seconds: float,
    deadline_s: float,
    show: Show,
) -> ModelProfile:
    """Return the time of each kernel of an inference. `seconds` is about how long to record.

    Raises FarmError.
    """
    check_device_usable(device)
    with open_pool(store) as pool:
        model, prepared = prepare_model(pool, model, device.profile, host, store, show)
        fitted = build_model_and_agent_for_device(pool, model, prepared, device, store, show)
        what = f"compiling what measures {device.profile.name}"
        # The arithmetic rate of an emulator depends on the instruction: it has no roof.
        probe = (
            run_task(
                pool, build_roofline_probe_task, (device.profile, store.root), show, BUILD_S, what
            )
            if not device.emulated
            else None
        )
        arguments = (device, fitted, probe, seconds, deadline_s, store.root)
        profiled: ModelProfile = run_task(
            pool,
            profile_model_task,
            arguments,
            show,
            deadline_s,
            f"the profile of {model.name} on {device.name}",
        )
        return profiled
