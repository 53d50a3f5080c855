"""What to try next, and what was found: the search for the best choice of each kernel, without devices and without waiting."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm import stats
from farm.types import Batch, Candidate, Proposals, Task

Wanted = tuple[tuple[str, Candidate | Proposals], ...]

_AT_ONCE = 7  # candidates of a kernel that are built and measured together, beside the best so far
_FRUITLESS = 3  # batches in a row without a gain: a kernel is done
_BETTER = 0.98  # of the time of the best so far: less of a gain is noise
_FRUITLESS_OPEN = 8  # the same of an open task: few of what is proposed are any good
_SMALL = 0.002  # of the time of all kernels: not worth the search
_SMALL_OPEN = 0.01  # the same of an open task
_LIKENESS = 0.05  # by how much a candidate's prediction is trusted more for each part that it shares with the best so far
_ROUNDS = 3  # of measurements at least, beside the first look
_STRIKES = 2  # deaths of a device while it tried a candidate for the first time


@dataclass
class Kernel:
    """A workload of the model, and how far its search is. Seconds are 0 before they are known; `busy` while a batch of it is under way."""

    task: Task
    default_s: float = 0.0
    best_s: float = 0.0
    best: Candidate = field(init=False)
    runs: int = 0
    tried: dict[str, float] = field(default_factory=dict)  # by the words of the choice: its time over that of the default
    proposed: dict[str, Candidate] = field(default_factory=dict)  # of an open task: what was tried, by its words
    skipped: dict[str, str] = field(default_factory=dict)  # and why
    strikes: dict[str, int] = field(default_factory=dict)
    fruitless: int = 0
    busy: bool = False
    recorded: bool = False

    def __post_init__(self) -> None:
        self.best = self.task.default

    @property
    def speedup(self) -> float:
        return self.default_s / self.best_s if self.best_s else 1.0

    @property
    def total_s(self) -> float:
        """In one inference, by the best choice."""
        return self.task.calls * self.best_s

    @property
    def left(self) -> list[Candidate]:
        """What was not tried, the most promising first: by prediction, and by likeness to the best so far."""
        return sorted(
            (one for one in self.task.candidates if one.words not in self.tried and one.words not in self.skipped),
            key=lambda one: one.predicted * (1 - _LIKENESS * _shared(one, self.best)),
        )

    @property
    def progress(self) -> str:
        """How many candidates were tried, and of how many, where that is known."""
        return f"{len(self.tried)}" if self.task.open else f"{len(self.tried)}/{len(self.task.candidates)}"

    @property
    def patience(self) -> int:
        """Batches in a row without a gain after which it is done."""
        return _FRUITLESS_OPEN if self.task.open else _FRUITLESS

    @property
    def worth(self) -> float:
        """The least share of the time of all kernels that is worth the search."""
        return _SMALL_OPEN if self.task.open else _SMALL

    def wanted(self) -> Wanted:
        """The best so far, with what to try beside it."""
        more: list[Candidate | Proposals] = [*self.left[:_AT_ONCE]]
        if self.task.open:
            tried = tuple((candidate, self.tried[words]) for words, candidate in self.proposed.items())
            more = [Proposals(_AT_ONCE, tried, frozenset({*self.tried, *self.skipped}), len(self.tried) + len(self.skipped))]
        return tuple((self.task.workload, one) for one in (self.best, *more))


@dataclass
class Search:
    """All kernels of a model."""

    kernels: list[Kernel]

    def share(self, kernel: Kernel) -> float:
        """Of the time of all kernels that are searched."""
        total = sum(one.total_s for one in self.kernels)
        return kernel.total_s / total if total else 0.0

    def next(self) -> Wanted:
        """The candidates to measure next; none when nothing is left to gain, or all of it is under way. Marks their kernels busy."""
        unknown = [kernel for kernel in self.kernels if not kernel.default_s and not kernel.busy and not kernel.skipped]
        if unknown:
            for kernel in unknown:
                kernel.busy = True
            return tuple(pair for kernel in unknown for pair in _baseline(kernel.task))
        promising = [kernel for kernel in self.kernels if not kernel.busy and self._worth(kernel)]
        if not promising:
            return ()
        kernel = max(promising, key=lambda one: one.total_s * 0.5**one.fruitless)
        kernel.busy = True
        return kernel.wanted()

    def _worth(self, kernel: Kernel) -> bool:
        more = kernel.task.open or kernel.left
        return bool(kernel.default_s and kernel.fruitless < kernel.patience and self.share(kernel) >= kernel.worth and more)

    def take(self, batch: Batch, rounds: Sequence[Mapping[int, float]], wrong: Mapping[int, str]) -> list[Kernel]:
        """Take in what was measured of a batch, all of it or what there is, and return the kernels of which something was learnt.

        The first of a kernel's variants is the best so far; the others are judged by their times over its time, round by round.
        """
        learnt = []
        for kernel in self.kernels:
            mine = [index for index, variant in enumerate(batch.variants) if variant.workload == kernel.task.workload]
            if not mine:
                continue
            kernel.busy = False
            kernel.skipped.update({batch.variants[index].candidate.words: wrong[index] for index in mine if index in wrong})
            if mine[0] in wrong:
                kernel.fruitless = kernel.patience
            if rounds and mine[0] in rounds[0] and _judge(kernel, batch, mine, rounds):
                learnt.append(kernel)
        return learnt

    def give_up(self, wanted: Wanted, why: str) -> None:
        """Candidates that cannot be built together: all but the first of each kernel, which was measured before, are skipped."""
        for kernel in self.kernels:
            if mine := [candidate for key, candidate in wanted if key == kernel.task.workload]:
                kernel.busy = False
                kernel.fruitless += any(isinstance(one, Proposals) for one in mine)
                kernel.skipped.update({one.words: why for one in (mine[1:] or mine) if isinstance(one, Candidate)})

    def strike(self, batch: Batch, index: int, why: str) -> str:
        """A device died while it tried a variant. Returns the variant's name where that has happened too often, and it is skipped."""
        variant = batch.variants[index]
        kernel = next(one for one in self.kernels if one.task.workload == variant.workload)
        words = variant.candidate.words
        kernel.strikes[words] = kernel.strikes.get(words, 0) + 1
        if kernel.strikes[words] < _STRIKES:
            return ""
        kernel.skipped[words] = why
        if words == kernel.best.words:
            kernel.fruitless = kernel.patience  # nothing to judge the others by
        return f"{words} of {variant.workload}"


