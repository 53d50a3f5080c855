"""Give each group of a grouped convolution as many output channels as fill vectors.

A vector of results must not span two groups, because its lanes would read different inputs: 34
channels a group, as in ShuffleNet (Zhang et al., 2018), have no tile. With zero channels after
those of each group they have one. The zero channels are dropped again in the kernel that follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, rewriting, shape_of

_NARROWEST = 4  # lanes of a tile at least


def whole_groups(widths: Sequence[int]) -> tvm.transform.Pass:
    """Return the pass for a CPU whose vectors have these numbers of lanes."""
    return rewriting("farm.WholeGroups", partial(_WholeGroups, widths=widths))


def whole_channels(channels: int, widths: Sequence[int]) -> int:
    """Return the number of channels that a group with this many gets.

    It is a multiple of the lanes with which the group takes the fewest vectors.
    """
    if channels % _NARROWEST == 0:
        return channels
    lanes = min({*widths, _NARROWEST}, key=lambda lanes: (-(-channels // lanes), lanes))
    return -(-channels // lanes) * lanes


@mutator
class _WholeGroups(Rewriter):
    """Rewrites grouped convolutions (NHWC, HWIO, float32) that are not depthwise."""

    def __init__(self, module: tvm.IRModule, widths: Sequence[int]) -> None:
        super().__init__(module)
        self._widths = widths

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.nn.conv2d": self._padded}

    def _padded(self, call: Call) -> relax.Expr | None:
        given, weight, shape = call.attrs, constant(call.args[1]), shape_of(call)
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
        whole = whole_channels(each, self._widths)
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
