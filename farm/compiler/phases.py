"""Transposed convolutions as ordinary ones.

With Y = y + padding, row y of the result takes the rows k of the kernel for which Y - k * dilation is a multiple of the stride, and of the
input the rows (Y - k * dilation) / stride: rows of one phase, y % stride, are an ordinary convolution with a part of the kernel turned
around, and the same holds across. No product is computed with a zero between the inputs. Phases are computed apart, or, where that fills
vectors better, side by side as channels of one convolution, whose parts of the kernel are filled up with zeros to the same size; then the
results are interleaved. (Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 4.5, have the arithmetic.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call
from tvm.relax.expr_functor import mutator
from tvm.s_tir import Schedule

from farm.compiler.core import Core
from farm.compiler.extents import is_open
from farm.compiler.folding import constant, rewriting
from farm.compiler.rewriter import Rewriter, Rule, shape_of
from farm.compiler.spread import extent, has_reduction, in_parallel, name_of, partitioned, schedule_general
from farm.compiler.tiles import divisor
from farm.compiler.transposes import NCHW, NHWC
from farm.types.layers import layer_of

INTERLEAVED = "interleaved"  # the block that puts phases where they belong, named as its kernel and rule
PHASES = "phases"  # an annotation of it: how many there are of rows and of columns

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Phases along one axis that one convolution computes: for each, the rows of the kernel in the order of the inputs that they meet.

    The row behind the kernel's last is one of zeros. `first` is the input that the first of them meets for the part's first result.
    """

    phases: tuple[tuple[int, ...], ...]
    first: int


@dataclass(frozen=True, slots=True)
class Axis:
    """How an axis is computed: `count` results of each phase, `step` inputs from one row of the kernel to the next, and of the interleaved
    rows `crop` that come before the result's first, which has `extent`."""

    parts: tuple[Part, ...]
    count: int
    step: int
    crop: int
    extent: int

    @property
    def phases(self) -> int:
        return sum(len(part.phases) for part in self.parts)

    @property
    def products(self) -> int:
        """Rows of kernels that all parts have, for the results of each."""
        return self.count * sum(len(part.phases[0]) for part in self.parts)

    def place(self, at: Any) -> tuple[Any, Any]:
        """Of a row of the result: which phase, and which of its rows."""
        return (at + self.crop) % self.phases, (at + self.crop) // self.phases


