"""Rewrite 1D and 3D convolutions and pools as 2D ones, which have schedules.

A row (NCW) is a plane of height one. A volume (NCDHW) is convolved plane by plane: the planes that
the kernel covers in depth are concatenated as channels. Values between such operators stay planes:
the conversions back to rows and volumes move towards the end, and are removed if nothing reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.convolutions import transposed_conv
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import Extent, is_dynamic, shapes_are_equal
from farm.compiler.ir.relax_rewriter import (
    ELEMENTWISE,
    REDUCTIONS,
    Rewriter,
    Rule,
    permute_dims_axes,
    shape_of,
)
from farm.types.layer_variable_names import layer_name_of_variable

Array = np.ndarray[Any, Any]
_SWAPPED = [0, 2, 1]  # of NCW, and back
_DEPTH_FIRST = [0, 2, 1, 3, 4]  # of NCDHW, and back


@mutator
class Conv1dConv3dRewriter(Rewriter):
    """Rewrite operators over rows and volumes.

    A layer's name stays with the operator that does its work.
    """

    _layer = ""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Remember the layer's name of the binding that is rewritten next."""
        self._layer = binding.var.name if layer_name_of_variable(binding.var.name) else ""
        super().visit_var_binding_(binding)

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            "relax.nn.conv1d": self._convolved_row,
            "relax.nn.conv1d_transpose": self._transposed_row,
            "relax.nn.max_pool1d": self._pooled_row,
            "relax.nn.avg_pool1d": self._pooled_row,
            "relax.nn.adaptive_avg_pool1d": self._adapted_row,
            "relax.nn.conv3d": self._convolved_volume,
            "relax.nn.conv3d_transpose": self._transposed_volume,
            "relax.nn.batch_norm": self._normalized,
            "relax.concat": self._concat,
            "relax.strided_slice": self._slice,
            "relax.permute_dims": self._permuted,
            **dict.fromkeys(ELEMENTWISE, self._elementwise),
            **dict.fromkeys(REDUCTIONS, self._reduced),
        }

    def _convolved_row(self, call: Call) -> relax.Expr | None:
        given = call.attrs
        if (given.data_layout, given.kernel_layout) != ("NCW", "OIW"):
            return None
        data, weight, groups = (
            self._plane(call.args[0]),
            self._heightened(call.args[1]),
            int(given.groups),
        )
        geometry = _flat(given.strides, given.padding, given.dilation)
        return self._row(
            relax.op.nn.conv2d(data, weight, *geometry, groups, out_dtype=given.out_dtype)
        )

    def _transposed_row(self, call: Call) -> relax.Expr | None:
        given = call.attrs
        if (given.data_layout, given.kernel_layout) != ("NCW", "IOW"):
            return None
        strides, padding, dilation = _flat(given.strides, given.padding, given.dilation)
        data, weight, more = (
            self._plane(call.args[0]),
            self._heightened(call.args[1]),
            [0, int(given.output_padding[0])],
        )
        return self._row(
            relax.op.nn.conv2d_transpose(
                data, weight, strides, padding, more, dilation, int(given.groups)
            )
        )

    def _pooled_row(self, call: Call) -> relax.Expr | None:
        given = call.attrs
        if given.layout != "NCW":
            return None
        pool = (
            relax.op.nn.max_pool2d
            if call.op.name == "relax.nn.max_pool1d"
            else relax.op.nn.avg_pool2d
        )
        geometry = _flat(given.strides, given.padding, given.dilation)
        size = [1, int(given.pool_size[0])]
        return self._row(
            pool(
                self._plane(call.args[0]), size, *geometry, given.ceil_mode, given.count_include_pad
            )
        )

    def _adapted_row(self, call: Call) -> relax.Expr | None:
        length = call.attrs.output_size
        if call.attrs.layout != "NCW" or length is None:
            return None
        return self._row(
            relax.op.nn.adaptive_avg_pool2d(self._plane(call.args[0]), [1, int(length[0])])
        )

    def _convolved_volume(self, call: Call) -> relax.Expr | None:
        """Return a convolution of planes.

        The sum over the kernel's depth becomes a sum over channels.
        """
        given, weight, shape = call.attrs, constant_value(call.args[1]), shape_of(call.args[0])
        if (
            (given.data_layout, given.kernel_layout) != ("NCDHW", "OIDHW")
            or int(given.groups) != 1
            or weight is None
            or shape is None
        ):
            return None
        if any(map(is_dynamic, shape[1:])):
            return None
        stride, *strides = map(int, given.strides)
        front, top, left, back, bottom, right = map(int, given.padding)
        apart, *dilation = map(int, given.dilation)
        data, emit = call.args[0], self.builder_.emit
        if front or back:
            data = emit(relax.op.nn.pad(data, [0, 0, 0, 0, front, back, 0, 0, 0, 0]))
        depth = (shape[2] + front + back - apart * (weight.shape[2] - 1) - 1) // stride + 1
        planes = self._side_by_side(
            data, [apart * index for index in range(weight.shape[2])], stride, depth
        )
        kernel = np.ascontiguousarray(weight.transpose(0, 2, 1, 3, 4)).reshape(
            weight.shape[0], -1, *weight.shape[3:]
        )
        around, plane_kernel = [top, left, bottom, right], relax.const(kernel, str(kernel.dtype))
        result = relax.op.nn.conv2d(
            planes, plane_kernel, strides, around, dilation, out_dtype=given.out_dtype
        )
        return self._volume(result, [shape[0], depth])

    def _transposed_volume(self, call: Call) -> relax.Expr | None:
        """Return a transposed convolution of planes.

        Each phase of the depth (see `transposed_conv`) is a sum over channels too: over the planes
        that its part of the kernel meets.
        """
        given, weight, shape, result = (
            call.attrs,
            constant_value(call.args[1]),
            shape_of(call.args[0]),
            shape_of(call),
        )
        if (
            (given.data_layout, given.kernel_layout) != ("NCDHW", "IODHW")
            or int(given.groups) != 1
            or weight is None
        ):
            return None
        if shape is None or result is None or any(map(is_dynamic, (*shape[1:], *result[1:]))):
            return None
        stride, apart, front = (
            int(values[0]) for values in (given.strides, given.dilation, given.padding)
        )
        depth = transposed_conv.axis_plan_with_separate_phases(
            weight.shape[2], stride, apart, front, int(result[2])
        )
        whole = [self._phase_of_volume(call, weight, depth, part) for part in depth.parts]
        if any(volume is None for volume in whole):
            return None
        emit, image = self.builder_.emit, [result[1], *result[3:]]
        planes = emit(
            relax.op.reshape(
                emit(relax.op.concat(whole, 2)), [shape[0], depth.count * depth.phases, *image]
            )
        )
        within = emit(relax.op.strided_slice(planes, [1], [0], [int(result[2])]))
        return self._volume(
            relax.op.reshape(within, [shape[0] * result[2], *image]), [shape[0], result[2]]
        )

    def _phase_of_volume(
        self,
        call: Call,
        weight: Array,
        depth: transposed_conv.AxisPlan,
        part: transposed_conv.PhaseGroup,
    ) -> relax.Var | None:
        """Return [N, count, 1, CO, H, W] of a transposed convolution.

        None for a phase that meets no input.
        """
        given, emit, extents = call.attrs, self.builder_.emit, call.args[0].ty.shape
        begin, end, before, after = transposed_conv.phase_group_input_window(
            depth, part, int(extents[2])
        )
        if begin >= end:
            return None
        met = emit(relax.op.strided_slice(call.args[0], [2], [begin], [end]))
        data = emit(relax.op.nn.pad(met, [0, 0, 0, 0, before, after, 0, 0, 0, 0]))
        (rows,) = part.phases
        side_by_side = self._side_by_side(
            data, [depth.step * index for index in range(len(rows))], 1, depth.count
        )
        zeros = np.pad(weight, [(0, 0), (0, 0), (0, 1), (0, 0), (0, 0)])
        kernel = relax.const(np.concatenate([zeros[:, :, row] for row in rows]), str(weight.dtype))
        strides, more, dilation = (
            [int(one) for one in values[1:]]
            for values in (given.strides, given.output_padding, given.dilation)
        )
        around = [int(given.padding[index]) for index in (1, 2, 4, 5)]
        result = self._emit(
            relax.op.nn.conv2d_transpose(side_by_side, kernel, strides, around, more, dilation)
        )
        return emit(
            relax.op.reshape(result, [extents[0], depth.count, 1, *result.ty.shape.values[1:]])
        )

    def _side_by_side(
        self, data: relax.Expr, starts: Sequence[int], stride: int, depth: int
    ) -> relax.Var:
        """Return planes [N * depth, starts * C, H, W] of a volume.

        For each start, `depth` planes at distances of `stride` are taken; they are concatenated as
        channels.
        """
        emit, shape = self.builder_.emit, data.ty.shape.values
        parts = [
            emit(relax.op.strided_slice(data, [2], [at], [at + stride * (depth - 1) + 1], [stride]))
            for at in starts
        ]
        turned = emit(relax.op.permute_dims(emit(relax.op.concat(parts, 1)), _DEPTH_FIRST))
        return emit(
            relax.op.reshape(turned, [shape[0] * depth, len(starts) * shape[1], *shape[3:]])
        )

    def _elementwise(self, call: Call) -> relax.Expr | None:
        tensors = [argument for argument in call.args if isinstance(argument.ty, relax.TensorType)]
        if int(getattr(call.attrs, "axis", 1)) != 1:
            return None
        if all(int(tensor.ty.ndim) <= 3 for tensor in tensors) and any(
            self._row_of(tensor) is not None for tensor in tensors
        ):
            return self._row(
                Call(call.op, [self._under_row(argument) for argument in call.args], call.attrs)
            )
        found = next(
            (volume for tensor in tensors if (volume := self._volume_of(tensor)) is not None), None
        )
        outer = None if found is None else _outer(found)
        if found is None or outer is None:
            return None
        under = [
            _under_volume(argument, found, self._volume_of(argument)) for argument in call.args
        ]
        return (
            None
            if any(argument is None for argument in under)
            else self._volume(Call(call.op, under, call.attrs), outer)
        )

    def _normalized(self, call: Call) -> relax.Expr | None:
        row, volume = self._row_of(call.args[0]), self._volume_of(call.args[0])
        source = row if row is not None else None if volume is None else volume.args[0]
        if source is None or int(call.attrs.axis) != 1:
            return None
        result = self._emit(Call(call.op, [source, *call.args[1:]], call.attrs))
        values, *moments = (
            self.builder_.emit(relax.TupleGetItem(result, index)) for index in range(3)
        )
        outer = None if volume is None else _outer(volume)
        back = self._row(values) if outer is None else self._volume(values, outer)
        return relax.Tuple([self.builder_.emit(back), *moments])

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        """Return the field of a tuple that a rule has built."""
        item = self.visit_expr_post_order(item)
        bound = self.bound(item.tuple_value)
        return bound.fields[item.index] if isinstance(bound, relax.Tuple) else item

    def _concat(self, call: Call) -> relax.Expr | None:
        parts = self.bound(call.args[0])
        if (
            not isinstance(parts, relax.Tuple)
            or call.attrs.axis is None
            or all(self._row_of(part) is None for part in parts.fields)
        ):
            return None
        return self._row(
            relax.op.concat(
                [self._plane(part) for part in parts.fields], _of_plane(int(call.attrs.axis))
            )
        )

    def _slice(self, call: Call) -> relax.Expr | None:
        source = self._row_of(call.args[0])
        if source is None or not all(
            isinstance(argument, relax.Tuple) for argument in call.args[1:]
        ):
            return None
        axes, *bounds = ([int(number.value) for number in argument] for argument in call.args[1:])
        return self._row(relax.op.strided_slice(source, list(map(_of_plane, axes)), *bounds))

    def _permuted(self, call: Call) -> relax.Expr | None:
        source = self._row_of(call.args[0])
        if source is None or permute_dims_axes(call) != _SWAPPED:
            return None
        return relax.op.squeeze(
            self.builder_.emit(relax.op.permute_dims(source, [0, 2, 3, 1])), [1]
        )

    def _reduced(self, call: Call) -> relax.Expr | None:
        source, axes = self._row_of(call.args[0]), call.attrs.axis
        if source is None or axes is None or [int(axis) % 3 for axis in axes] != [2]:
            return None
        reduced = REDUCTIONS[call.op.name](source, [2, 3], bool(call.attrs.keepdims))
        return self._row(reduced) if call.attrs.keepdims else reduced

    def _row(self, expression: relax.Expr) -> relax.Expr:
        return relax.op.squeeze(self._emit(expression), [2])

    def _volume(self, expression: relax.Expr, outer: Sequence[Extent]) -> relax.Expr:
        """Return planes as NCDHW. `outer` is [N, D]."""
        result = self._emit(expression)
        apart = self.builder_.emit(relax.op.reshape(result, [*outer, *result.ty.shape.values[1:]]))
        return relax.op.permute_dims(apart, _DEPTH_FIRST)

    def _emit(self, expression: relax.Expr) -> relax.Var:
        return self.builder_.emit(expression, self._layer)

    def _plane(self, row: relax.Expr) -> relax.Expr:
        """Return a row (NCW) as a plane (NCHW)."""
        if (source := self._row_of(row)) is not None:
            return source
        if (swapped := self.called(row, "relax.permute_dims")) is not None and permute_dims_axes(
            swapped
        ) == _SWAPPED:
            return self.builder_.emit(
                relax.op.permute_dims(
                    self.builder_.emit(relax.op.expand_dims(swapped.args[0], 1)), [0, 3, 1, 2]
                )
            )
        return self._heightened(row)

    def _heightened(self, row: relax.Expr) -> relax.Expr:
        if (value := constant_value(row)) is not None:
            return relax.const(np.expand_dims(value, 2), str(value.dtype))
        return self.builder_.emit(relax.op.expand_dims(row, 2))

    def _under_row(self, operand: relax.Expr) -> relax.Expr:
        """Return an operand over rows as an operand of the same operator over planes."""
        if not isinstance(operand.ty, relax.TensorType) or int(operand.ty.ndim) < 2:
            return operand
        if int(operand.ty.ndim) == 3:
            return self._plane(operand)
        if (
            value := constant_value(operand)
        ) is not None:  # of four axes, or TVM's choice of layouts would leave the operator as it is
            return relax.const(value[None, :, None], str(value.dtype))
        return self.builder_.emit(relax.op.expand_dims(operand, [0, 2]))

    def _row_of(self, expression: relax.Expr) -> relax.Expr | None:
        """Return the plane that a row was made of; None if it was made otherwise."""
        call = self.called(expression, "relax.squeeze")
        is_row = (
            call is not None
            and call.attrs.axis is not None
            and [int(axis) for axis in call.attrs.axis] == [2]
        )
        return (
            call.args[0] if call is not None and is_row and int(call.args[0].ty.ndim) == 4 else None
        )

    def _volume_of(self, expression: relax.Expr) -> Call | None:
        """Return the reshape of planes that a volume was made of; None if it was made otherwise."""
        turned = self.called(expression, "relax.permute_dims")
        apart = (
            self.called(turned.args[0], "relax.reshape")
            if turned is not None and permute_dims_axes(turned) == _DEPTH_FIRST
            else None
        )
        planes, volume = (
            (None, None) if apart is None else (shape_of(apart.args[0]), shape_of(apart))
        )
        return (
            apart
            if planes and volume and len(planes) == 4 and shapes_are_equal(planes[1:], volume[2:])
            else None
        )


