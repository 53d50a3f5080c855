"""Measure variants of kernels on a device, interleaved. Times are by the device's clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import transports
from farm.executor.loading import pause_other_workers, read_device_facts, upload_file
from farm.executor.threads import configure_threads_and_gpu
from farm.processes.workers import TaskContext
from farm.rpc.blocking_session import Tensor
from farm.rpc.value_types import CPU
from farm.rpc.virtual_machine import RemoteVirtualMachine
from farm.sandbox.array_files import read_arrays
from farm.transports.agent import answer_validation as agent_answers
from farm.types import (
    CompiledCandidateBatch,
    CompiledCandidateStarted,
    Device,
    Progress,
    Stage,
    TuningRoundTimings,
    WrongCompiledCandidate,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# Seconds of one kernel per block: long compared with the clock's resolution and with the switch
# from one kernel to the next.
_BLOCK_S = 0.005
# Least seconds of a variant's first look. A single call says little: its threads may have slept,
# and its caches may be cold.
_LOOK_S = 0.001
_LEAST_S = 1e-7  # of a call, for a clock that says less
_ROUNDS = 9
_BEHIND = 1.3  # times the best of its workload: slower variants are dropped after the first look
_TOLERANCE = 1e-3  # of the largest value: for another order of summation and for Winograd


def measure_variants(
    context: TaskContext,
    device: Device,
    batch: CompiledCandidateBatch,
    agent: Path | None,
    deadline_s: float,
) -> None:
    """Measure the variants of a batch.

    All results are reported as notes while it runs, so that none is lost if the device dies: the
    device's facts (a dictionary), Trying, Wrong, and one Round per round.
    """
    with transports.open(device, agent, context.scratch, deadline_s, context.ask) as link:
        configure_threads_and_gpu(link, device)
        context.note(read_device_facts(link))
        context.note(Progress(Stage.UPLOADING, f"{len(batch.variants)} variants"))
        upload_file(link, batch.library, batch.library.name)
        machine = RemoteVirtualMachine(link.session.load_module(batch.library.name), CPU)
        tensors = {
            name: link.session.tensor(value) for name, value in read_arrays(batch.arrays).items()
        }
        context.note(Progress(Stage.MEASURING, f"{len(batch.variants)} variants"))
        with pause_other_workers(context, device):
            race = _Race(context, batch, machine, tensors)
            for _ in range(_ROUNDS):
                context.note(
                    TuningRoundTimings({index: race.block(index) for index in race.counts})
                )


class _Race:
    """The variants that are still worth measuring, and how many calls of each make a block.

    Each variant has run once, and its answer was right.
    """

    def __init__(
        self,
        context: TaskContext,
        batch: CompiledCandidateBatch,
        machine: RemoteVirtualMachine,
        tensors: dict[str, Tensor],
    ) -> None:
        self._machine, self._batch, self._tensors = machine, batch, tensors
        self.counts: dict[int, int] = {}
        self._fastest: dict[int, float] = {}  # seconds of a call, over a block
        answers: dict[str, list[Array]] = {}
        first: dict[int, float] = {}
        for index, variant in enumerate(batch.variants):
            context.note(CompiledCandidateStarted(index))
            self._feed(index)
            machine.invoke_stateful(variant.function)
            answer = machine.outputs(variant.function)
            pairs = zip(answer, answers.setdefault(variant.workload, answer), strict=True)
            if why := next(filter(None, (_differs(*pair) for pair in pairs)), ""):
                context.note(WrongCompiledCandidate(index, why))
                continue
            first[index] = self._look(index)
        anchors: dict[str, int] = {}  # the first of each workload: the baseline, which is kept
        best: dict[str, float] = {}
        for index, seconds in first.items():
            workload = batch.variants[index].workload
            anchors.setdefault(workload, index)
            best[workload] = min(seconds, best.get(workload, seconds))
        context.note(TuningRoundTimings(first))
        for index, seconds in first.items():
            workload = batch.variants[index].workload
            if seconds > _BEHIND * best[workload] and index != anchors[workload]:
                del self.counts[index]
            else:
                self.counts[index] = _calls(_BLOCK_S, seconds)

    def _look(self, index: int) -> float:
        """Return the mean seconds of a call over as many calls as take `_LOOK_S`."""
        self.counts[index] = 1
        while (calls := _calls(_LOOK_S, self._seconds(index))) > self.counts[index]:
            self.counts[index] = calls
        return self._fastest[index]

    def block(self, index: int) -> float:
        """Return the mean seconds of a call over one block.

        The next block has more calls if this one was quicker than those before.
        """
        self._feed(index)
        seconds = self._seconds(index)
        self.counts[index] = max(self.counts[index], _calls(_BLOCK_S, self._fastest[index]))
        return seconds

    def _feed(self, index: int) -> None:
        variant = self._batch.variants[index]
        self._machine.set_input(
            variant.function, *(self._tensors[name] for name in variant.arguments)
        )

    def _seconds(self, index: int) -> float:
        timer = self._machine.timer(self.counts[index], 1)
        [seconds] = agent_answers.check_durations(
            "the timer", timer(self._batch.variants[index].function), 1
        )
        self._fastest[index] = min(seconds, self._fastest.get(index, seconds))
        return seconds


def _calls(block_s: float, seconds: float) -> int:
    """Return how many calls of so many seconds each make a block."""
    return max(1, round(block_s / max(seconds, _LEAST_S)))


def _differs(answer: Array, first: Array) -> str:
    """Return how an answer differs from the first variant's; "" if it is close enough."""
    import numpy as np

    if not np.isfinite(answer).all():
        return "its answer has NaN or infinity"
    # The difference of two 8-bit integers would wrap around.
    answer, first = (value.astype("float64") for value in (answer, first))
    difference, bar = (
        float(np.abs(answer - first).max(initial=0)),
        _TOLERANCE * max(1.0, float(np.abs(first).max(initial=0))),
    )
    return f"its answer is off by {difference:.2g}" if difference > bar else ""
