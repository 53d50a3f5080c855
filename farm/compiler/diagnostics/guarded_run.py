"""Run a model's kernels one by one, with each tensor and workspace against a guard page.

A kernel runs once for each side of the guard and each number of threads, on the same inputs. It has
to write all of its outputs, nothing else, and the same bits each time. What lies in memory before
differs with the side, so an element that is not written differs, too. A kernel that touches the
guard ends the process: the place that it had come to is in a file, and another run with this
kernel in `loose` goes on behind it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.compiler.diagnostics.guarded_memory import (
    FILL,
    GuardedBuffer,
    GuardedWorkspaces,
    GuardSide,
    tensor_in_guarded_buffer,
)
from farm.compiler.diagnostics.reference_steps import ReferenceStep
from farm.compiler.parameter_files import array_bytes, dtype_by_name

Array = np.ndarray[Any, Any]
THREADS = (1, 2, 3)
# TVM has one thread for each two cores unless this says more
THREADS_VARIABLE, MOST_THREADS = "TVM_NUM_THREADS", str(max(THREADS))
_PLACE, _MOST_CHARACTERS = "place.json", 200
_SIDES = (GuardSide.END, GuardSide.BEGIN)


@dataclass(frozen=True, slots=True)
class KernelCallSite:
    """The call of a kernel: the number of its step, the side of the guard and the threads."""

    step: int
    guard: str
    threads: int


@dataclass(frozen=True, slots=True)
class KernelFault:
    """A mistake of a kernel, where it was seen first. `what` is a sentence without its subject."""

    place: KernelCallSite
    kernel: str
    what: str


@dataclass(frozen=True, slots=True)
class GuardedRunResult:
    """The findings about the kernels of a model, and the model's outputs."""

    kernels: int
    findings: tuple[KernelFault, ...]
    outputs: tuple[Array, ...]


def run_guarded(
    library: Path,
    steps: Sequence[ReferenceStep],
    outputs: Sequence[int],
    values: Mapping[int, Array],
    folder: Path,
    loose: frozenset[int] = frozenset(),
    note: Callable[[int], None] = lambda _: None,
) -> GuardedRunResult:
    """Run the steps of a model with guards, and return what was found and the model's outputs.

    `library` is the linked library with the kernels, `outputs` are the numbers of the outputs, and
    `values` are the inputs and parameters. `note` is called with the number of each step. The place
    of each call is written into `folder` before it, see `last_call_site`. Steps in `loose` run
    once, with room around their tensors. Must be called before this process has run anything in
    TVM's threads.
    """
    os.environ[THREADS_VARIABLE] = MOST_THREADS
    import tvm

    module = tvm.runtime.load_module(str(library))
    calls = _Calls(
        GuardedWorkspaces(str(library)), tvm.get_global_func("runtime.config_threadpool")
    )
    known = dict(values)
    uses = Counter(number for step in steps for number in step.tensors)
    uses.update(outputs)
    findings: list[KernelFault] = []
    for number, step in enumerate(steps):
        note(number)
        given = [known[one] if isinstance(one, int) else one for one in step.arguments]
        places = [
            KernelCallSite(number, str(guard), count) for guard in _SIDES for count in THREADS
        ]
        if number in loose:
            places = [KernelCallSite(number, str(GuardSide.NONE), THREADS[0])]
        first: list[Array] = []
        for place in places:
            _write(folder, place)
            results, said = calls.call(module.get_function(step.kernel, True), given, step, place)
            first = first or results
            said = said or _difference(results, first, place, places[0])
            if said:
                findings.append(KernelFault(place, step.kernel, said))
                break
        known.update(
            {which: value for (which, _, _), value in zip(step.outputs, first, strict=True)}
        )
        for which in step.tensors:
            uses[which] -= 1
            if not uses[which]:
                known.pop(which, None)
    (folder / _PLACE).unlink(missing_ok=True)
    return GuardedRunResult(len(steps), tuple(findings), tuple(known[number] for number in outputs))


