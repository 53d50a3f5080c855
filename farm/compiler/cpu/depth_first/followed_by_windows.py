"""Find the convolutions whose results windows slide over, before their kernels are made.

Only a convolution that is computed row by row can become one kernel with the windows. All
convolutions of one shape have one configuration: where windows follow one of them, all keep rows.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from farm.compiler.ir.relax_rewriter import ELEMENTWISE, op_name, shape_of

_CONVOLUTION = "relax.nn.conv2d"
_POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")


def shapes_followed_by_windows(module: tvm.IRModule) -> set[str]:
    """Return what `shapes_of_convolution` returns for these convolutions.

    Element-wise operators may stand between the two.
    """
    followed, found = set[relax.Var](), set[str]()
    for block in reversed(module["main"].body.blocks):
        for binding in reversed(block.bindings):
            value, name = binding.value, op_name(binding.value)
            if name in _POOLS or _is_depthwise(value):
                followed.add(value.args[0])
            elif binding.var not in followed:
                continue
            elif name in ELEMENTWISE:
                followed |= {one for one in value.args if shape_of(one) == shape_of(binding.var)}
            elif name == _CONVOLUTION:
                found.add(shapes_of_convolution(value))
    return found


def shapes_of_convolution(call: Call) -> str:
    """Return the shapes of the image and the weight of a convolution as one text."""
    return " ".join(str(shape_of(argument)) for argument in call.args[:2])


def _is_depthwise(value: relax.Expr) -> bool:
    """Return whether an expression is a convolution in which each group is one channel."""
    if op_name(value) != _CONVOLUTION:
        return False
    attributes, shape = value.attrs, shape_of(value)
    channels = str(attributes.out_layout or attributes.data_layout).index("C")
    return bool(shape and 1 < attributes.groups == shape[channels])
