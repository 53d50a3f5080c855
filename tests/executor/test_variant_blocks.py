"""A block of a variant has so many calls that what happens once a block does not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.executor.tuning import _Race
from farm.types import Candidate, CompiledCandidate, CompiledCandidateBatch

CALL_S = 40e-6
ARGUMENTS = ("x",)


class MachineWithPauses:
    """A device whose timer shows the pause before a block's first call, as for asleep threads."""

    def __init__(self, pauses_s: list[float]) -> None:
        self._pauses_s = pauses_s
        self.calls: list[int] = []

    def set_input(self, function: str, *arguments: object) -> None:
        assert arguments == ("tensor",)

    def invoke_stateful(self, function: str) -> None:
        pass

    def outputs(self, function: str) -> list[np.ndarray[Any, Any]]:
        return [np.ones(3, "float32")]

    def timer(self, number: int, repeat: int) -> Callable[[str], list[float]]:
        assert repeat == 1
        self.calls.append(number)
        pause = self._pauses_s.pop(0) if len(self._pauses_s) > 1 else self._pauses_s[0]
        return lambda function: [CALL_S + pause / number]


class Notes:
    """The context of a task, whose notes nobody reads."""

    def note(self, note: object) -> None:
        pass


def race(machine: MachineWithPauses) -> _Race:
    candidate = Candidate({"method": "direct", "tile": [1, 1, 8], "order": "pixels"}, "1x1x8", 1.0)
    variant = CompiledCandidate("convolution", candidate, "variant_0", ARGUMENTS)
    batch = CompiledCandidateBatch(Path("library.so"), Path("arrays.npz"), (variant,), ())
    tensors: Any = {"x": "tensor"}
    context: Any = Notes()
    device: Any = machine
    return _Race(context, batch, device, tensors)


@pytest.mark.parametrize(
    "pauses_s",
    [[0.0005], [0.02, 0.0], [0.02, 0.02, 0.0005]],
    ids=["each block", "first call", "first two calls"],
)
def test_a_pause_before_the_first_call_is_no_part_of_the_time(pauses_s):
    machine = MachineWithPauses(list(pauses_s))
    measured = race(machine)
    rounds = [measured.block(0) for _ in range(9)]
    assert np.median(rounds) == pytest.approx(CALL_S, rel=0.15)
    assert machine.calls[-1] * CALL_S > 0.004, "seconds of a block"


def test_a_slow_kernel_is_called_once_a_look_and_a_block():
    machine = MachineWithPauses([0.5])
    race(machine).block(0)
    assert machine.calls == [1, 1]
