"""Let a convolution of few channels read its image as planes, without a transpose before it.

An exported image has its channels first, all else is computed with channels last. A convolution
multiplies vectors of output channels by one number of the image, so it reads planes as well as
pixels. Padding copies whole rows of planes, but three numbers at a time of pixels.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule, permute_dims_axes, shape_of

_TO_CHANNELS_LAST = [0, 2, 3, 1]
_MOST_CHANNELS = 4  # of an image; features of a network have other layouts


@mutator
class PlanarImageRewriter(Rewriter):
    """Rewrites convolutions of transposed images as convolutions from NCHW to NHWC."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.nn.conv2d": self._planar}

    def _planar(self, call: Call) -> relax.Expr | None:
        attributes, weight = call.attrs, self.value(call.args[1])
        transpose = self.called(call.args[0], "relax.permute_dims")
        if transpose is None or weight is None or weight.dtype != np.float32:
            return None
        shape = shape_of(transpose.args[0])
        if (
            (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO")
            or attributes.out_layout not in ("", "NHWC")
            or attributes.groups != 1
            or str(call.ty.dtype) != "float32"
            or permute_dims_axes(transpose) != _TO_CHANNELS_LAST
            or shape is None
            or not all(isinstance(extent, int) and extent > 0 for extent in shape[1:])
            or shape[1] > _MOST_CHANNELS
        ):
            return None
        return relax.op.nn.conv2d(
            transpose.args[0],
            call.args[1],
            strides=attributes.strides,
            padding=attributes.padding,
            dilation=attributes.dilation,
            data_layout="NCHW",
            kernel_layout="HWIO",
            out_layout="NHWC",
        )
