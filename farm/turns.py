"""Ways to compute the same, measured in turns, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Block = Callable[[int], Sequence[float]]  # the seconds of each of so many inferences, one after the other
Medians = Mapping[str, Sequence[float]]  # seconds of an inference by name, one a round

_MOST = 200  # inferences of a block that count


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a turn is: about `block_s` of inferences that count, `fewest` of them at the least, after `warm` ones that do not, as caches
    and threads are still the other's."""

    block_s: float = 0.06
    fewest: int = 3
    warm: int = 2


def block_of(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Block:
    """What times an inference in this process."""

    def block(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            begin = clock()
            run()
            seconds.append(clock() - begin)
        return seconds

    return block


def so_often(rounds: int, note: Callable[[int], None] = lambda _: None) -> Callable[[Medians], bool]:
    """What goes on for so many rounds; `note` hears which one begins."""

    def goes_on(medians: Medians) -> bool:
        done = len(next(iter(medians.values())))
        if done < rounds:
            note(done)
        return done < rounds

    return goes_on


def in_turns(blocks: Mapping[str, Block], goes_on: Callable[[Medians], bool], pace: Pace = Pace()) -> dict[str, list[float]]:
    """The median seconds of an inference of each, for each round. Another one begins while `goes_on` says so of those that are done; every
    second is in reverse, so that what drifts favours none."""
    counts = {}
    for name, block in blocks.items():
        block(1)
        counts[name] = pace.warm + max(pace.fewest, min(_MOST, int(pace.block_s / max(min(block(2)), 1e-7))))
    medians: dict[str, list[float]] = {name: [] for name in blocks}
    order = list(blocks)
    while goes_on(medians):
        for name in order:
            medians[name].append(statistics.median(blocks[name](counts[name])[pace.warm :]))
        order.reverse()
    return medians