def _judge(kernel: Kernel, batch: Batch, mine: Sequence[int], rounds: Sequence[Mapping[int, float]]) -> bool:
    first, *later = rounds
    anchor, default_ratio = mine[0], kernel.best_s / kernel.default_s if kernel.default_s else 1.0
    if anchor not in later[0] if later else True:
        later = []
    known = bool(kernel.default_s)
    seconds = statistics.median([one[anchor] for one in later] or [first[anchor]])
    if len(later) < _ROUNDS:
        return False
    if not kernel.default_s:
        kernel.default_s = kernel.best_s = seconds
    kernel.runs = len(later)
    kernel.tried.setdefault(batch.variants[anchor].candidate.words, default_ratio)
    best, gain = None, _BETTER
    for index in mine[1:]:
        if index not in first:
            continue
        ratios = [one[index] / one[anchor] for one in later if index in one] or [first[index] / first[anchor]]
        ratio = statistics.median(ratios)
        candidate = batch.variants[index].candidate
        kernel.tried[candidate.words] = ratio * default_ratio
        if kernel.task.open:
            kernel.proposed[candidate.words] = candidate
        if len(ratios) >= _ROUNDS and ratio < gain and stats.median_interval(ratios)[1] < 1:
            best, gain = candidate, ratio
    if best is not None:
        kernel.best, kernel.best_s, kernel.fruitless = best, kernel.best_s * gain, 0
    elif known or len(mine) > 1:
        kernel.fruitless += 1
    return True


def _baseline(task: Task) -> Wanted:
    """What is chosen without a record, and what is chosen now."""
    chosen = (task.default,) if task.chosen == task.default else (task.default, task.chosen)
    return tuple((task.workload, candidate) for candidate in chosen)


def _shared(one: Candidate, other: Candidate) -> int:
    """How many parts two choices have in common."""
    return sum(left == right for left, right in zip(_parts(one), _parts(other), strict=True))


def _parts(candidate: Candidate) -> tuple[object, ...]:
    choice = candidate.choice
    tile = choice["tile"]
    return (choice["method"], choice["order"], *tile) if isinstance(tile, list) else (choice["method"], choice["order"])
