"""Move the NHWC-to-NCHW transposes that ConvertLayout leaves towards the end, until they cancel.

They are held up by operators for which TVM knows no other layout (a padding, a leaky relu, a
selection) and by those that follow these in NCHW (pools, resizes, reductions), by constants of
fewer axes, and by operators that are written in terms of NCHW: the channel shuffle (a reshape to
groups, a transpose, a reshape), the slices and concatenations around it, and the reshapes between
images and the tokens of a transformer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.dynamic_extents import is_dynamic, shapes_are_equal
from farm.compiler.ir.relax_rewriter import (
    ELEMENTWISE,
    REDUCTIONS,
    Rewriter,
    Rule,
    op_name,
    permute_dims_axes,
    shape_of,
)

NHWC, NCHW = [0, 2, 3, 1], [0, 3, 1, 2]  # as permutations of each other
# Elementwise, too, but of other types than the result's: not for every reader of ELEMENTWISE.
_OF_OTHER_TYPES = [
    f"relax.{name}"
    for name in (
        *("astype", "where", "greater", "greater_equal", "less", "less_equal", "equal"),
        *("not_equal", "logical_and", "logical_or", "logical_not"),
    )
]
_TOKENS = [0, 2, 1]  # of [N, C, H * W], and back
_SHUFFLED, _SHUFFLED_LAST = [0, 2, 1, 3, 4], [0, 1, 2, 4, 3]


@mutator
class TransposeSinker(Rewriter):
    """Moves transposes behind their consumers; the transposes that remain are dead code."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            "relax.permute_dims": self._compose,
            "relax.reshape": self._reshape,
            "relax.squeeze": lambda call: self._cancel_inverse(call, "relax.expand_dims"),
            "relax.expand_dims": lambda call: self._cancel_inverse(call, "relax.squeeze"),
            "relax.strided_slice": self._slice,
            "relax.concat": self._concat,
            "relax.nn.pad": self._pad,
            "relax.nn.max_pool2d": self._pool,
            "relax.nn.avg_pool2d": self._pool,
            "relax.image.resize2d": self._resize,
            **dict.fromkeys(REDUCTIONS, self._reduce),
            **dict.fromkeys([*ELEMENTWISE, *_OF_OTHER_TYPES], self._elementwise),
            "relax.nn.prelu": self._prelu,
        }

    def _compose(self, call: Call) -> relax.Expr | None:
        """Compose two transposes; those that cancel leave their source."""
        inner, outer = self.called(call.args[0], "relax.permute_dims"), permute_dims_axes(call)
        first = None if inner is None else permute_dims_axes(inner)
        if inner is None or first is None or outer is None:
            return None
        both = [first[axis] for axis in outer]
        source = inner.args[0]
        cancel = both == list(range(len(both)))
        return source if cancel else relax.op.permute_dims(source, both)

    def _cancel_inverse(self, call: Call, inverse: str) -> relax.Expr | None:
        """Cancel an axis of one that is added and removed again, or removed and added again."""
        inner = self.called(call.args[0], inverse)
        before, after = None if inner is None else shape_of(inner.args[0]), shape_of(call)
        if inner is None or before is None or after is None or not shapes_are_equal(before, after):
            return None
        return inner.args[0]

    def _reshape(self, call: Call) -> relax.Expr | None:
        for rule in (self._flatten, self._unflatten, self._shuffle):
            if (result := rule(call)) is not None:
                return result
        return None

    def _flatten(self, call: Call) -> relax.Expr | None:
        """Return the pixels of images as tokens: [N, C, H, W] to [N, C, H * W]."""
        source, result = self._last(call.args[0]), shape_of(call)
        image = None if source is None else shape_of(source)
        if image is None or result is None or any(map(is_dynamic, image[1:])):
            return None
        count, height, width, channels = image
        if not shapes_are_equal(result, [count, channels, height * width]):
            return None
        tokens = self.builder_.emit(relax.op.reshape(source, [count, height * width, channels]))
        return relax.op.permute_dims(tokens, _TOKENS)

    def _unflatten(self, call: Call) -> relax.Expr | None:
        """Return tokens as the pixels of images: [N, C, H * W] to [N, C, H, W]."""
        turned, result = self.called(call.args[0], "relax.permute_dims"), shape_of(call)
        if turned is None or permute_dims_axes(turned) != _TOKENS or result is None:
            return None
        tokens = shape_of(turned.args[0])
        if len(result) != len(NHWC) or tokens is None or any(map(is_dynamic, result[1:])):
            return None
        count, channels, height, width = result
        if not shapes_are_equal(tokens, [count, height * width, channels]):
            return None
        return self._first(relax.op.reshape(turned.args[0], [count, height, width, channels]))

    def _shuffle(self, call: Call) -> relax.Expr | None:
        turned = self.called(call.args[0], "relax.permute_dims")
        grouped = (
            self.called(turned.args[0], "relax.reshape")
            if turned is not None and permute_dims_axes(turned) == _SHUFFLED
            else None
        )
        source = None if grouped is None else self._last(grouped.args[0])
        shapes = [
            shape
            for one in (source, grouped, call)
            if one is not None and (shape := shape_of(one)) is not None
        ]
        if len(shapes) < 3:
            return None
        (count, height, width, channels), (_, groups, each, *image), result = shapes
        if not shapes_are_equal(image, [height, width]) or not shapes_are_equal(
            result, [count, channels, height, width]
        ):
            return None
        emit = self.builder_.emit
        apart = emit(relax.op.reshape(source, [count, height, width, groups, each]))
        shuffled = emit(relax.op.permute_dims(apart, _SHUFFLED_LAST))
        return self._first(relax.op.reshape(shuffled, [count, height, width, channels]))

    def _slice(self, call: Call) -> relax.Expr | None:
        source = self._last(call.args[0])
        if source is None:
            return None
        axes, *bounds = ([int(number.value) for number in argument] for argument in call.args[1:])
        return self._first(
            relax.op.strided_slice(source, [_last_axis(axis) for axis in axes], *bounds)
        )

    def _pad(self, call: Call) -> relax.Expr | None:
        source = self._last(call.args[0])
        if source is None:
            return None
        widths = [int(width) for width in call.attrs.pad_width]
        turned = [width for axis in NHWC for width in widths[2 * axis : 2 * axis + 2]]
        return self._first(
            relax.op.nn.pad(source, turned, call.attrs.pad_mode, call.attrs.pad_value)
        )

    def _concat(self, call: Call) -> relax.Expr | None:
        parts = self.bound(call.args[0])
        if not isinstance(parts, relax.Tuple):
            return None
        sources = [self._last(part) for part in parts.fields]
        if any(source is None for source in sources):
            return None
        return self._first(relax.op.concat(sources, _last_axis(int(call.attrs.axis))))

    def _pool(self, call: Call) -> relax.Expr | None:
        source, given = self._last(call.args[0]), call.attrs
        if source is None or given.layout != "NCHW" or given.out_layout not in ("", "NCHW"):
            return None
        pool = relax.op.nn.max_pool2d if "max" in op_name(call) else relax.op.nn.avg_pool2d
        result = pool(
            source,
            given.pool_size,
            given.strides,
            given.padding,
            given.dilation,
            given.ceil_mode,
            given.count_include_pad,
            "NHWC",
        )
        return self._first(result)

    def _resize(self, call: Call) -> relax.Expr | None:
        source, given = self._last(call.args[0]), call.attrs
        if source is None or given.layout != "NCHW":
            return None
        result = relax.op.image.resize2d(
            source,
            call.args[1],
            roi=list(given.roi),
            layout="NHWC",
            method=given.method,
            coordinate_transformation_mode=given.coordinate_transformation_mode,
            rounding_method=given.rounding_method,
            cubic_alpha=given.cubic_alpha,
            cubic_exclude=given.cubic_exclude,
            extrapolation_value=given.extrapolation_value,
            out_dtype=given.out_dtype,
        )
        return self._first(result)

    def _reduce(self, call: Call) -> relax.Expr | None:
        source, given = self._last(call.args[0]), call.attrs
        if source is None or given.axis is None:
            return None
        axes = sorted(_last_axis(int(axis)) for axis in given.axis)
        reduce = REDUCTIONS[op_name(call)]
        if given.keepdims:
            return self._first(reduce(source, axes, keepdims=True))
        # [N, C] is what remains of both layouts, in the same order.
        return reduce(source, axes) if axes == [1, 2] else None

    def _prelu(self, call: Call) -> relax.Expr | None:
        source = self._last(call.args[0])
        if source is None:
            return None
        axis = _last_axis(int(call.attrs.axis))
        return self._first(relax.op.nn.prelu(source, call.args[1], axis))

    def _elementwise(self, call: Call) -> relax.Expr | None:
        if not any(self._last(argument) is not None for argument in call.args):
            return None
        operands = [self._operand(argument) for argument in call.args]
        if any(operand is None for operand in operands):
            return None
        return self._first(Call(call.op, operands, call.attrs))

    def _operand(self, argument: relax.Expr) -> relax.Expr | None:
        """Return an operand for a result in NHWC; None if it has to be transposed."""
        if not isinstance(argument.ty, relax.TensorType):
            return argument
        if (source := self._last(argument)) is not None:
            return source
        value = self.value(argument)
        if value is None or value.ndim > len(NHWC):
            return None
        if value.size == 1:
            return argument
        whole = value.reshape((1,) * (len(NHWC) - value.ndim) + value.shape)
        return relax.const(np.ascontiguousarray(whole.transpose(NHWC)), str(value.dtype))

    def _first(self, expression: relax.Expr) -> relax.Expr:
        return relax.op.permute_dims(self.builder_.emit(expression), NCHW)

    def _last(self, expression: relax.Expr) -> relax.Expr | None:
        """Return the NHWC tensor that an NCHW tensor is the transpose of; None if it is not one."""
        call = self.called(expression, "relax.permute_dims")
        return call.args[0] if call is not None and permute_dims_axes(call) == NCHW else None


def _last_axis(axis: int) -> int:
    """Return the index in NHWC of an axis of NCHW."""
    return NHWC.index(axis % 4)
