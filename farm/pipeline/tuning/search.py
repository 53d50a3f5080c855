"""Decide what to try next and judge the results, without devices and without waiting."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm import stats
from farm.types import Candidate, CompiledCandidateBatch, ProposalRequest, Task

BatchRequest = tuple[tuple[str, Candidate | ProposalRequest], ...]

_AT_ONCE = 7  # candidates of a kernel per batch, besides the best so far
_FRUITLESS = 3  # batches in a row without a gain, after which a kernel is done
_BETTER = 0.98  # relative to the time of the best so far: a smaller gain is noise
_FRUITLESS_OPEN = 8  # the same for an open task: few proposals are good
_SMALL = 0.002  # share of the time of all kernels below which a kernel is not searched
_SMALL_OPEN = 0.01  # the same for an open task
# Reduction of a candidate's predicted time for each part that it shares with the best so far.
_LIKENESS = 0.05
_ROUNDS = 3  # of measurements at least, besides the first look
_STRIKES = 2  # deaths of a device during a candidate's first run, after which it is skipped


@dataclass
class KernelSearch:
    """A workload of the model and the state of its search.

    Seconds are 0 until they are measured. `busy` is set while a batch of the kernel is under way.
    Four mappings are keyed by the text of a choice: `tried` holds its time over the default's,
    `proposed` the tried candidates of an open task, `skipped` the reasons, `strikes` the deaths of
    a device.
    """

    task: Task
    default_s: float = 0.0
    best_s: float = 0.0
    best: Candidate = field(init=False)
    runs: int = 0
    tried: dict[str, float] = field(default_factory=dict)
    proposed: dict[str, Candidate] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    fruitless: int = 0
    busy: bool = False
    recorded: bool = False

    def __post_init__(self) -> None:
        self.best = self.task.default

    @property
    def speedup(self) -> float:
        """Return the default's time over that of the best choice; 1 before it is measured."""
        return self.default_s / self.best_s if self.best_s else 1.0

    @property
    def total_s(self) -> float:
        """Return the seconds in one inference with the best choice."""
        return self.task.calls * self.best_s

    @property
    def left(self) -> list[Candidate]:
        """Return the candidates not tried yet, the most promising first.

        They are ordered by predicted time, reduced for their likeness to the best so far.
        """
        return sorted(
            (
                one
                for one in self.task.candidates
                if one.words not in self.tried and one.words not in self.skipped
            ),
            key=lambda one: one.predicted * (1 - _LIKENESS * _shared(one, self.best)),
        )

    @property
    def progress(self) -> str:
        """Return how many candidates were tried and, if that is known, of how many."""
        return (
            f"{len(self.tried)}"
            if self.task.open
            else f"{len(self.tried)}/{len(self.task.candidates)}"
        )

    @property
    def patience(self) -> int:
        """Return the number of batches in a row without a gain after which the kernel is done."""
        return _FRUITLESS_OPEN if self.task.open else _FRUITLESS

    @property
    def worth(self) -> float:
        """Return the smallest share of the time of all kernels that is worth the search."""
        return _SMALL_OPEN if self.task.open else _SMALL

    def wanted(self) -> BatchRequest:
        """Return the next batch: the best so far and the candidates to measure against it."""
        more: list[Candidate | ProposalRequest] = [*self.left[:_AT_ONCE]]
        if self.task.open:
            tried = tuple(
                (candidate, self.tried[words]) for words, candidate in self.proposed.items()
            )
            more = [
                ProposalRequest(
                    _AT_ONCE,
                    tried,
                    frozenset({*self.tried, *self.skipped}),
                    len(self.tried) + len(self.skipped),
                )
            ]
        return tuple((self.task.workload, one) for one in (self.best, *more))


