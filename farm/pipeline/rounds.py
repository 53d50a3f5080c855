"""Models of a device measured in rounds, A B C A B C: what drifts meanwhile, drifts for all of them alike.

Each round is a session of its own with a share of the measurement, so that the device never has to hold more than one model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from farm.types import Agreement, Job, Plan, Samples


def interleaved(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, with one round where there is nothing to take turns with: on a device with a single job, or where nothing is timed."""
    several = Counter(job.device.name for job in jobs)

    def takes_turns(job: Job) -> bool:
        return several[job.device.name] > 1 and job.plan.maximum_s > 0 and not job.device.emulated

    return [job if takes_turns(job) else replace(job, plan=replace(job.plan, rounds=1)) for job in jobs]


class Turns:
    """The rounds of an execution's jobs, those that are done."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], list[Samples]] = {}  # by device and title

    def of(self, job: Job) -> list[Samples]:
        return self._done.setdefault((job.device.name, job.title), [])

    def may_begin(self, job: Job, waiting: Iterable[Job]) -> bool:
        """Whether no other job of its device has fewer rounds behind it."""
        behind = len(self.of(job))
        return all(len(self.of(other)) >= behind for other in waiting if other.device.name == job.device.name)

    def plan_of(self, job: Job) -> Plan:
        """What a job's next round measures: its share of samples and seconds. Labelled samples and the installation belong to the first."""
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
        return replace(shared, dataset_limit=0, install=False, block=done[0].block) if done else shared

    def take(self, job: Job, samples: Samples) -> Samples | None:
        """Keep a round. All of the job as one measurement when it was the last, or its answer was wrong; else None."""
        done = self.of(job)
        done.append(samples)
        return merged(done) if len(done) >= job.plan.rounds or not samples.agreement.right else None


def merged(parts: Sequence[Samples]) -> Samples:
    """The rounds of a job as one measurement, in order of time."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    measured = [part for part in parts if part.measured_s]
    measured_s = math.fsum(part.measured_s or 0.0 for part in measured)
    told = [part for part in measured if part.held_up is not None]
    held_up = math.fsum((part.held_up or 0.0) * (part.measured_s or 0.0) for part in told) / measured_s if told else None
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
    return max(agreements, key=lambda one: (not one.right, one.max_abs))
