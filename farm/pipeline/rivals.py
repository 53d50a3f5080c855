"""Other engines beside farm, after a bench: for each model that ran on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from farm.errors import UsageError, did_you_mean
from farm.pipeline.single import Show, do, fit, prepare
from farm.pipeline.tasks import crew_of, rivals_task
from farm.store import Store
from farm.types import ENGINES, Contest, Job, Profile

ROUNDS = 15


def check_rivals(names: Sequence[str], jobs: Sequence[Job]) -> None:
    """Raises UsageError for an engine that is not known, and where no job is on this machine itself."""
    for name in names:
        if name not in ENGINES:
            raise UsageError(f"there is no engine {name!r} to compare with", did_you_mean(name, ENGINES), f"--against {','.join(ENGINES)}")
    if names and not any(_is_here(job) for job in jobs):
        why = "other engines run on this machine's CPU, and none of the devices is that"
        raise UsageError("--against has nothing to compare", why, "choose a device with the url local:, for example --device host")


def _is_here(job: Job) -> bool:
    return job.device.scheme == "local" and not job.device.profile.on_gpu


def against(jobs: Sequence[Job], names: tuple[str, ...], *, host: Profile, store: Store, show: Show) -> list[Contest]:
    """A contest for each job on this machine, one after the other. Raises FarmError."""
    found = []
    with crew_of(store) as crew:
        for job in jobs:
            if not _is_here(job):
                continue
            model, prepared = prepare(crew, job.model, job.device.profile, host, store, show)
            arguments = (job.device, fit(crew, model, prepared, job.device, store, show), names, ROUNDS, job.plan.deadline_s, store.root)
            what = f"{job.title} in {', '.join(names)}"
            made: Contest = do(crew, rivals_task, arguments, show, job.plan.deadline_s, what)
            found.append(made)
    return found
