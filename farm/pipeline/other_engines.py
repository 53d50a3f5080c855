"""Compare farm with other engines after a bench, for each model that ran on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from farm.errors import UsageError, did_you_mean
from farm.pipeline.operations import Show, build_model_and_agent_for_device, prepare_model, run_task
from farm.pipeline.sandboxed_tasks import model_needs_no_sandbox
from farm.pipeline.worker_tasks import measure_engines_interleaved_task, open_pool
from farm.store import Store
from farm.types import ENGINES, EngineComparison, Job, Profile

ROUNDS = 15


def check_engines_usable(names: Sequence[str], jobs: Sequence[Job]) -> None:
    """Refuse `--against` if it cannot work for these engines and jobs.

    Raises UsageError for an unknown engine, if no job runs on this machine's CPU, and for a model
    that is a program and is not trusted.
    """
    for name in names:
        if name not in ENGINES:
            raise UsageError(
                f"there is no engine {name!r} to compare with",
                did_you_mean(name, ENGINES),
                f"--against {','.join(ENGINES)}",
            )
    if names and not any(_is_here(job) for job in jobs):
        why = "other engines run on this machine's CPU, and none of the devices is that"
        raise UsageError(
            "--against has nothing to compare",
            why,
            "choose a device with the url local:, for example --device host",
        )
    for job in filter(_is_here, jobs if names else ()):
        if not model_needs_no_sandbox(job.model):
            what = f"--against would run {job.model.name} outside of the sandbox"
            why = (
                "its file is a program, and other engines are timed in a process that also talks "
                "to the device"
            )
            raise UsageError(
                what,
                why,
                (
                    "where you trust whoever made it as you trust a program: --trust; or export "
                    "it to ONNX"
                ),
            )


def _is_here(job: Job) -> bool:
    return job.device.scheme == "local" and not job.device.profile.on_gpu


def compare_engines_on_host_cpu(
    jobs: Sequence[Job], names: tuple[str, ...], *, host: Profile, store: Store, show: Show
) -> list[EngineComparison]:
    """Return a comparison for each job on this machine's CPU, measured one after the other.

    Raises FarmError.
    """
    found = []
    with open_pool(store) as pool:
        for job in jobs:
            if not _is_here(job):
                continue
            model, prepared = prepare_model(pool, job.model, job.device.profile, host, store, show)
            arguments = (
                job.device,
                build_model_and_agent_for_device(pool, model, prepared, job.device, store, show),
                names,
                ROUNDS,
                job.plan.deadline_s,
                store.root,
            )
            what = f"{job.title} in {', '.join(names)}"
            made: EngineComparison = run_task(
                pool, measure_engines_interleaved_task, arguments, show, job.plan.deadline_s, what
            )
            found.append(made)
    return found
