"""Ways to compute the same, measured in turns, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Block = Callable[[int], Sequence[float]]  # the seconds of each of so many inferences, one after the other

_BLOCK_S = 0.06
_WARM = 2  # inferences of a block that do not count: caches and threads are still the other's
_FEWEST, _MOST = 3, 200  # inferences of a block that do


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


def in_turns(blocks: Mapping[str, Block], rounds: int, note: Callable[[int], None] = lambda _: None) -> dict[str, list[float]]:
    """The median seconds of an inference of each, for each round. `note` hears which round begins."""
    counts = {}
    for name, block in blocks.items():
        block(1)
        counts[name] = _WARM + max(_FEWEST, min(_MOST, int(_BLOCK_S / max(min(block(2)), 1e-7))))
    medians: dict[str, list[float]] = {name: [] for name in blocks}
    for index in range(rounds):
        note(index)
        for name, block in blocks.items():
            medians[name].append(statistics.median(block(counts[name])[_WARM:]))
    return medians
