"""Give each group of a grouped convolution as many output channels as fill vectors.

A vector of results must not span two groups, because its lanes would read different inputs: 34
channels a group, as in ShuffleNet (Zhang et al., 2018), have no tile. With zero channels after
those of each group they have one. The zero channels are dropped again in the kernel that follows.
If that kernel copies anyway, as a channel shuffle does, dropping them is free, and groups of 68
channels are filled, too, if wider vectors are predicted to be faster.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_address, constant_value
from farm.compiler.ir.relax_rewriter import (
    ELEMENTWISE,
    Rewriter,
    Rule,
    op_name,
    rewriter_pass,
    shape_of,
)

_COPIES = {"relax.reshape", "relax.permute_dims"}
_NARROWEST = 4  # lanes of a tile at least


# Returns the channels to fill a group up to, from pixels of a row, channels and depth of a sum.
Fastest = Callable[[int, int, int], int]


def pad_group_channels_pass(widths: Sequence[int], fastest: Fastest) -> tvm.transform.Pass:
    """Return the pass for a CPU whose vectors have these numbers of lanes.

    `fastest` decides if filling costs no copy.
    """
    return rewriter_pass("farm.WholeGroups", partial(_WholeGroups, widths=widths, fastest=fastest))


def padded_group_channels(channels: int, widths: Sequence[int]) -> int:
    """Return the number of channels that a group with this many gets.

    It is a multiple of the lanes with which the group takes the fewest vectors.
    """
    if channels % _NARROWEST == 0:
        return channels
    lanes = min({*widths, _NARROWEST}, key=lambda lanes: (-(-channels // lanes), lanes))
    return -(-channels // lanes) * lanes


def _copied_after(function: relax.Function) -> set[int]:
    """Return the addresses of the weights of convolutions whose results are only copied.

    That is, a change of layout follows, perhaps after element-wise operators.
    """
    users: dict[relax.Var, list[relax.Binding]] = defaultdict(list)
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    for binding in bindings:
        for argument in getattr(binding.value, "args", ()):
            if isinstance(argument, relax.Var):
                users[argument].append(binding)
    found = set()
    for binding in bindings:
        if (
            op_name(binding.value) != "relax.nn.conv2d"
            or constant_value(binding.value.args[1]) is None
        ):
            continue
        following = users[binding.var]
        while len(following) == 1 and op_name(following[0].value) in ELEMENTWISE:
            following = users[following[0].var]
        if len(following) == 1 and op_name(following[0].value) in _COPIES:
            found.add(constant_address(binding.value.args[1]))
    return found


@mutator
class _WholeGroups(Rewriter):
    """Rewrites grouped convolutions (NHWC, HWIO, float32) that are not depthwise."""

    def __init__(self, module: tvm.IRModule, widths: Sequence[int], fastest: Fastest) -> None:
        super().__init__(module)
        self._widths, self._fastest = widths, fastest
        self._copied = _copied_after(module["main"])

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.nn.conv2d": self._padded}

    def _padded(self, call: Call) -> relax.Expr | None:
        given, weight, shape = call.attrs, constant_value(call.args[1]), shape_of(call)
        groups = int(given.groups)
        if weight is None or shape is None or groups == 1 or weight.dtype != np.float32:
            return None
        if (given.data_layout, given.kernel_layout, given.out_layout) not in (
            ("NHWC", "HWIO", "NHWC"),
            ("NHWC", "HWIO", ""),
        ):
            return None
        *kernel, outputs = weight.shape
        each = outputs // groups
        whole = padded_group_channels(each, self._widths)
        if constant_address(call.args[1]) in self._copied and isinstance(shape[2], int):
            whole = self._fastest(shape[2], each, math.prod(kernel))
        if each == 1 or whole == each:
            return None
        filled = np.zeros((*kernel, groups, whole), weight.dtype)
        filled[..., :each] = weight.reshape(*kernel, groups, each)
        made = relax.op.nn.conv2d(
            call.args[0],
            relax.const(filled.reshape(*kernel, groups * whole)),
            given.strides,
            given.padding,
            given.dilation,
            groups,
            "NHWC",
            "HWIO",
            out_dtype=given.out_dtype,
        )
        batch, height, width, _ = shape
        apart = self._emit(
            relax.op.reshape(self._emit(made), (batch, height, width, groups, whole))
        )
        kept = self._emit(relax.op.strided_slice(apart, [4], [0], [each]))
        return relax.op.reshape(kept, (batch, height, width, outputs))

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)
