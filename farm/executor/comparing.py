"""Two builds on a device, measured in turns. Times are the device's own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from farm import prepare, stats
from farm.deadline import Deadline
from farm.errors import WrongAnswer
from farm.executor.loading import Loaded, facts_of, has_parameters, load, open_and_load, push, quiet
from farm.parallel import Desk
from farm.transports import Link
from farm.turns import Block, Medians, Pace, in_turns
from farm.types import Device, Paired, Progress, Side, Stage, Until

# One inference a turn, or as many as the way there and back is not all of it; before them the device runs one that is not timed, and the
# caches are the build's own again. The sooner the other has its turn, the more of what disturbs one disturbs the other.
PACE = Pace(block_s=0.004, fewest=1, warm=0)
_LOOK_AGAIN = 1.15  # times the rounds so far
_MOST = 1000  # rounds of a load
_NOTE_EVERY_S = 0.5
BEFORE, AFTER = "before", "after"
_LIBRARY = "second.so"  # beside the first's: TVM's own server would overwrite the code that runs


def compare(desk: Desk, device: Device, sides: tuple[Side, Side], agent: Path | None, until: Until, deadline_s: float) -> Paired:
    """Both builds in one session, or one after the other in as many as they are to be loaded anew. Raises WrongAnswer for one whose answer
    is not right, DeviceError and its kin."""
    found: dict[str, list[float]] = {BEFORE: [], AFTER: []}
    enough, facts, deadline = Enough(until, _noting(desk, until)), {}, Deadline(deadline_s)
    while enough.another_load():
        with ExitStack() as stack:
            loaded, link = _load(stack, desk, device, sides, agent, deadline.remaining)
            stack.enter_context(quiet(desk, device))
            medians = in_turns(dict(zip(found, map(_block, loaded), strict=True)), enough, PACE)
            facts = facts_of(link)
        for name, seconds in medians.items():
            found[name] += seconds
    return Paired(tuple(found[BEFORE]), tuple(found[AFTER]), facts, tuple(enough.loads))


def _load(
    stack: ExitStack, desk: Desk, device: Device, sides: tuple[Side, Side], agent: Path | None, timeout_s: float
) -> tuple[list[Loaded], Link]:
    """Both, fed with the example of their models, and right."""
    first, link, _ = open_and_load(stack, desk, device, sides[0].artifact, agent, timeout_s, {})
    push(desk, link, sides[1].artifact, _LIBRARY)
    loaded = [first, load(link, device, sides[1].artifact.inputs, has_parameters(sides[1].artifact), _LIBRARY)]
    for one, side in zip(loaded, sides, strict=True):
        inputs, expected = prepare.reference(side.prepared)
        one.feed(inputs)
        one.run()
        one.record()
        agreement = stats.agreement(one.outputs(), expected, side.limits)
        if not agreement.right:
            why = stats.verdict(False, agreement, None)[1]
            fix = f"farm bisect --device {device.name} {side.artifact.model}"
            raise WrongAnswer(f"{side.name} answers wrong on {device.name}", why, fix)
    return loaded, link


def _noting(desk: Desk, until: Until) -> Callable[[int, int, float], None]:
    """What tells of the rounds of a load."""

    def note(load: int, rounds: int, share: float) -> None:
        which = f"load {load + 1} of {until.loads}, " if until.loads > 1 else ""
        desk.note(Progress(Stage.MEASURING, f"{which}round {rounds + 1}", (load + share) / until.loads))

    return note


def _block(loaded: Loaded) -> Block:
    return lambda count: loaded.time(1, count)


class Enough:
    """Whether there is another load, and whether it goes on: until it has its share of the time, or of how sure the ratio is to be. All
    loads together have LEAST_ROUNDS, and end once they have these where the time is over. `loads` are the rounds of those that are done;
    `note` hears, now and then, the number of the load, how many rounds it has and which share of its time is over."""

    def __init__(self, until: Until, note: Callable[[int, int, float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._until, self._note, self._clock = until, note, clock
        self.loads: list[int] = []
        self._seconds = 0.0  # of the loads that are done
        self._begin = self._note_at = self._look_at = 0.0

    def another_load(self) -> bool:
        time_is_over = self._seconds >= self._until.seconds and sum(self.loads) >= stats.LEAST_ROUNDS
        return len(self.loads) < self._until.loads and not time_is_over

    def __call__(self, medians: Medians) -> bool:
        done, now, until, sure = len(medians[BEFORE]), self._clock(), self._until, False
        if not done:
            self._begin = self._note_at = now
            self._look_at = float(stats.LEAST_ROUNDS)
        spent = (now - self._begin) / (until.seconds / until.loads)
        if now >= self._note_at:  # not each time: who shows it would be at work while the device is timed
            self._note_at = now + _NOTE_EVERY_S
            self._note(len(self.loads), done, min(1.0, spent))
        if done >= self._look_at:
            self._look_at = _LOOK_AGAIN * done
            low, high = stats.ratio_in_turns(medians[BEFORE], medians[AFTER], until.confidence)[1]
            sure = math.log(high / low) / 2 <= until.precision * math.sqrt(until.loads)
        goes_on = done < self._least() or not (spent >= 1 or sure or done >= _MOST)
        if not goes_on:
            self.loads.append(done)
            self._seconds += now - self._begin
        return goes_on

    def _least(self) -> int:
        """Rounds of this load: its share of those that are missing."""
        missing = stats.LEAST_ROUNDS - sum(self.loads)
        return max(1, math.ceil(missing / (self._until.loads - len(self.loads))))
