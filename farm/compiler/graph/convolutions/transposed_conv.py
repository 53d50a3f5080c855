"""Rewrite transposed convolutions as ordinary ones of their phases.

With Y = y + padding, row y of the result uses the kernel rows k for which Y - k * dilation is a
multiple of the stride, and the input rows (Y - k * dilation) / stride. So the rows of one phase,
y % stride, are an ordinary convolution with a reversed part of the kernel; the same holds for
columns. No product is computed with a zero between the inputs. Phases are computed separately or,
if that fills vectors better, as channels of one convolution, whose parts of the kernel are padded
with zeros to the same size. Then the results are interleaved. (Dumoulin and Visin, "A guide to
convolution arithmetic for deep learning", section 4.5.)
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

from farm.compiler.graph.sink_transposes import NCHW, NHWC
from farm.compiler.ir.annotations import PHASES
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, rewriter_pass, shape_of
from farm.types.layer_variable_names import layer_name_of_variable

INTERLEAVED = (
    "interleaved"  # the block that puts phases where they belong, named as its kernel and rule
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """Phases along one axis that one convolution computes.

    `phases` has, for each phase, kernel rows in the order of the inputs that they meet; the index
    behind the kernel's last row stands for a row of zeros. `first` is the index of the input that
    the first kernel row meets for the part's first result.
    """

    phases: tuple[tuple[int, ...], ...]
    first: int


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """How one axis is computed.

    Each phase has `count` results; from one kernel row to the next are `step` inputs. Of the
    interleaved rows, the first `crop` are dropped; the result has `extent` rows.
    """

    parts: tuple[PhaseGroup, ...]
    count: int
    step: int
    crop: int
    extent: int

    @property
    def phases(self) -> int:
        """Return the number of phases of all parts."""
        return sum(len(part.phases) for part in self.parts)

    @property
    def products(self) -> int:
        """Return the number of kernel rows that all parts apply, over all their results."""
        return self.count * sum(len(part.phases[0]) for part in self.parts)

    def place(self, at: Any) -> tuple[Any, Any]:
        """Return the phase of a row of the result, and its index among that phase's rows."""
        return (at + self.crop) % self.phases, (at + self.crop) // self.phases


