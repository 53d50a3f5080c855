"""Find the convolutions whose results windows slide over, before their kernels are made.

Only a convolution that is computed row by row can become one kernel with the windows.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst

from farm.compiler.ir.constants import constant_address
from farm.compiler.ir.relax_rewriter import ELEMENTWISE, op_name, shape_of

_CONVOLUTION = "relax.nn.conv2d"
_POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")


def weights_followed_by_windows(module: tvm.IRModule) -> set[int]:
    """Return the addresses of the weights of these convolutions, see `constant_address`.

    Element-wise operators may stand between the two.
    """
    followed, found = set[relax.Var](), set[int]()
    for block in reversed(module["main"].body.blocks):
        for binding in reversed(block.bindings):
            value, name = binding.value, op_name(binding.value)
            if name in _POOLS or _is_depthwise(value):
                followed.add(value.args[0])
            elif binding.var not in followed:
                continue
            elif name in ELEMENTWISE:
                followed |= {one for one in value.args if shape_of(one) == shape_of(binding.var)}
            elif name == _CONVOLUTION and isinstance(value.args[1], GenericConst):
                found.add(constant_address(value.args[1]))
    return found


def _is_depthwise(value: relax.Expr) -> bool:
    """Return whether an expression is a convolution in which each group is one channel."""
    if op_name(value) != _CONVOLUTION:
        return False
    attributes, shape = value.attrs, shape_of(value)
    channels = str(attributes.out_layout or attributes.data_layout).index("C")
    return bool(shape and 1 < attributes.groups == shape[channels])