class _Calls:
    """Calls kernels with guarded memory."""

    def __init__(
        self, workspaces: GuardedWorkspaces, use_threads: Callable[[int, int], None]
    ) -> None:
        self._workspaces, self._use_threads = workspaces, use_threads

    def call(
        self,
        function: Callable[..., None],
        given: Sequence[Array],
        step: ReferenceStep,
        place: KernelCallSite,
    ) -> tuple[list[Array], str]:
        """Return the outputs of a call, and what the kernel wrote beside them; "" for nothing."""
        guard = GuardSide(place.guard)
        self._workspaces.guard = guard
        forms = [(value.shape, value.dtype) for value in given]
        forms += [(shape, dtype_by_name(dtype)) for _, shape, dtype in step.outputs]
        memories = [
            GuardedBuffer(math.prod(shape) * dtype.itemsize, guard) for shape, dtype in forms
        ]
        for memory, value in zip(memories, given, strict=False):
            memory.bytes()[:] = array_bytes(value)
        tensors = [
            tensor_in_guarded_buffer(memory, shape, dtype.name)
            for memory, (shape, dtype) in zip(memories, forms, strict=True)
        ]
        self._use_threads(0, place.threads)
        function(*tensors)
        results = [
            memory.bytes().copy().view(dtype).reshape(shape)
            for memory, (shape, dtype) in zip(
                memories[len(given) :], forms[len(given) :], strict=True
            )
        ]
        said = self._said(memories, given)
        del tensors
        for memory in memories:
            memory.free()
        return results, said

    def _said(self, memories: Sequence[GuardedBuffer], given: Sequence[Array]) -> str:
        beside = [(memory.size, "tensor", memory.touched()) for memory in memories]
        beside += [(size, "workspace", at) for size, at in self._workspaces.take_touched()]
        for size, kind, at in beside:
            if at is not None:
                return f"writes byte {at} of a {kind} of {size} bytes"
        for memory, value in zip(memories, given, strict=False):
            if not np.array_equal(memory.bytes(), np.frombuffer(array_bytes(value), np.uint8)):
                return "writes into one of its inputs"
        return ""


def _difference(
    results: Sequence[Array],
    first: Sequence[Array],
    place: KernelCallSite,
    place_of_first: KernelCallSite,
) -> str:
    """Return how results differ from those of the first call; "" if they do not."""
    for value, other in zip(results, first, strict=True):
        bits, others = (
            np.frombuffer(array_bytes(one), np.uint8).reshape(-1, value.dtype.itemsize)
            for one in (value, other)
        )
        if np.array_equal(bits, others):
            continue
        places = np.flatnonzero((bits != others).any(axis=1))
        much = f"{len(places)} of {value.size} elements, the first is {int(places[0])}"
        fills = FILL[GuardSide(place.guard)], FILL[GuardSide(place_of_first.guard)]
        if (bits[places] == fills[0]).all() and (others[places] == fills[1]).all():
            return f"does not write all of its output: {much}"
        if place.threads != place_of_first.threads:
            return f"computes other bits than with {place_of_first.threads} thread: {much}"
        return f"depends on memory that it does not own: {much}"
    return ""


def last_call_site(folder: Path) -> KernelCallSite | None:
    """Return the place that a run in a folder had come to when it was ended; None if it was not.

    The file may have been written by hostile code: anything else in it gives None.
    """
    try:
        step, guard, threads = json.loads((folder / _PLACE).read_text()[:_MOST_CHARACTERS])
        if type(step) is int and step >= 0 and type(threads) is int:
            return KernelCallSite(step, str(GuardSide(guard)), threads)
    except (OSError, ValueError, TypeError):
        pass
    return None


def _write(folder: Path, place: KernelCallSite) -> None:
    (folder / _PLACE).write_text(json.dumps([place.step, place.guard, place.threads]))