def apart(kernel: int, stride: int, dilation: int, padding: int, extent: int) -> Axis:
    """Each phase of the result by itself."""
    parts = []
    for phase in range(stride):
        rows = [row for row in reversed(range(kernel)) if (phase + padding - row * dilation) % stride == 0]
        first = (phase + padding - rows[0] * dilation) // stride if rows else 0
        parts.append(Part((tuple(rows) or (kernel,),), first))
    return Axis(tuple(parts), -(-extent // stride), dilation // math.gcd(dilation, stride), 0, extent)


def together(kernel: int, stride: int, padding: int, extent: int) -> Axis:
    """All phases of what the padding then cuts, as channels; of an undilated kernel."""
    taps, skipped = -(-kernel // stride), padding // stride
    rows = [[phase + tap * stride for tap in reversed(range(taps))] for phase in range(stride)]
    phases = tuple(tuple(min(row, kernel) for row in each) for each in rows)
    count = (padding + extent - 1) // stride + 1 - skipped
    return Axis((Part(phases, skipped - taps + 1),), count, 1, padding % stride, extent)


def best(given: Any, kernel: Sequence[int], result: Sequence[int], lanes: int) -> tuple[Axis, Axis]:
    """The two axes of a transposed convolution to H, W, C, by the fewest vectors of products, then the fewest convolutions."""
    *image, channels = result
    ways: list[list[Axis]] = []
    for axis in (0, 1):
        stride, dilation, padding = (int(values[axis]) for values in (given.strides, given.dilation, given.padding))
        ways.append([apart(kernel[axis], stride, dilation, padding, image[axis])])
        if dilation == 1 < stride and int(given.groups) == 1:
            ways[axis].append(together(kernel[axis], stride, padding, image[axis]))

    def cost(axes: tuple[Axis, ...]) -> tuple[int, int]:
        side_by_side = channels * math.prod(len(axis.parts[0].phases) for axis in axes)
        return math.prod(axis.products for axis in axes) * -(-side_by_side // lanes), math.prod(len(axis.parts) for axis in axes)

    high, wide = min(product(*ways), key=cost)
    return high, wide


def by_phases(lanes: int) -> tvm.transform.Pass:
    """A pass that rewrites transposed convolutions over NHWC, of constant kernels and known images, for vectors of so many lanes."""
    return rewriting("farm.Phases", partial(_Phases, lanes=lanes))


def channels_first(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    """What the pass has left, of a kernel or an image that are not known: TVM has loops for NCHW only."""
    given = call.attrs
    if given.data_layout != "NHWC":
        loops: relax.Expr = call.op.get_attr("FLegalize")(builder, call)
        return loops
    data = builder.emit(relax.op.permute_dims(call.args[0], NCHW))
    geometry = given.strides, given.padding, given.output_padding, given.dilation, given.groups
    result = relax.op.nn.conv2d_transpose(data, call.args[1], *geometry, "NCHW", given.kernel_layout)
    return relax.op.permute_dims(builder.emit(result), NHWC)


@mutator
class _Phases(Rewriter):
    _layer = ""

    def __init__(self, module: tvm.IRModule, lanes: int) -> None:
        super().__init__(module)
        self._lanes, self._layers = lanes, _named_by_users(module["main"])

    def rules(self) -> Mapping[str, Rule]:
        return {"relax.nn.conv2d_transpose": self._transposed}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._layer = binding.var.name if layer_of(binding.var.name) else self._layers.get(binding.var, "")
        super().visit_var_binding_(binding)

    def _transposed(self, call: Call) -> relax.Expr | None:
        given, weight, data, shape = call.attrs, constant(call.args[1]), shape_of(call.args[0]), shape_of(call)
        if (given.data_layout, given.kernel_layout) != ("NHWC", "IOHW") or given.out_layout not in ("", "NHWC"):
            return None
        if weight is None or data is None or shape is None or any(map(is_open, (*data[1:], *shape[1:]))):
            return None
        groups, result = int(given.groups), [int(extent) for extent in shape[1:]]
        axes = best(given, weight.shape[2:], result, self._lanes)
        kernel = np.pad(weight, [(0, 0), (0, 0), (0, 1), (0, 1)])  # with the row and the column of zeros
        parts = []
        for high, wide in product(axes[0].parts, axes[1].parts):
            windows = [window(axis, part, int(size)) for axis, part, size in zip(axes, (high, wide), data[1:3], strict=True)]
            if any(begin >= end for begin, end, _, _ in windows):
                return None  # a phase that meets no input
            parts.append(self._part(call, windows, turned(kernel, high, wide, groups), [axis.step for axis in axes]))
        if all(axis.phases == 1 for axis in axes):
            return parts[0]
        return self.builder_.call_te(partial(interleaved, axes, result[-1]), *parts, primfunc_name_hint=INTERLEAVED)

    def _part(self, call: Call, windows: list[tuple[int, int, int, int]], kernel: Array, step: list[int]) -> relax.Var:
        """One convolution: of what its windows leave of the image, from and to, padded before and after."""
        data, emit = call.args[0], partial(self.builder_.emit, name_hint=self._layer)
        begins, ends, before, after = (list(values) for values in zip(*windows, strict=True))
        if [*begins, *ends] != [0, 0, *(int(data.ty.shape[axis]) for axis in (1, 2))]:
            data = emit(relax.op.strided_slice(data, [1, 2], begins, ends))
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": call.attrs.out_dtype}
        weight, groups = relax.const(kernel, str(kernel.dtype)), int(call.attrs.groups)
        return emit(relax.op.nn.conv2d(data, weight, 1, [*before, *after], step, groups, **layouts))


def _named_by_users(function: relax.Function) -> dict[relax.Var, str]:
    """Of values that an operator of the source goes through on the way to its result: the variable that is named after it."""
    names: dict[relax.Var, str] = {}
    bindings = [binding for block in function.body.blocks for binding in block.bindings if isinstance(binding.value, Call)]
    for binding in reversed(bindings):
        name = binding.var.name if layer_of(binding.var.name) else names.get(binding.var, "")
        names.update((argument, name) for argument in binding.value.args if isinstance(argument, relax.Var))
    return names


def window(axis: Axis, part: Part, extent: int) -> tuple[int, int, int, int]:
    """What a part takes of an axis of the input: from and to, and zeros before and after."""
    last = part.first + (len(part.phases[0]) - 1) * axis.step + axis.count - 1
    return max(0, part.first), min(extent, last + 1), max(0, -part.first), max(0, last + 1 - extent)


def turned(kernel: Array, high: Part, wide: Part, groups: int) -> Array:
    """The kernel [CI, CO / groups, KH + 1, KW + 1] of a part: [rows, columns, CI / groups, groups * phases of both axes * CO / groups]."""
    taken = kernel[:, :, np.array(high.phases)][..., np.array(wide.phases)]  # [CI, CO, phases, rows, phases, columns]
    inputs, channels, phases_high, rows, phases_wide, columns = taken.shape
    apart = taken.reshape(groups, inputs // groups, channels, phases_high, rows, phases_wide, columns)
    return np.ascontiguousarray(apart.transpose(4, 6, 1, 0, 3, 5, 2)).reshape(rows, columns, inputs // groups, -1)


def interleaved(axes: tuple[Axis, Axis], channels: int, *parts: te.Tensor) -> te.Tensor:
    """The phases of all parts, [N, rows, columns, phases of both axes * channels], where they belong: [N, H, W, channels]."""
    high, wide = axes
    inside_high, inside_wide = len(high.parts[0].phases), len(wide.parts[0].phases)

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tirx.Expr:
        (phase_y, row), (phase_x, column) = high.place(y), wide.place(x)
        inside = (phase_y % inside_high) * inside_wide + phase_x % inside_wide
        which = phase_y // inside_high * len(wide.parts) + phase_x // inside_wide
        *others, last = (part[n, row, column, inside * channels + c] for part in parts)
        for index, other in reversed(list(enumerate(others))):
            last = tirx.if_then_else(which == index, other, last)
        return last

    return te.compute(
        (parts[0].shape[0], high.extent, wide.extent, channels), value, name=INTERLEAVED, attrs={PHASES: (high.phases, wide.phases)}
    )


def schedule_interleaved(work: Schedule, core: Core) -> None:
    """What follows is computed with it, a concatenation of channels too. Loops over phases are unrolled: each is copied unasked."""
    blocks = work.get_child_blocks(work.get_sblock("root"))
    main, last = next(block for block in blocks if name_of(work, block) == INTERLEAVED), blocks[-1]
    rows, columns = image = [extent(work, loop) for loop in work.get_loops(main)[1:3]]
    phases = [int(count) for count in work.get(main).annotations[PHASES]]
    fits = [extent(work, loop) for loop in work.get_loops(last)[1:3]] == image and len(work.get_loops(last)) == 4
    if not fits or any(has_reduction(work, block) for block in blocks) or rows % phases[0] or columns % phases[1]:
        schedule_general(work, core)
        return
    for block in blocks[:-1]:
        work.compute_inline(block)
    count, row, column, channel = work.get_loops(last)
    (row, phase_y), (column, phase_x) = (work.split(loop, [None, count]) for loop, count in zip((row, column), phases, strict=True))
    work.reorder(count, row, phase_y, column, phase_x, channel)
    for phase in (phase_y, phase_x):
        work.unroll(phase)
    vectors, lanes = work.split(channel, [None, divisor(extent(work, channel), core.lanes)])
    partitioned(work, vectors, last)
    work.vectorize(lanes)
    in_parallel(work, work.fuse(count, row), [last], core)
