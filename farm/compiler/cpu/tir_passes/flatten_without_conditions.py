"""Flatten the indices of buffers without using the conditions around them.

FlattenBuffer simplifies the index of each access under the conditions that hold there (TVM:
IterMapSimplifyWithContext in src/arith/iter_affine_map.cc). A lower bound such as `1 <= f % 30`
turns `f % 30` into the iterator `f % 30 - 1` and an offset of 1. Where the index divides a sum,
adds to the quotient, and takes that modulo a number, as it does for a reshape before a padding,
the offset is lost, and the kernel reads other elements. The negation of an upper bound is a lower
bound, so all comparisons of integers are hidden.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_HIDDEN = "tirx.ignore_loop_partition"


@tvm.transform.module_pass(opt_level=0, name="farm.FlattenBufferWithoutConditions")
class FlattenBufferWithoutConditions:
    """TVM's FlattenBuffer, from which comparisons are hidden.

    Meanwhile they stand within two `ignore_loop_partition`. Those within one are hidden from
    LoopPartition, and stay so.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module with flat buffers."""
        hidden = _map_bodies(module, _COMPARISONS, _hide)
        return _map_bodies(tirx.transform.FlattenBuffer()(hidden), (tvm.ir.Call,), _show)


def _map_bodies(module: tvm.IRModule, kinds: tuple[type, ...], change: Any) -> tvm.IRModule:
    changes = [(kind, change) for kind in kinds]
    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            body = tvm_ffi.structural_map(function.body, changes, order="post")
            result[variable] = function.with_body(body)
    return result


def _hide(comparison: Any) -> Any:
    if "int" not in str(comparison.a.ty.dtype):
        return comparison
    return tirx.ignore_loop_partition(tirx.ignore_loop_partition(comparison))


def _show(call: tvm.ir.Call) -> Any:
    if not _is_hidden(call) or not _is_hidden(call.args[0]):
        return call
    return call.args[0].args[0]


def _is_hidden(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == _HIDDEN
