"""Rewrite group norms as sums over the pixels of each channel, which need no other layout.

ONNX exports a group norm as an instance norm of the tensor reshaped to [N, groups, rest], with
scale 1 and bias 0, and a reshape back (Wu and He, "Group Normalization"; an instance norm is a
group norm with one channel per group). TVM's lowering of that transposes a channels-last image,
reads it four times, and adds up one number at a time. A model from torch has TVM's operators
group_norm and instance_norm instead. TVM computes their variance as the mean of the squares minus
the square of the mean, which loses digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import Extent, is_dynamic, shapes_are_equal
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, shape_of

_IMAGES = (3, 4)  # axes: rows NCW and images NCHW
_IMAGES_AND_VOLUMES = (*_IMAGES, 5)


@mutator
class GroupNormRewriter(Rewriter):
    """Rewrites group norms, instance norms, and decomposed instance norms.

    These are (x - mean(x)) / sqrt(variance(x) + epsilon).
    """

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {
            "relax.nn.group_norm": lambda call: self._operator(call, int(call.attrs.num_groups)),
            "relax.nn.instance_norm": lambda call: self._operator(call, None),
            "relax.nn.layer_norm": self._over_several_axes,
            "relax.divide": self._normalized,
            "relax.multiply": lambda call: self._without(call, 1),
            "relax.add": lambda call: self._without(call, 0),
            "relax.reshape": self._reshaped_back,
        }

    def _normalized(self, call: Call) -> relax.Expr | None:
        centred, root = (
            self.called(call.args[0], "relax.subtract"),
            self.called(call.args[1], "relax.sqrt"),
        )
        added = None if root is None else self.called(root.args[0], "relax.add")
        if centred is None or added is None:
            return None
        mean, variance = (
            self.called(centred.args[1], "relax.mean"),
            self.called(added.args[0], "relax.variance"),
        )
        epsilon, groups, shape = (
            constant_value(added.args[1]),
            centred.args[0],
            shape_of(centred.args[0]),
        )
        if (
            mean is None
            or variance is None
            or epsilon is None
            or epsilon.size != 1
            or shape is None
        ):
            return None
        if not all(
            _over_pixels(each, len(shape)) and each.args[0].same_as(groups)
            for each in (mean, variance)
        ):
            return None
        data = self._images_of(groups, shape)
        if data is None:
            return None
        pixels = list(range(2, len(data.ty.shape.values)))
        result = self._norm_of_groups(
            data, shape[1], relax.const(epsilon.reshape(()), epsilon.dtype.name), pixels
        )
        return result if data.same_as(groups) else relax.op.reshape(result, call.ty.shape)

    def _operator(self, call: Call, groups: int | None) -> relax.Expr | None:
        """Rewrite group_norm or instance_norm, if the channels are the second axis.

        `groups` is None for an instance norm, in which each channel is a group. Its axes contain
        the batch where torch wrote it, and where a norm is by the statistics of a batch.
        """
        data, scale, bias = call.args
        shape, attributes = shape_of(data), call.attrs
        if (
            shape is None
            or len(shape) not in _IMAGES_AND_VOLUMES
            or any(map(is_dynamic, shape[1:]))
            or str(data.ty.dtype) != "float32"
            or int(attributes.channel_axis) % len(shape) != 1
        ):
            return None
        axes = sorted(int(axis) % len(shape) for axis in attributes.axes)
        pixels = list(range(2, len(shape)))
        if axes != pixels and (groups is not None or axes != [0, *pixels]):
            return None
        if axes != pixels and shape[0] == 1:
            axes = pixels
        epsilon = relax.const(float(attributes.epsilon), "float32")
        result = self._norm_of_groups(data, groups or int(shape[1]), epsilon, axes)
        full = [1, int(shape[1]), *(1 for _ in shape[2:])]
        op, emit = relax.op, self.builder_.emit
        if attributes.scale:
            result = emit(op.multiply(result, emit(op.reshape(scale, full))))
        return op.add(result, emit(op.reshape(bias, full))) if attributes.center else result

    def _images_of(self, groups: relax.Expr, shape: list[Extent]) -> relax.Expr | None:
        """Return the images whose channels form these groups; `groups` if each is one channel."""
        reshaped = self.called(groups, "relax.reshape")
        for data in (groups,) if reshaped is None else (reshaped.args[0], groups):
            image = shape_of(data)
            if (
                image is None
                or len(image) not in _IMAGES
                or any(map(is_dynamic, image[1:]))
                or not shapes_are_equal(image[:1], shape[:1])
            ):
                continue
            if (
                not is_dynamic(shape[1])
                and image[1] % shape[1] == 0
                and str(data.ty.dtype) == "float32"
            ):
                return data
        return None

    def _over_several_axes(self, call: Call) -> relax.Expr | None:
        """Rewrite a layer norm over several last axes as one over their product."""
        data, scale, bias = call.args
        shape, attributes = shape_of(data), call.attrs
        count = len(attributes.axes)
        if shape is None or count < 2 or any(map(is_dynamic, shape[-count:])):
            return None
        axes = [int(axis) % len(shape) for axis in attributes.axes]  # in the order of the weight's
        if axes != list(range(len(shape) - count, len(shape))) or not (
            attributes.scale and attributes.center
        ):
            return None
        emit, op = self.builder_.emit, relax.op
        width = math.prod(int(extent) for extent in shape[-count:])
        rows = emit(op.reshape(data, [*(shape[:-count] or [1]), width]))
        scale, bias = (emit(op.reshape(one, [width])) for one in (scale, bias))
        normed = op.nn.layer_norm(rows, scale, bias, [-1], float(attributes.epsilon))
        return op.reshape(emit(normed), shape)

    def _norm_of_groups(
        self, data: relax.Expr, groups: int, epsilon: relax.Expr, axes: list[int]
    ) -> relax.Expr:
        """Return the norm of each group of channels over `axes` and these channels."""
        emit, op = self.builder_.emit, relax.op
        mean = self._means_of_groups(emit(op.mean(data, axes, keepdims=True)), groups)
        centred = emit(op.subtract(data, mean))
        squares = self._means_of_groups(
            emit(op.mean(emit(op.multiply(centred, centred)), axes, keepdims=True)), groups
        )
        factor = emit(
            op.divide(relax.const(1.0, "float32"), emit(op.sqrt(emit(op.add(squares, epsilon)))))
        )
        # not by `centred`: a value with two users is stored, and equal expressions become one
        shifted = emit(op.add(data, emit(op.negative(mean))))
        return emit(op.multiply(shifted, factor))

    def _means_of_groups(self, means: relax.Expr, groups: int) -> relax.Expr:
        """Return the mean of each group for each of its channels; of all channels if one group."""
        emit, shape = self.builder_.emit, list(means.ty.shape.values)
        count, channels = shape[0], int(shape[1])
        if groups == channels:
            return means
        if groups == 1:
            return emit(relax.op.mean(means, [1], keepdims=True))
        apart = emit(relax.op.reshape(means, [count, groups, channels // groups]))
        mean = emit(relax.op.mean(apart, [2], keepdims=True))
        return emit(
            relax.op.reshape(
                emit(relax.op.broadcast_to(mean, [count, groups, channels // groups])), shape
            )
        )

    def _without(self, call: Call, neutral: int) -> relax.Expr | None:
        """Return the other operand if one is the neutral constant and the result has its shape.

        A constant of lower rank is reshaped to full rank: otherwise TVM's layout pass would not
        convert the operator.
        """
        for own, other in (call.args, reversed(call.args)):
            value: Any = constant_value(other)
            shape, result = shape_of(own), shape_of(call)
            if (
                value is None
                or shape is None
                or result is None
                or not shapes_are_equal(shape, result)
            ):
                continue
            if value.dtype == np.float32 and (value == neutral).all():
                return own
            if 0 < value.ndim < len(shape):
                axes = (1,) * (len(shape) - value.ndim)
                full = relax.const(value.reshape(*axes, *value.shape), value.dtype.name)
                return Call(
                    call.op,
                    [full if argument.same_as(other) else argument for argument in call.args],
                    call.attrs,
                )
        return None

    def _reshaped_back(self, call: Call) -> relax.Expr | None:
        before = self.called(call.args[0], "relax.reshape")
        source, shape = None if before is None else before.args[0], shape_of(call)
        was = None if source is None else shape_of(source)
        return (
            source
            if was is not None and shape is not None and shapes_are_equal(was, shape)
            else None
        )


def _over_pixels(call: Call, axes: int) -> bool:
    """Return whether a mean or variance reduces all but the first two axes, with keepdims."""
    given = call.attrs.axis
    return (
        bool(call.attrs.keepdims)
        and given is not None
        and [int(axis) % axes for axis in given] == list(range(2, axes))
    )
