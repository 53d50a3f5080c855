"""Measure the models of a device in interleaved rounds, A B C A B C: drift then affects all alike.

Each round is a session of its own with a share of the measurement, so the device never has to hold
more than one model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from farm.types import Agreement, DeviceResults, Job, MeasurementSettings


def limit_uninterleaved_jobs_to_one_round(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, each with a single round if there is nothing to interleave it with.

    That is the case for the only job of a device, for plans without timing, and on emulated
    devices.
    """
    several = Counter(job.device.name for job in jobs)

    def takes_turns(job: Job) -> bool:
        return several[job.device.name] > 1 and job.plan.maximum_s > 0 and not job.device.emulated

    return [
        job if takes_turns(job) else replace(job, plan=replace(job.plan, rounds=1)) for job in jobs
    ]


class FinishedRounds:
    """The finished rounds of all jobs of an execution."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], list[DeviceResults]] = {}  # by device and title

    def of(self, job: Job) -> list[DeviceResults]:
        """Return the finished rounds of a job."""
        return self._done.setdefault((job.device.name, job.title), [])

    def may_begin(self, job: Job, waiting: Iterable[Job]) -> bool:
        """Return True if no other waiting job of the same device has finished fewer rounds."""
        behind = len(self.of(job))
        return all(
            len(self.of(other)) >= behind
            for other in waiting
            if other.device.name == job.device.name
        )

    def plan_of(self, job: Job) -> MeasurementSettings:
        """Return the plan of a job's next round: its share of the samples and seconds.

        Labelled samples and the installation belong to the first round only. The precision (a
        relative standard error) of one round is wider by the square root of the number of rounds.
        """
        plan, done = job.plan, self.of(job)
        if plan.rounds == 1:
            return plan
        shared = replace(
            plan,
            count=math.ceil(plan.count / plan.rounds),
            minimum_s=plan.minimum_s / plan.rounds,
            maximum_s=plan.maximum_s / plan.rounds,
            most=math.ceil(plan.most / plan.rounds),
            precision=None if plan.precision is None else plan.precision * math.sqrt(plan.rounds),
        )
        return (
            replace(shared, dataset_limit=0, install=False, block=done[0].block) if done else shared
        )

    def take(self, job: Job, samples: DeviceResults) -> DeviceResults | None:
        """Store a finished round; return the job's rounds merged if it was the last one, else None.

        A round whose answer is wrong is always the last.
        """
        done = self.of(job)
        done.append(samples)
        return (
            merge_rounds(done)
            if len(done) >= job.plan.rounds or not samples.agreement.right
            else None
        )


def merge_rounds(parts: Sequence[DeviceResults]) -> DeviceResults:
    """Merge the rounds of a job, in order of time, into one measurement."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    measured = [part for part in parts if part.measured_s]
    measured_s = math.fsum(part.measured_s or 0.0 for part in measured)
    told = [part for part in measured if part.held_up is not None]
    held_up = (
        math.fsum((part.held_up or 0.0) * (part.measured_s or 0.0) for part in told)
        / math.fsum(part.measured_s or 0.0 for part in told)
        if told
        else None
    )
    ledger: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.ledger.items():
            ledger[name] = ledger.get(name, 0.0) + seconds
    energies = [part.energy_j for part in measured if part.energy_j is not None]
    peaks = [part.memory_peak_bytes for part in parts if part.memory_peak_bytes is not None]
    return replace(
        first,
        seconds=tuple(seconds for part in parts for seconds in part.seconds),
        agreement=_worst([part.agreement for part in parts]),
        facts_after=last.facts_after,
        facts_during=tuple(facts for part in parts for facts in part.facts_during),
        ledger=ledger,
        uploaded=sum(part.uploaded for part in parts),
        held_up=held_up,
        warm=None if first.warm is None else all(part.warm is not False for part in parts),
        measured_s=measured_s or None,
        wall_s=None if first.wall_s is None else math.fsum(part.wall_s or 0.0 for part in parts),
        memory_peak_bytes=max(peaks, default=None),
        energy_j=math.fsum(energies) if measured and len(energies) == len(measured) else None,
    )


def _worst(agreements: Sequence[Agreement]) -> Agreement:
    """Return the worst agreement: of a wrong answer, or the furthest from the reference."""
    return max(agreements, key=lambda one: (not one.right, one.max_abs))
