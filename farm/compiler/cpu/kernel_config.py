"""The configuration of a kernel, and its selection by a measured record or by predicted cycles.

A rule offers its candidates, each with the cycles that its cost model predicts. The selector takes
the recorded configuration of the workload if it is among them (a record may come from another
version of the rules), else the candidate of the fewest predicted cycles.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from farm.compiler.cpu.depth_first.followed_by_windows import ConvolutionShapes
from farm.compiler.cpu.register_tiles import Tile
from farm.compiler.cpu.traces.trace_grammar import check_trace
from farm.compiler.ir.constants import constant_address
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.weight_transforms import PackingTransform
from farm.store import digest_of_parts

Array = np.ndarray[Any, Any]
DIRECT = "direct"  # a method: the operator's own arithmetic
JOINED_ROWS = "joined_rows"  # a method: the same, with the rows of an image joined into one
TRACE = "steps"  # a method: a trace of MetaSchedule; part of stored records
# An order: which of the loops around a tile is the outermost, which is divided among threads.
PIXELS, CHANNELS = "pixels", "channels"
_MEMORY_SHARE = 0.5  # of a board's memory for weights; an estimate
_LEAST_GAIN = 1.05  # in cycles, for several times the memory: less is within the prediction's error
_DIGITS = 8  # of a digest that distinguishes the traces of a kernel


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that the selection of a schedule may depend on: an operator and its geometry.

    `operator` is named as the main block in conv_dense_compute or another file of loops. `data` is
    the input's shape: NHWC for a convolution, [..., M, K] for a product. `weight` is [KH, KW, CI /
    groups, CO], [..., K, N], or a pool's window. `padding` is top, left, bottom, right. `half`: the
    weight may be read as float16, which takes a different time.
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
        """Return the key, for example "convolution 1x56x56x64 3x3x64x64 s1,1 p1,1,1,1 d1,1 g1".

        " f16" follows if the weight may be read as float16. Records are stored under this key.
        """
        data, weight = ("x".join(map(str, shape)) for shape in (self.data, self.weight))
        strides, padding, dilation = (
            ",".join(map(str, numbers)) for numbers in (self.strides, self.padding, self.dilation)
        )
        return (
            f"{self.operator} {data} {weight} s{strides} p{padding} d{dilation} "
            f"g{self.groups}{' f16' if self.half else ''}"
        )

    @property
    def turned(self) -> Workload:
        """Return the same convolution of images whose height and width are swapped."""
        count, height, width, *depth = self.data
        kernel_h, kernel_w, *channels = self.weight
        top, left, bottom, right = self.padding
        return replace(
            self,
            data=(count, width, height, *depth),
            weight=(kernel_w, kernel_h, *channels),
            strides=self.strides[::-1],
            padding=(left, top, right, bottom),
            dilation=self.dilation[::-1],
        )

    @property
    def with_joined_rows(self) -> Workload | None:
        """Return the same convolution of images of one row; None if it depends on rows."""
        count, height, width, *depth = self.data
        is_of_pixels = (*self.weight[:2], *self.strides, *self.padding) == (1,) * 4 + (0,) * 4
        if height == 1 or not is_of_pixels or self.groups > 1:
            return None
        return replace(self, data=(count, 1, height * width, *depth))

    @property
    def channels(self) -> int:
        """Return the number of output channels."""
        return self.weight[-1]

    def pads_groups(self, block: int) -> bool:
        """Return whether the channels of each of several groups fill no whole blocks."""
        return self.groups > 1 and self.channels // self.groups % block > 0

    def output(self, axis: int) -> int:
        """Return the height (axis 0) or width (1) of the output of a convolution or a pool."""
        reach = (
            self.data[1 + axis]
            + self.padding[axis]
            + self.padding[axis + 2]
            - self.dilation[axis] * (self.weight[axis] - 1)
        )
        return (reach - 1) // self.strides[axis] + 1


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """How to compute a workload: a method, a register tile and the order of the loops around it."""

    method: str
    tile: Tile
    order: str = PIXELS

    def __str__(self) -> str:
        return f"{self.method} {self.tile} by {self.order}"

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as it is stored in records."""
        return {
            "method": self.method,
            "tile": [self.tile.pixels, self.tile.vectors, self.tile.lanes],
            "order": self.order,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> KernelConfig:
        """Read the result of `to_json`.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        pixels, vectors, lanes = body["tile"]
        return cls(
            str(body["method"]), Tile(int(pixels), int(vectors), int(lanes)), str(body["order"])
        )


@dataclass(frozen=True, slots=True)
class ScheduleTrace:
    """How to compute a kernel without a rule: the trace of a schedule in TVM's form, as JSON."""

    trace: str

    def __str__(self) -> str:
        return f"{TRACE} {digest_of_parts(self.trace)[:_DIGITS]}"

    def to_json(self) -> dict[str, Any]:
        """Return the trace as it is stored in records."""
        return {"method": str(self), "trace": json.loads(self.trace)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ScheduleTrace:
        """Read the result of `to_json`. Raises KeyError or ValueError for anything else."""
        check_trace(body["trace"])
        return cls(json.dumps(body["trace"], separators=(",", ":")))


Candidates = Sequence[tuple[KernelConfig, float]]  # with predicted cycles of one core
Records = Mapping[str, KernelConfig | ScheduleTrace]  # by the key of their workload
NO_RECORDS: Records = MappingProxyType({})


def decode_recorded_configs(
    choices: Mapping[str, Mapping[str, object]],
) -> dict[str, KernelConfig | ScheduleTrace]:
    """Return the recorded configurations by workload, without those of an unknown format.

    Another version of farm may have written those.
    """
    found: dict[str, KernelConfig | ScheduleTrace] = {}
    for workload, body in choices.items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[workload] = (
                ScheduleTrace.from_json(body) if "trace" in body else KernelConfig.from_json(body)
            )
    return found


@dataclass(frozen=True, slots=True)
class ConfigDecision:
    """The configuration selected for a workload; `recorded` if a record decided it."""

    workload: Workload
    config: KernelConfig
    recorded: bool
    candidates: Candidates


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A constant that is made of a weight.

    `constant` is what the kernel reads, of this shape; it is kept, so that its address stays its
    own. `transform` makes its value of `weight`.
    """

    constant: Any
    shape: tuple[int, ...]
    weight: Array
    transform: PackingTransform

    @property
    def nbytes(self) -> int:
        """The bytes of the constant."""
        return math.prod(self.shape) * self.weight.itemsize


def weight_expansion_budget_bytes(memory_mb: int | None, weights: Sequence[Array]) -> int | None:
    """Return the bytes that a model's weights may take on a board beyond their own.

    Together they take at most half of its memory. None if the memory is not known.
    """
    if memory_mb is None:
        return None
    own = sum(weight.nbytes for weight in weights)
    return max(0, int(_MEMORY_SHARE * memory_mb * 1e6) - own)


@dataclass(frozen=True, slots=True, eq=False)
class ConfigSelector:
    """Selects the configuration of each kernel of one model for one CPU.

    `fp16_weights`: the model has float16 weights, so that kernels may read weights as float16.
    `room` are the bytes that `large_weights` may take beyond the weights; None sets no limit.
    `decisions` logs the workloads for which a rule has candidates, by key. `searched` logs the keys
    of kernels without a rule, which only the record of a search can configure. `large_weights` logs
    the constants that builds do not store, as they take more memory than their weights, by the
    address of their numbers. With `without_large_values` these constants have a shape and memory,
    but their values are not computed: no pass may read them. `weights_in_blocks` logs those that
    builds store unless several are made of one weight. `before_windows` are the shapes of
    convolutions whose rows must not be joined, since windows slide over their results, see
    depth_first.followed_by_windows.
    """

    cpu: CpuModel
    records: Records = field(default_factory=lambda: NO_RECORDS)
    fp16_weights: bool = False
    room: int | None = None
    without_large_values: bool = False
    decisions: dict[str, ConfigDecision] = field(default_factory=dict, init=False)
    searched: set[str] = field(default_factory=set, init=False)
    large_weights: dict[int, PackedWeight] = field(default_factory=dict, init=False)
    weights_in_blocks: dict[int, PackedWeight] = field(default_factory=dict, init=False)
    before_windows: set[ConvolutionShapes] = field(default_factory=set, init=False)

    def has_room(self, nbytes: int) -> bool:
        """Return whether another constant fits that takes so much more memory than its weight."""
        if self.room is None:
            return True
        taken = sum(one.nbytes - one.weight.nbytes for one in self.large_weights.values())
        return taken + nbytes <= self.room

    def log_narrowed(self, wide: Any, narrow: Any) -> None:
        """Log a constant that takes the place of another, with the same numbers in fewer bits."""
        if source := self.weights_in_blocks.get(constant_address(wide)):
            self.weights_in_blocks[constant_address(narrow)] = replace(source, constant=narrow)

    def best(
        self, workload: Workload, candidates: Candidates, reluctantly: Container[str] = ()
    ) -> KernelConfig:
        """Return the recorded configuration if a rule offers it, else the one of the fewest cycles.

        There must be at least one candidate. Without a record, the methods `reluctantly` are taken
        only if they gain more than the prediction's error.
        """
        record = self.records.get(workload.key)
        offered = next((config for config, _ in candidates if config == record), None)

        def cost(candidate: tuple[KernelConfig, float]) -> float:
            config, cycles = candidate
            return cycles * (_LEAST_GAIN if config.method in reluctantly else 1)

        config = offered or min(candidates, key=cost)[0]
        self.decisions[workload.key] = ConfigDecision(
            workload, config, offered is not None, candidates
        )
        return config

    @property
    def record_keys(self) -> list[str]:
        """Return the keys of all workloads for which a record would change the build, sorted."""
        return sorted({*self.decisions, *self.searched})

    def recorded_trace(self, workload: str) -> ScheduleTrace | None:
        """Return the trace recorded for a kernel without a rule, by its key.

        Returns None if there is no record or the key is empty.
        """
        if not workload:
            return None
        self.searched.add(workload)
        record = self.records.get(workload)
        return record if isinstance(record, ScheduleTrace) else None