@dataclass
class TuningSearch:
    """The search over all kernels of a model."""

    kernels: list[KernelSearch]

    def share(self, kernel: KernelSearch) -> float:
        """Return a kernel's share of the time of all kernels that are searched."""
        total = sum(one.total_s for one in self.kernels)
        return kernel.total_s / total if total else 0.0

    def next(self) -> BatchRequest:
        """Return the candidates to measure next, and mark their kernels busy.

        Returns an empty tuple if nothing is left to gain or everything left is under way.
        """
        unknown = [
            kernel
            for kernel in self.kernels
            if not kernel.default_s and not kernel.busy and not kernel.skipped
        ]
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

    def _worth(self, kernel: KernelSearch) -> bool:
        more = kernel.task.open or kernel.left
        return bool(
            kernel.default_s
            and kernel.fruitless < kernel.patience
            and self.share(kernel) >= kernel.worth
            and more
        )

    def take(
        self,
        batch: CompiledCandidateBatch,
        rounds: Sequence[Mapping[int, float]],
        wrong: Mapping[int, str],
    ) -> list[KernelSearch]:
        """Process the measurements of a batch, complete or not; return the kernels with a result.

        `rounds` holds seconds per call by index of the variant, one mapping per round; `wrong` the
        reasons of variants with a wrong answer. The first variant of a kernel is its best so far;
        the others are judged by their time over its time, round by round.
        """
        learnt = []
        for kernel in self.kernels:
            mine = [
                index
                for index, variant in enumerate(batch.variants)
                if variant.workload == kernel.task.workload
            ]
            if not mine:
                continue
            kernel.busy = False
            kernel.skipped.update(
                {
                    batch.variants[index].candidate.words: wrong[index]
                    for index in mine
                    if index in wrong
                }
            )
            if mine[0] in wrong:
                kernel.fruitless = kernel.patience
            if rounds and mine[0] in rounds[0] and _judge(kernel, batch, mine, rounds):
                learnt.append(kernel)
        return learnt

    def give_up(self, wanted: BatchRequest, why: str) -> None:
        """Skip candidates that cannot be built together.

        The first of each kernel was measured before and is skipped only if it is the kernel's only
        one.
        """
        for kernel in self.kernels:
            if mine := [candidate for key, candidate in wanted if key == kernel.task.workload]:
                kernel.busy = False
                kernel.fruitless += any(isinstance(one, ProposalRequest) for one in mine)
                kernel.skipped.update(
                    {one.words: why for one in (mine[1:] or mine) if isinstance(one, Candidate)}
                )

    def strike(self, batch: CompiledCandidateBatch, index: int, why: str) -> str:
        """Record that a device died while it ran a variant for the first time.

        Returns the variant's name if that has happened too often, so that it is skipped; else "".
        """
        variant = batch.variants[index]
        kernel = next(one for one in self.kernels if one.task.workload == variant.workload)
        words = variant.candidate.words
        kernel.strikes[words] = kernel.strikes.get(words, 0) + 1
        if kernel.strikes[words] < _STRIKES:
            return ""
        kernel.skipped[words] = why
        if words == kernel.best.words:
            kernel.fruitless = kernel.patience  # there is no baseline left to judge the others by
        return f"{words} of {variant.workload}"


def _judge(
    kernel: KernelSearch,
    batch: CompiledCandidateBatch,
    mine: Sequence[int],
    rounds: Sequence[Mapping[int, float]],
) -> bool:
    """Update a kernel with the times of its variants; return True if there were enough rounds.

    A variant replaces the best so far if its median ratio to it is below `_BETTER` and the interval
    of that ratio is below 1.
    """
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
        ratios = [one[index] / one[anchor] for one in later if index in one] or [
            first[index] / first[anchor]
        ]
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


def _baseline(task: Task) -> BatchRequest:
    """Return the default choice of a task and, if it differs, the current one."""
    chosen = (task.default,) if task.chosen == task.default else (task.default, task.chosen)
    return tuple((task.workload, candidate) for candidate in chosen)


def _shared(one: Candidate, other: Candidate) -> int:
    """Return how many parts two choices have in common."""
    return sum(left == right for left, right in zip(_parts(one), _parts(other), strict=True))


def _parts(candidate: Candidate) -> tuple[object, ...]:
    """Return the parts of a choice: method, order and the numbers of the tile."""
    choice = candidate.choice
    tile = choice["tile"]
    return (
        (choice["method"], choice["order"], *tile)
        if isinstance(tile, list)
        else (choice["method"], choice["order"])
    )
