"""Store weights as bfloat16 in the parameters of a build and compute in float32.

This is enabled if the model has bfloat16 weights. What becomes of them before they are parameters,
such as another layout, keeps their numbers. They are widened once, when a build is loaded, see
farm.compiler.load_time_transforms: a bfloat16 is the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call

from farm.compiler.graph.precision.fp16_weights import LEAST_BYTES, SINGLE
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.relax_rewriter import op_name

Array = np.ndarray[Any, Any]
BFLOAT16 = "bfloat16"
KEEPS_BF16 = "bfloat16_weights"  # attribute of a `main` whose parameters are to be kept so
WIDENING = "bfloat16_to_float"
_LOWER_BITS = 16  # of a float32, which a bfloat16 does not have


def mark_bf16_weights(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module, marked if it casts bfloat16 constants to float32."""
    found: list[Call] = []

    def look(node: Any) -> None:
        if isinstance(node, Call) and op_name(node) == "relax.astype":
            value = constant_value(node.args[0])
            if value is not None and value.dtype == ml_dtypes.bfloat16:
                found.append(node)

    relax.analysis.post_order_visit(module["main"], look)
    if found:
        module["main"] = module["main"].with_attr(KEEPS_BF16, True)
    return module


def bf16_parameters(main: relax.Function, parameters: Mapping[int, Array]) -> dict[int, Array]:
    """Return those of the parameters of `main` that are to be stored as bfloat16, as bfloat16."""
    if KEEPS_BF16 not in main.attrs:
        return {}
    made = {index: _bf16_if_exact(value) for index, value in parameters.items()}
    return {index: value for index, value in made.items() if value is not None}


def _bf16_if_exact(value: Array) -> Array | None:
    """Return a float32 constant as bfloat16.

    None if it is small or bfloat16 cannot hold it exactly.
    """
    if value.dtype != np.float32 or value.nbytes < LEAST_BYTES:
        return None
    bits = np.ascontiguousarray(value).view(np.uint32)
    if (bits & ((1 << _LOWER_BITS) - 1)).any():
        return None
    upper: Array = (bits >> _LOWER_BITS).astype(np.uint16).view(ml_dtypes.bfloat16)
    return upper


def bf16_to_fp32_kernel() -> tirx.PrimFunc:
    """Return a kernel that converts bfloat16 to float32."""
    count = te.var("count", "int64")
    narrow = te.placeholder((count,), BFLOAT16, "narrow")

    def widened(i: tirx.Expr) -> tirx.Expr:
        bits = tirx.reinterpret("uint16", narrow[i]).astype("uint32")
        return tirx.reinterpret(SINGLE, bits << tirx.const(_LOWER_BITS, "uint32"))

    return te.create_prim_func([narrow, te.compute((count,), widened, name=WIDENING)])