def _under_volume(operand: relax.Expr, volume: Call, of_operand: Call | None) -> relax.Expr | None:
    """Return an operand of an operator over volumes as one over their planes.

    None if it has no such form.
    """
    if not isinstance(operand.ty, relax.TensorType):
        return operand
    if of_operand is not None:
        one, other = _outer(of_operand), _outer(volume)
        return of_operand.args[0] if one and other and shapes_are_equal(one, other) else None
    value = constant_value(operand)
    if value is None or value.ndim > 5:
        return None
    shape = (1,) * (5 - value.ndim) + value.shape
    if shape[0] != 1 or any(extent != 1 for extent in shape[2:]):
        return None
    return relax.const(value.reshape(1, shape[1], 1, 1), str(value.dtype))


def _outer(volume: Call) -> list[Extent] | None:
    shape = shape_of(volume)
    return None if shape is None else shape[:2]


def _of_plane(axis: int) -> int:
    """Return the axis of NCHW that an axis of NCW becomes."""
    return (0, 1, 3)[axis % 3]


def _flat(
    strides: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any]
) -> tuple[list[int], list[int], list[int]]:
    """Strides, padding and dilation along a row, for a plane of height one."""
    return [1, int(strides[0])], [0, int(padding[0]), 0, int(padding[1])], [1, int(dilation[0])]
