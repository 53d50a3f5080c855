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
    loads, facts, deadline = [], {}, Deadline(deadline_s)
    for number in range(until.loads):
        with ExitStack() as stack:
            loaded, link = _load(stack, desk, device, sides, agent, deadline.remaining)
            stack.enter_context(quiet(desk, device))
            medians = in_turns(dict(zip(found, map(_block, loaded), strict=True)), Enough(until, _noting(desk, until, number)), PACE)
            facts = facts_of(link)
        loads.append(len(medians[BEFORE]))
        for name, seconds in medians.items():
            found[name] += seconds
    return Paired(tuple(found[BEFORE]), tuple(found[AFTER]), facts, tuple(loads))


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
        agreement = stats.agreement(one.outputs(), expected, side.limits)
        if not agreement.right:
            why = stats.verdict(False, agreement, None)[1]
            fix = f"farm bisect --device {device.name} {side.artifact.model}"
            raise WrongAnswer(f"{side.name} answers wrong on {device.name}", why, fix)
    return loaded, link


def _noting(desk: Desk, until: Until, load: int) -> Callable[[int, float], None]:
    """What tells of the rounds of a load."""

    def note(rounds: int, share: float) -> None:
        which = f"load {load + 1} of {until.loads}, " if until.loads > 1 else ""
        desk.note(Progress(Stage.MEASURING, f"{which}round {rounds + 1}", (load + share) / until.loads))

    return note


def _block(loaded: Loaded) -> Block:
    return lambda count: loaded.time(1, count)


class Enough:
    """Whether a load goes on: until it has its share of the time, or of how sure the ratio is to be. `note` hears, now and then, how many
    rounds there are and which share of the time is over."""

    def __init__(self, until: Until, note: Callable[[int, float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._until, self._note, self._clock = until, note, clock
        self._begin = self._note_at = clock()
        self._look_at = float(stats.LEAST_ROUNDS)
        self._sure = False

    def __call__(self, medians: Medians) -> bool:
        done, now, until = len(medians[BEFORE]), self._clock(), self._until
        spent = (now - self._begin) / (until.seconds / until.loads)
        if now >= self._note_at:  # not each time: who shows it would be at work while the device is timed
            self._note_at = now + _NOTE_EVERY_S
            self._note(done, min(1.0, spent))
        if done >= self._look_at:
            self._look_at = _LOOK_AGAIN * done
            low, high = stats.ratio_in_turns(medians[BEFORE], medians[AFTER], until.confidence)[1]
            self._sure = math.log(high / low) / 2 <= until.precision * math.sqrt(until.loads)
        return done < stats.LEAST_ROUNDS or not (spent >= 1 or self._sure or done >= _MOST)
