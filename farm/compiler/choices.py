"""What may be chosen for a kernel, and who chooses: a record of what was measured, or the fewest predicted cycles.

A rule offers its candidates, each with the cycles that its cost model predicts. The chooser takes the record of the workload if it is among
them, as a record may come from another version of the rules; else the candidate of the fewest cycles.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from farm.compiler.core import Core
from farm.compiler.tiles import Tile
from farm.store import digest_of

DIRECT = "direct"  # a method: no other arithmetic than the operator's own
STEPS = "steps"  # the word for those of MetaSchedule
PIXELS, CHANNELS = "pixels", "channels"  # an order: which of the loops around a tile is the outermost, and shared out among threads
_DIGITS = 8  # of a digest, to tell the steps for a kernel apart


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the choice of a schedule may depend on: an operator (named as its main block in `loops`) and its geometry.

    `data` is the input's shape: NHWC of a convolution, [..., M, K] of a product. `weight` is [KH, KW, CI / groups, CO], [..., K, N], or a
    pool's window. `padding` is top, left, bottom, right. `half` is whether the weight may be read as float16, which takes another time.
    """

    operator: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    half: bool = False

    @property
    def key(self) -> str:
        """For example "convolution 1x56x56x64 3x3x64x64 s1,1 p1,1,1,1 d1,1 g1", with "f16" behind it where the weight is of float16."""
        data, weight = ("x".join(map(str, shape)) for shape in (self.data, self.weight))
        strides, padding, dilation = (",".join(map(str, numbers)) for numbers in (self.strides, self.padding, self.dilation))
        return f"{self.operator} {data} {weight} s{strides} p{padding} d{dilation} g{self.groups}{' f16' if self.half else ''}"

    @property
    def channels(self) -> int:
        return self.weight[-1]

    def output(self, axis: int) -> int:
        """The height (axis 0) or width (1) of what a convolution or a pool computes."""
        reach = self.data[1 + axis] + self.padding[axis] + self.padding[axis + 2] - self.dilation[axis] * (self.weight[axis] - 1)
        return (reach - 1) // self.strides[axis] + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """How to compute a workload."""

    method: str
    tile: Tile
    order: str = PIXELS

    def __str__(self) -> str:
        return f"{self.method} {self.tile} by {self.order}"

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "tile": [self.tile.pixels, self.tile.vectors, self.tile.lanes], "order": self.order}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Choice:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError for anything else."""
        pixels, vectors, lanes = body["tile"]
        return cls(str(body["method"]), Tile(int(pixels), int(vectors), int(lanes)), str(body["order"]))


@dataclass(frozen=True, slots=True)
class Steps:
    """How to compute a kernel that has no rule of its own: the trace of a schedule in TVM's form, as JSON."""

    trace: str

    def __str__(self) -> str:
        return f"{STEPS} {digest_of(self.trace)[:_DIGITS]}"

    def to_json(self) -> dict[str, Any]:
        return {"method": str(self), "trace": json.loads(self.trace)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Steps:
        """What `to_json` gave. Raises KeyError or ValueError for anything else."""
        if not isinstance(body["trace"], list):
            raise ValueError("a trace is a list of steps and one of decisions")
        return cls(json.dumps(body["trace"], separators=(",", ":")))


Candidates = Sequence[tuple[Choice, float]]  # with predicted cycles of one core
Records = Mapping[str, Choice | Steps]  # by the key of their workload
NO_RECORDS: Records = MappingProxyType({})


def parsed(choices: Mapping[str, Mapping[str, object]]) -> dict[str, Choice | Steps]:
    """Recorded choices by workload, less those that another version of farm wrote in a way that this one does not know."""
    found: dict[str, Choice | Steps] = {}
    for workload, body in choices.items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[workload] = Steps.from_json(body) if "trace" in body else Choice.from_json(body)
    return found


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen for a workload, out of what; `recorded` when a record decided it."""

    workload: Workload
    choice: Choice
    recorded: bool
    candidates: Candidates


class Chooser:
    """Chooses for one core, and notes each workload that it was asked for: in `decisions`, by its key, where a rule has candidates, in
    `searched` where no rule has, and only the record of a search could tell."""

    def __init__(self, core: Core, records: Records = NO_RECORDS) -> None:
        self.core = core
        self.decisions: dict[str, Decision] = {}
        self.searched: set[str] = set()
        self.halves = False  # whether the model asks for weights of float16
        self._records = records

    def best(self, workload: Workload, candidates: Candidates) -> Choice:
        """The record if a rule offers it, else the candidate of the fewest predicted cycles. There must be a candidate."""
        record = self._records.get(workload.key)
        offered = next((choice for choice, _ in candidates if choice == record), None)
        choice = offered or min(candidates, key=lambda candidate: candidate[1])[0]
        self.decisions[workload.key] = Decision(workload, choice, offered is not None, candidates)
        return choice

    @property
    def asked(self) -> list[str]:
        """The keys of all workloads for which a record counts."""
        return sorted({*self.decisions, *self.searched})

    def steps(self, workload: str) -> Steps | None:
        """Those recorded for a kernel without a rule, by its key; an empty key has none."""
        if not workload:
            return None
        self.searched.add(workload)
        record = self._records.get(workload)
        return record if isinstance(record, Steps) else None
