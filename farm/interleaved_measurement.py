"""Interleaved measurement of several implementations: disturbances affect all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# runs this number of inferences one after the other and returns the seconds of each
Block = Callable[[int], Sequence[float]]
Medians = Mapping[str, Sequence[float]]  # seconds of an inference by name, one per round

# largest number of measured inferences in a block
_MOST = 200


@dataclass(frozen=True, slots=True)
class BlockLength:
    """The length of a block of inferences.

    A block has `warm` inferences that are not counted, because caches and threads still belong to
    the previous block, and then about `block_s` seconds of measured inferences, at least `fewest`.
    """

    block_s: float = 0.06
    fewest: int = 3
    warm: int = 2


def make_in_process_inference_timer(
    run: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> Block:
    """Return a function that measures single inferences in this process."""

    def block(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            begin = clock()
            run()
            seconds.append(clock() - begin)
        return seconds

    return block


def continue_for_rounds(
    rounds: int, note: Callable[[int], None] = lambda _: None
) -> Callable[[Medians], bool]:
    """Return a function that tells whether to continue: for `rounds` rounds.

    It calls `note(i)` at the start of round i.
    """

    def goes_on(medians: Medians) -> bool:
        done = len(next(iter(medians.values())))
        if done < rounds:
            note(done)
        return done < rounds

    return goes_on


def measure_interleaved(
    blocks: Mapping[str, Block],
    goes_on: Callable[[Medians], bool],
    pace: BlockLength = BlockLength(),
) -> dict[str, list[float]]:
    """Measure all `blocks` interleaved; return each one's median seconds per inference, per round.

    Rounds continue while `goes_on(medians)`. Every other round runs in reverse order, so that drift
    (temperature, clock) cancels.
    """
    counts = {}
    for name, block in blocks.items():
        block(1)
        counts[name] = pace.warm + max(
            pace.fewest, min(_MOST, int(pace.block_s / max(min(block(2)), 1e-7)))
        )
    medians: dict[str, list[float]] = {name: [] for name in blocks}
    order = list(blocks)
    while goes_on(medians):
        for name in order:
            medians[name].append(statistics.median(blocks[name](counts[name])[pace.warm :]))
        order.reverse()
    return medians
