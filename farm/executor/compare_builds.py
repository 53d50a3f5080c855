"""Measure two builds on a device, interleaved. Times are by the device's clock."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from farm import checked_model_import, stats
from farm.errors import WrongAnswer
from farm.executor.loading import (
    LoadedModel,
    connect_and_load_model,
    has_parameters,
    load_model,
    pause_other_workers,
    read_device_facts,
    upload_artifact,
)
from farm.interleaved_measurement import Block, BlockLength, Medians, measure_interleaved
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.transports import Link
from farm.types import Device, PairedBuild, PairedSamples, PairedStoppingRule, Progress, Stage

# Time one inference per block, or more if the RPC round trip would dominate. The device runs one
# untimed inference before each block, which refills the caches. Blocks are short, so that a
# disturbance affects both builds.
PACE = BlockLength(block_s=0.004, fewest=1, warm=0)
_LOOK_AGAIN = 1.15  # factor on the rounds so far, after which the precision is computed again
_MOST = 1000  # rounds per load
_NOTE_EVERY_S = 0.5
BEFORE, AFTER = "before", "after"
_LIBRARY = "second.so"  # TVM's own server would overwrite the first library, which is running


def measure_builds_interleaved(
    context: TaskContext,
    device: Device,
    sides: tuple[PairedBuild, PairedBuild],
    agent: Path | None,
    until: PairedStoppingRule,
    deadline_s: float,
) -> PairedSamples:
    """Measure both builds in one session, or in several sessions if they are to be reloaded.

    Raises WrongAnswer if an answer is wrong, and DeviceError and its subclasses.
    """
    found: dict[str, list[float]] = {BEFORE: [], AFTER: []}
    enough, facts, deadline = StoppingRule(until, _noting(context, until)), {}, Deadline(deadline_s)
    while enough.another_load():
        with ExitStack() as stack:
            loaded, link = _load(stack, context, device, sides, agent, deadline.remaining)
            stack.enter_context(pause_other_workers(context, device))
            medians = measure_interleaved(
                dict(zip(found, map(_block, loaded), strict=True)), enough, PACE
            )
            facts = read_device_facts(link)
        for name, seconds in medians.items():
            found[name] += seconds
    return PairedSamples(tuple(found[BEFORE]), tuple(found[AFTER]), facts, tuple(enough.loads))


def _load(
    stack: ExitStack,
    context: TaskContext,
    device: Device,
    sides: tuple[PairedBuild, PairedBuild],
    agent: Path | None,
    timeout_s: float,
) -> tuple[list[LoadedModel], Link]:
    """Load both builds in one session, feed them their example inputs and check their answers."""
    first, link, _ = connect_and_load_model(
        stack, context, device, sides[0].artifact, agent, timeout_s, {}
    )
    upload_artifact(context, link, sides[1].artifact, _LIBRARY)
    loaded = [
        first,
        load_model(
            link, device, sides[1].artifact.inputs, has_parameters(sides[1].artifact), _LIBRARY
        ),
    ]
    for one, side in zip(loaded, sides, strict=True):
        inputs, expected = checked_model_import.read_reference_inputs_and_outputs(side.prepared)
        one.feed(inputs)
        one.run()
        one.record()
        agreement = stats.compare_outputs_with_reference(one.outputs(), expected, side.limits)
        if not agreement.right:
            why = stats.verdict_from_answer_and_spread(False, agreement, None)[1]
            fix = f"farm bisect --device {device.name} {shlex.quote(side.artifact.model)}"
            raise WrongAnswer(f"{side.name} answers wrong on {device.name}", why, fix)
    return loaded, link


def _noting(context: TaskContext, until: PairedStoppingRule) -> Callable[[int, int, float], None]:
    """Return a callback that reports the load's number, its rounds and the share of its time."""

    def note(load: int, rounds: int, share: float) -> None:
        which = f"load {load + 1} of {until.loads}, " if until.loads > 1 else ""
        context.note(
            Progress(Stage.MEASURING, f"{which}round {rounds + 1}", (load + share) / until.loads)
        )

    return note


def _block(loaded: LoadedModel) -> Block:
    return lambda count: loaded.time(1, count)


class StoppingRule:
    """Stopping rule: when to end a load, and whether to reload the builds once more.

    A load ends when its share of the time is used up or the confidence interval of the ratio is
    narrow enough for its share of the precision. All loads together have at least LEAST_ROUNDS
    rounds; no further load begins if these are done and the time is over. `loads` holds the rounds
    of each finished load. `note` is called now and then with the number of the load, its rounds and
    the share of its time that is over.
    """

    def __init__(
        self,
        until: PairedStoppingRule,
        note: Callable[[int, int, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._until, self._note, self._clock = until, note, clock
        self.loads: list[int] = []
        self._seconds = 0.0  # of the loads that are done
        self._begin = self._note_at = self._look_at = 0.0

    def another_load(self) -> bool:
        """Return True if the builds are to be loaded once more."""
        time_is_over = (
            self._seconds >= self._until.seconds and sum(self.loads) >= stats.LEAST_ROUNDS
        )
        return len(self.loads) < self._until.loads and not time_is_over

    def __call__(self, medians: Medians) -> bool:
        """Return True if the current load goes on; `medians` holds the seconds of its rounds."""
        done, now, until, sure = len(medians[BEFORE]), self._clock(), self._until, False
        if not done:
            self._begin = self._note_at = now
            self._look_at = float(stats.LEAST_ROUNDS)
        spent = (now - self._begin) / (until.seconds / until.loads)
        if now >= self._note_at:  # seldom: the display would take CPU time from the measurement
            self._note_at = now + _NOTE_EVERY_S
            self._note(len(self.loads), done, min(1.0, spent))
        if done >= self._look_at:
            self._look_at = _LOOK_AGAIN * done
            low, high = stats.interleaved_ratio_interval(
                medians[BEFORE], medians[AFTER], until.confidence
            )[1]
            sure = math.log(high / low) / 2 <= until.precision * math.sqrt(until.loads)
        goes_on = done < self._least() or not (spent >= 1 or sure or done >= _MOST)
        if not goes_on:
            self.loads.append(done)
            self._seconds += now - self._begin
        return goes_on

    def _least(self) -> int:
        """Return the fewest rounds of this load: its share of those still missing."""
        missing = stats.LEAST_ROUNDS - sum(self.loads)
        return max(1, math.ceil(missing / (self._until.loads - len(self.loads))))
