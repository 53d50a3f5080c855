"""Decode the records of the agent's profiler into the steps of a model; pure functions.

farm/agent/src/execution/call_profiler.h defines the format.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.transports.agent.answer_validation import AgentAnswerError
from farm.types import Kernel, KernelCall, Span

_RECORD = np.dtype(
    [("function", "<u4"), ("depth", "<u4"), ("begin_ns", "<i8"), ("duration_ns", "<i8")]
)
_PLAIN, _RECORDED = 0xFFFFFFFF, 0xFFFFFFFE
_BITS_OF_BOOL = 8

Key = tuple[str, int]  # a function's name, and the number of its call in an inference


@dataclass(frozen=True, slots=True)
class RecordedInference:
    """A recorded inference: its calls by start time, and their exclusive times.

    `own_s` is the time of each call less that of the calls within it.
    """

    seconds: float
    spans: tuple[Span, ...]
    own_s: tuple[float, ...]

    def by_key(self) -> dict[Key, float]:
        """Return the exclusive seconds of each call, by function name and number of the call."""
        seen: Counter[str] = Counter()
        found = {}
        for span, own in zip(self.spans, self.own_s, strict=True):
            found[span.name, seen[span.name]] = own
            seen[span.name] += 1
        return found


def parse_recorded_inferences(content: bytes) -> tuple[list[float], list[RecordedInference]]:
    """Return the seconds of the plain inferences, and the recorded inferences.

    Raises AgentAnswerError if the content is not a recording.
    """
    head, end, body = content.partition(b"\n\n")
    if content.startswith(b"\n"):
        head, end, body = b"", b"\n", content[1:]
    if not end or len(body) % _RECORD.itemsize:
        raise AgentAnswerError(f"no recording: {len(content)} bytes")
    names = head.decode(errors="replace").split("\n")
    plain: list[float] = []
    recorded: list[RecordedInference] = []
    calls: list[tuple[int, int, int, int]] = []
    for function, depth, begin, duration in np.frombuffer(body, _RECORD).tolist():
        if duration < 0 or len(names) <= function < _RECORDED:
            raise AgentAnswerError("no recording: a call of no function, or of less than no time")
        if function == _PLAIN:
            plain.append(1e-9 * duration)
        elif function == _RECORDED:
            recorded.append(_inference(names, calls, begin, duration))
            calls = []
        else:
            calls.append((function, depth, begin, duration))
    return plain, recorded


def _inference(
    names: Sequence[str], calls: Iterable[tuple[int, int, int, int]], begin: int, duration: int
) -> RecordedInference:
    """Return an inference with its calls by start time.

    A call is a name's index, a depth, and its start and duration in nanoseconds.
    """
    # Nanoseconds, by depth, of the calls whose caller has not ended yet.
    within: defaultdict[int, int] = defaultdict(int)
    rows = []
    for function, depth, start, length in calls:  # ordered by end: inner calls precede outer ones
        own = length - within.pop(depth + 1, 0)
        within[depth] += length
        rows.append(
            (Span(names[function], 1e-9 * (start - begin), 1e-9 * length, depth), 1e-9 * own)
        )
    rows.sort(key=lambda row: (row[0].begin_s, row[0].depth))
    return RecordedInference(
        1e-9 * duration, tuple(span for span, _ in rows), tuple(own for _, own in rows)
    )


def mean_step_times(
    inferences: Sequence[RecordedInference], kernels: Sequence[Kernel], graph: Mapping[str, Any]
) -> tuple[list[KernelCall], float, int]:
    """Return a model's steps with their mean seconds; the seconds and number of all other calls.

    The means are over the typical inferences, the fifth by length around the median. Whole
    inferences are averaged because their kernels add up, which medians of each kernel would not,
    and disturbed inferences do not count. A kernel's n-th call in an inference is the graph's n-th
    step of its name.
    """
    known = {kernel.name: kernel for kernel in kernels}
    described = _described(graph)
    typical = typical_inferences(inferences)
    totals: defaultdict[Key, float] = defaultdict(float)
    others_s, others = 0.0, 0
    for inference in typical:
        for key, own in inference.by_key().items():
            if key[0] in known:
                totals[key] += own
            else:
                others_s, others = others_s + own, others + 1
    calls = Counter(name for name, _ in totals)  # a kernel's operations are those of all its calls
    steps = []
    for key, seconds in totals.items():
        kernel, (nbytes, layer) = known[key[0]], described.get(key, (None, ""))
        operations = kernel.operations // calls[kernel.name]
        steps.append(
            KernelCall(kernel.name, seconds / len(typical), operations, nbytes, layer, kernel.rule)
        )
    return steps, others_s / len(typical), round(others / len(typical))


def typical_inferences(inferences: Sequence[RecordedInference]) -> list[RecordedInference]:
    """Return the fifth of the inferences around the median length, the shortest first."""
    ordered = sorted(inferences, key=lambda inference: inference.seconds)
    count = max(1, len(ordered) // 5)
    first = (len(ordered) - count) // 2
    return ordered[first : first + count]


def median_inference(inferences: Sequence[RecordedInference]) -> RecordedInference:
    """Return the recorded inference of median length."""
    typical = typical_inferences(inferences)
    return typical[(len(typical) - 1) // 2]


def _described(graph: Mapping[str, Any]) -> dict[Key, tuple[int | None, str]]:
    """Return the bytes and the layer of each step of a graph."""
    seen: Counter[str] = Counter()
    found = {}
    for step in graph["steps"]:
        name = step["kernel"]
        found[name, seen[name]] = (
            _nbytes(graph["tensors"], {*step["inputs"], step["output"]}),
            step.get("layer", ""),
        )
        seen[name] += 1
    return found


def _nbytes(tensors: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the bytes of the named tensors; None if one is unknown or has an open shape."""
    total = 0
    for name in names:
        tensor = tensors.get(name)
        if tensor is None or not all(isinstance(extent, int) for extent in tensor["shape"]):
            return None
        total += int(np.prod(tensor["shape"], dtype=np.int64)) * _bits(tensor["dtype"]) // 8
    return total


def _bits(dtype: str) -> int:
    """Return the bits of an element from the digits that end its type's name: float32, bfloat16."""
    digits = dtype[len(dtype.rstrip("0123456789")) :]
    return int(digits) if digits else _BITS_OF_BOOL
