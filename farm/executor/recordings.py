"""What the agent's profiler sends (farm/agent/profile.h), as the seconds of each step of a model: pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.types import Kernel, Span, Step

_RECORD = np.dtype([("function", "<u4"), ("depth", "<u4"), ("begin_ns", "<i8"), ("duration_ns", "<i8")])
_PLAIN, _RECORDED = 0xFFFFFFFF, 0xFFFFFFFE
_BITS_OF_BOOL = 8

Key = tuple[str, int]  # a function's name, and which of its calls in an inference


@dataclass(frozen=True, slots=True)
class Inference:
    """A recorded inference and its calls in order of their begin; `own_s` is the time of each less that of the calls within it."""

    seconds: float
    spans: tuple[Span, ...]
    own_s: tuple[float, ...]

    def by_key(self) -> dict[Key, float]:
        seen: Counter[str] = Counter()
        found = {}
        for span, own in zip(self.spans, self.own_s, strict=True):
            found[span.name, seen[span.name]] = own
            seen[span.name] += 1
        return found


def parsed(content: bytes) -> tuple[list[float], list[Inference]]:
    """Seconds of the plain inferences, and the recorded ones. Raises ValueError for what is no recording."""
    head, end, body = content.partition(b"\n\n")
    if content.startswith(b"\n"):
        head, end, body = b"", b"\n", content[1:]
    if not end or len(body) % _RECORD.itemsize:
        raise ValueError(f"no recording: {len(content)} bytes")
    names = head.decode().split("\n")
    plain: list[float] = []
    recorded: list[Inference] = []
    calls: list[tuple[int, int, int, int]] = []
    for function, depth, begin, duration in np.frombuffer(body, _RECORD).tolist():
        if function == _PLAIN:
            plain.append(1e-9 * duration)
        elif function == _RECORDED:
            recorded.append(_inference(names, calls, begin, duration))
            calls = []
        else:
            calls.append((function, depth, begin, duration))
    return plain, recorded


def _inference(names: Sequence[str], calls: Iterable[tuple[int, int, int, int]], begin: int, duration: int) -> Inference:
    within: defaultdict[int, int] = defaultdict(int)  # by depth: the time of the calls whose caller has not ended yet
    rows = []
    for function, depth, start, length in calls:  # in order of their end: the calls within one come before it
        own = length - within.pop(depth + 1, 0)
        within[depth] += length
        rows.append((Span(names[function], 1e-9 * (start - begin), 1e-9 * length, depth), 1e-9 * own))
    rows.sort(key=lambda row: (row[0].begin_s, row[0].depth))
    return Inference(1e-9 * duration, tuple(span for span, _ in rows), tuple(own for _, own in rows))


def steps_of(inferences: Sequence[Inference], kernels: Sequence[Kernel], graph: Mapping[str, Any]) -> tuple[list[Step], float, int]:
    """The steps of a model, each with its mean in the typical inferences; what all other calls of one took together, and how many they are.

    Typical is the middle half by length: means of whole inferences add up to one, which medians of each kernel do not, and the disturbed
    ones do not count. A kernel's n-th call in an inference is the graph's n-th step of its name.
    """
    known = {kernel.name: kernel for kernel in kernels}
    described = _described(graph)
    typical = typical_of(inferences)
    totals: defaultdict[Key, float] = defaultdict(float)
    others_s, others = 0.0, 0
    for inference in typical:
        for key, own in inference.by_key().items():
            if key[0] in known:
                totals[key] += own
            else:
                others_s, others = others_s + own, others + 1
    steps = []
    for key, seconds in totals.items():
        kernel, (nbytes, layer) = known[key[0]], described.get(key, (None, ""))
        steps.append(Step(kernel.name, seconds / len(typical), kernel.operations, nbytes, layer, kernel.rule))
    return steps, others_s / len(typical), round(others / len(typical))


def typical_of(inferences: Sequence[Inference]) -> list[Inference]:
    """The middle half by length, the shortest first."""
    ordered, quarter = sorted(inferences, key=lambda inference: inference.seconds), len(inferences) // 4
    return ordered[quarter : len(ordered) - quarter]


def median_one(inferences: Sequence[Inference]) -> Inference:
    """The recorded inference whose length is the median one."""
    typical = typical_of(inferences)
    return typical[(len(typical) - 1) // 2]


def _described(graph: Mapping[str, Any]) -> dict[Key, tuple[int | None, str]]:
    """The bytes and the layer of each step of a graph."""
    seen: Counter[str] = Counter()
    found = {}
    for step in graph["steps"]:
        name = step["kernel"]
        found[name, seen[name]] = (_nbytes(graph["tensors"], {*step["inputs"], step["output"]}), step.get("layer", ""))
        seen[name] += 1
    return found


def _nbytes(tensors: Mapping[str, Any], names: Iterable[str]) -> int | None:
    total = 0
    for name in names:
        tensor = tensors.get(name)
        if tensor is None or not all(isinstance(extent, int) for extent in tensor["shape"]):
            return None
        total += int(np.prod(tensor["shape"], dtype=np.int64)) * _bits(tensor["dtype"]) // 8
    return total


def _bits(dtype: str) -> int:
    """Of an element, by the digits at the end of its type's name: float32, bfloat16."""
    digits = dtype[len(dtype.rstrip("0123456789")) :]
    return int(digits) if digits else _BITS_OF_BOOL
