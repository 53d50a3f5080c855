"""Flatten the indices of buffers without using the conditions around them.

TVM's FlattenBuffer simplifies the index of each buffer access. It uses the conditions that hold
there (IterMapSimplifyWithContext in src/arith/iter_affine_map.cc). The condition `1 <= f % 30`
makes it write `f % 30` as `(f % 30 - 1) + 1`. It then loses the `+ 1` in an index of the form
`(sum // a + b) % c`, which a reshape followed by a padding has, and the kernel reads other
elements. The negation of an upper bound is a lower bound, so this pass hides all comparisons of
integers from FlattenBuffer.
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
    """Run TVM's FlattenBuffer with comparisons hidden from it.

    A hidden comparison stands within two calls of `ignore_loop_partition`. One call hides it from
    LoopPartition, see safe_loop_partition; such calls are kept.
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
