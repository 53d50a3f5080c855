"""What may be chosen for a kernel, and who chooses: a record of what was measured, or the fewest predicted cycles.

A rule offers its candidates, each with the cycles that its cost model predicts. The chooser takes the record of the workload if it is among
them, as a record may come from another version of the rules; else the candidate of the fewest cycles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from farm.compiler.core import Core
from farm.compiler.tiles import Tile

DIRECT = "direct"  # a method: no other arithmetic than the operator's own
PIXELS, CHANNELS = "pixels", "channels"  # an order: which of the loops around a tile is the outermost, and shared out among threads


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the choice of a schedule may depend on: an operator (named as its main block in `loops`) and its geometry.

    `data` is the input's shape: NHWC of a convolution, [..., M, K] of a product. `weight` is [KH, KW, CI / groups, CO], [..., K, N], or a
    pool's window. `padding` is top, left, bottom, right.
    """

    operator: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    @property
    def key(self) -> str:
        """For example "convolution 1x56x56x64 3x3x64x64 s1,1 p1,1,1,1 d1,1 g1"."""
        data, weight = ("x".join(map(str, shape)) for shape in (self.data, self.weight))
        strides, padding, dilation = (",".join(map(str, numbers)) for numbers in (self.strides, self.padding, self.dilation))
        return f"{self.operator} {data} {weight} s{strides} p{padding} d{dilation} g{self.groups}"

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


Candidates = Sequence[tuple[Choice, float]]  # with predicted cycles of one core
Records = Mapping[str, Choice]  # by the key of their workload
NO_RECORDS: Records = MappingProxyType({})


def parsed(choices: Mapping[str, Mapping[str, object]]) -> dict[str, Choice]:
    """Recorded choices by workload, less those that another version of farm wrote in a way that this one does not know."""
    found = {}
    for workload, body in choices.items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[workload] = Choice.from_json(body)
    return found


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen for a workload, out of what; `recorded` when a record decided it."""

    workload: Workload
    choice: Choice
    recorded: bool
    candidates: Candidates


class Chooser:
    """Chooses for one core, and notes in `decisions`, by workload key, each workload that it was asked for."""

    def __init__(self, core: Core, records: Records = NO_RECORDS) -> None:
        self.core = core
        self.decisions: dict[str, Decision] = {}
        self._records = records

    def best(self, workload: Workload, candidates: Candidates) -> Choice:
        """The record if a rule offers it, else the candidate of the fewest predicted cycles. There must be a candidate."""
        record = self._records.get(workload.key)
        recorded = any(choice == record for choice, _ in candidates)
        choice = record if record is not None and recorded else min(candidates, key=lambda candidate: candidate[1])[0]
        self.decisions[workload.key] = Decision(workload, choice, recorded, candidates)
        return choice