def axis_plan_with_separate_phases(
    kernel: int, stride: int, dilation: int, padding: int, extent: int
) -> AxisPlan:
    """Return the axis with each phase computed separately."""
    parts = []
    for phase in range(stride):
        rows = [
            row
            for row in reversed(range(kernel))
            if (phase + padding - row * dilation) % stride == 0
        ]
        first = (phase + padding - rows[0] * dilation) // stride if rows else 0
        parts.append(PhaseGroup((tuple(rows) or (kernel,),), first))
    return AxisPlan(
        tuple(parts), -(-extent // stride), dilation // math.gcd(dilation, stride), 0, extent
    )


def axis_plan_with_phases_as_channels(
    kernel: int, stride: int, padding: int, extent: int
) -> AxisPlan:
    """Return the axis with all phases as channels of one convolution.

    The kernel must not be dilated.
    """
    taps, skipped = -(-kernel // stride), padding // stride
    rows = [[phase + tap * stride for tap in reversed(range(taps))] for phase in range(stride)]
    phases = tuple(tuple(min(row, kernel) for row in each) for each in rows)
    count = (padding + extent - 1) // stride + 1 - skipped
    return AxisPlan((PhaseGroup(phases, skipped - taps + 1),), count, 1, padding % stride, extent)


def fastest_axis_plans(
    given: Any, kernel: Sequence[int], result: Sequence[int], lanes: int
) -> tuple[AxisPlan, AxisPlan]:
    """Return the two axes of a transposed convolution whose result is [H, W, C].

    They need the fewest vectors of products and, among those, the fewest convolutions.
    """
    *image, channels = result
    ways: list[list[AxisPlan]] = []
    for axis in (0, 1):
        stride, dilation, padding = (
            int(values[axis]) for values in (given.strides, given.dilation, given.padding)
        )
        ways.append(
            [axis_plan_with_separate_phases(kernel[axis], stride, dilation, padding, image[axis])]
        )
        if dilation == 1 < stride and int(given.groups) == 1:
            ways[axis].append(
                axis_plan_with_phases_as_channels(kernel[axis], stride, padding, image[axis])
            )

    def cost(axes: tuple[AxisPlan, ...]) -> tuple[int, int]:
        side_by_side = channels * math.prod(len(axis.parts[0].phases) for axis in axes)
        return math.prod(axis.products for axis in axes) * -(-side_by_side // lanes), math.prod(
            len(axis.parts) for axis in axes
        )

    high, wide = min(product(*ways), key=cost)
    return high, wide


def transposed_conv_pass(lanes: int) -> tvm.transform.Pass:
    """Return a pass that rewrites transposed convolutions for vectors of `lanes` elements.

    It takes those over NHWC with a constant kernel and a known image size.
    """
    return rewriter_pass("farm.Phases", partial(_Phases, lanes=lanes))


def legalize_conv2d_transpose_with_topi(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    """Legalize a transposed convolution that the pass left: TVM has loops for NCHW only."""
    given = call.attrs
    if given.data_layout != "NHWC":
        loops: relax.Expr = call.op.get_attr("FLegalize")(builder, call)
        return loops
    data = builder.emit(relax.op.permute_dims(call.args[0], NCHW))
    geometry = given.strides, given.padding, given.output_padding, given.dilation, given.groups
    result = relax.op.nn.conv2d_transpose(
        data, call.args[1], *geometry, "NCHW", given.kernel_layout
    )
    return relax.op.permute_dims(builder.emit(result), NHWC)


@mutator
class _Phases(Rewriter):
    _layer = ""

    def __init__(self, module: tvm.IRModule, lanes: int) -> None:
        super().__init__(module)
        self._lanes, self._layers = lanes, _named_by_users(module["main"])

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.nn.conv2d_transpose": self._transposed}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Remember the layer's name of the binding that is rewritten next."""
        self._layer = (
            binding.var.name
            if layer_name_of_variable(binding.var.name)
            else self._layers.get(binding.var, "")
        )
        super().visit_var_binding_(binding)

    def _transposed(self, call: Call) -> relax.Expr | None:
        given, weight, data, shape = (
            call.attrs,
            constant_value(call.args[1]),
            shape_of(call.args[0]),
            shape_of(call),
        )
        if (given.data_layout, given.kernel_layout) != ("NHWC", "IOHW") or given.out_layout not in (
            "",
            "NHWC",
        ):
            return None
        if (
            weight is None
            or data is None
            or shape is None
            or any(map(is_dynamic, (*data[1:], *shape[1:])))
        ):
            return None
        groups, result = int(given.groups), [int(extent) for extent in shape[1:]]
        axes = fastest_axis_plans(given, weight.shape[2:], result, self._lanes)
        kernel = np.pad(
            weight, [(0, 0), (0, 0), (0, 1), (0, 1)]
        )  # with the row and the column of zeros
        parts = []
        for high, wide in product(axes[0].parts, axes[1].parts):
            windows = [
                phase_group_input_window(axis, part, int(size))
                for axis, part, size in zip(axes, (high, wide), data[1:3], strict=True)
            ]
            if any(begin >= end for begin, end, _, _ in windows):
                return None  # a phase that meets no input
            parts.append(
                self._part(
                    call,
                    windows,
                    phase_group_kernel(kernel, high, wide, groups),
                    [axis.step for axis in axes],
                )
            )
        if all(axis.phases == 1 for axis in axes):
            return parts[0]
        return self.builder_.call_te(
            partial(interleave_phases_compute, axes, result[-1]),
            *parts,
            primfunc_name_hint=INTERLEAVED,
        )

    def _part(
        self, call: Call, windows: list[tuple[int, int, int, int]], kernel: Array, step: list[int]
    ) -> relax.Var:
        """Return one convolution of the part of the image that its windows cover.

        `windows` has, for each axis, where the part begins and ends, and its padding before and
        after.
        """
        data, emit = call.args[0], partial(self.builder_.emit, name_hint=self._layer)
        begins, ends, before, after = (list(values) for values in zip(*windows, strict=True))
        if [*begins, *ends] != [0, 0, *(int(data.ty.shape[axis]) for axis in (1, 2))]:
            data = emit(relax.op.strided_slice(data, [1, 2], begins, ends))
        layouts = {
            "data_layout": "NHWC",
            "kernel_layout": "HWIO",
            "out_dtype": call.attrs.out_dtype,
        }
        weight, groups = relax.const(kernel, str(kernel.dtype)), int(call.attrs.groups)
        return emit(relax.op.nn.conv2d(data, weight, 1, [*before, *after], step, groups, **layouts))


def _named_by_users(function: relax.Function) -> dict[relax.Var, str]:
    """Map values between the operators of a layer to the variable named after the layer."""
    names: dict[relax.Var, str] = {}
    bindings = [
        binding
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, Call)
    ]
    for binding in reversed(bindings):
        name = (
            binding.var.name
            if layer_name_of_variable(binding.var.name)
            else names.get(binding.var, "")
        )
        names.update(
            (argument, name) for argument in binding.value.args if isinstance(argument, relax.Var)
        )
    return names


def phase_group_input_window(
    axis: AxisPlan, part: PhaseGroup, extent: int
) -> tuple[int, int, int, int]:
    """Return the range of the input that a part uses, and its padding.

    (begin, end, before, after).
    """
    last = part.first + (len(part.phases[0]) - 1) * axis.step + axis.count - 1
    return max(0, part.first), min(extent, last + 1), max(0, -part.first), max(0, last + 1 - extent)


def phase_group_kernel(kernel: Array, high: PhaseGroup, wide: PhaseGroup, groups: int) -> Array:
    """Return the kernel of a part.

    [rows, columns, CI / groups, groups * phases of both axes * CO / groups].

    `kernel` is [CI, CO / groups, KH + 1, KW + 1].
    """
    taken = kernel[:, :, np.array(high.phases)][
        ..., np.array(wide.phases)
    ]  # [CI, CO, phases, rows, phases, columns]
    inputs, channels, phases_high, rows, phases_wide, columns = taken.shape
    apart = taken.reshape(
        groups, inputs // groups, channels, phases_high, rows, phases_wide, columns
    )
    return np.ascontiguousarray(apart.transpose(4, 6, 1, 0, 3, 5, 2)).reshape(
        rows, columns, inputs // groups, -1
    )


def interleave_phases_compute(
    axes: tuple[AxisPlan, AxisPlan], channels: int, *parts: te.Tensor
) -> te.Tensor:
    """Interleave the phases of all parts.

    [N, rows, columns, phases * channels] to [N, H, W, channels].
    """
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
        (parts[0].shape[0], high.extent, wide.extent, channels),
        value,
        name=INTERLEAVED,
        attrs={PHASES: (high.phases, wide.phases)},
    )
