"""Find the convolutions whose results windows slide over, before their kernels are made.

Only a convolution that is computed row by row can become one kernel with the windows. All
convolutions of one shape have one configuration: where windows follow one of them, all keep rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Call

from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import ELEMENTWISE, op_name, shape_of

_CONVOLUTION = "relax.nn.conv2d"
_POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")


@dataclass(frozen=True, slots=True)
class ConvolutionShapes:
    """Shapes of a convolution: of its image, without the batch, and of its weight."""

    image: tuple[int, ...]
    weight: tuple[int, ...]

    @classmethod
    def of(cls, call: Call) -> ConvolutionShapes | None:
        """Return the shapes of a convolution; None if more than the batch is open."""
        image, weight = map(shape_of, call.args[:2])
        if image is None or weight is None or any(map(is_dynamic, (*image[1:], *weight))):
            return None
        return cls(tuple(map(int, image[1:])), tuple(map(int, weight)))


def shapes_followed_by_windows(module: tvm.IRModule) -> set[ConvolutionShapes]:
    """Return the shapes of these convolutions.

    Element-wise operators may stand between the two.
    """
    followed, found = set[relax.Var](), set[ConvolutionShapes]()
    for block in reversed(module["main"].body.blocks):
        for binding in reversed(block.bindings):
            value, name = binding.value, op_name(binding.value)
            if name in _POOLS or _is_depthwise(value):
                followed.add(value.args[0])
            elif binding.var not in followed:
                continue
            elif name in ELEMENTWISE:
                followed |= {one for one in value.args if shape_of(one) == shape_of(binding.var)}
            elif name == _CONVOLUTION and (shapes := ConvolutionShapes.of(value)) is not None:
                found.add(shapes)
    return found


def _is_depthwise(value: relax.Expr) -> bool:
    """Return whether an expression is a convolution in which each group is one channel."""
    if op_name(value) != _CONVOLUTION:
        return False
    attributes, shape = value.attrs, shape_of(value)
    channels = str(attributes.out_layout or attributes.data_layout).index("C")
    return bool(shape and 1 < attributes.groups == shape[channels])
