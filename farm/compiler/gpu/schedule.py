"""Schedules of kernels for GPUs: each kernel gets the first rule that applies.

Most rules are those of dlight, TVM's schedules without search (tvm.s_tir.dlight). Its matrix
multiplication rule computes convolutions as products of gathered rows (im2col). The schedules have
not been measured on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from farm.compiler.gpu import short_reductions, tensor_cores
from farm.compiler.graph.convolutions import transposed_conv
from farm.compiler.graph.precision import fp16_arithmetic
from farm.errors import BuildError
from farm.kernels import reduce_max_min
from farm.types import Kernel

CUDA, OPENCL = "cuda", "opencl"
KINDS = (CUDA, OPENCL)
LANES = 16  # extent of a matrix product's tile; channels are padded to a multiple of it
ScheduleRule = Callable[[tirx.PrimFunc, tvm.target.Target], Any]


def is_gpu(target: tvm.target.Target) -> bool:
    """Return whether a target is a GPU."""
    return target.kind.name in KINDS


def legalization_map() -> Mapping[str, Any]:
    """Return legalizations of operators that TVM does not have in the layouts that farm chooses.

    They map an operator's name to a function that writes its loops.
    """
    return {
        "relax.nn.conv2d_transpose": transposed_conv.legalize_conv2d_transpose_with_topi,
        **fp16_arithmetic.fp32_average_pool_legalization_map(),
        **dict.fromkeys(reduce_max_min.OPERATORS, _maximum_or_minimum),
    }


def _maximum_or_minimum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    ours = reduce_max_min.emit_float_minmax_reduction(builder, call)
    return call.op.get_attr("FLegalize")(builder, call) if ours is None else ours


def _of_dlight(*rules: type[dlight.base.ScheduleRule]) -> dict[str, ScheduleRule]:
    return {rule.__name__.lower(): partial(_by, rule()) for rule in rules}


def _by(rule: dlight.base.ScheduleRule, function: tirx.PrimFunc, target: tvm.target.Target) -> Any:
    return rule.apply(function, target, False)


_RULES: dict[str, ScheduleRule] = {
    tensor_cores.RULE: tensor_cores.schedule_on_tensor_cores,
    **_of_dlight(dlight.gpu.Matmul, dlight.gpu.GEMV),
    short_reductions.RULE: short_reductions.schedule_short_reduction,
    **_of_dlight(
        dlight.gpu.Reduction, dlight.gpu.GeneralReduction, dlight.gpu.Transpose, dlight.gpu.Fallback
    ),
}


def schedule_gpu_kernel(
    name: str, function: tirx.PrimFunc, target: tvm.target.Target
) -> tuple[tirx.PrimFunc, Kernel]:
    """Return a kernel bound to a GPU's threads, and its description.

    Raises BuildError if no rule applies: unscheduled, the kernel would run on the host, on the
    device's memory.
    """
    failure = "it is no nest of loops"
    for rule, apply in _RULES.items():
        try:
            scheduled = apply(function, target)
        except Exception as exc:  # a rule that does not apply may raise any exception
            failure = (
                f"{rule}: "
                f"{str(exc).strip().splitlines()[-1][:200] if str(exc).strip() else type(exc).__name__}"  # noqa: E501
            )
            continue
        if scheduled is not None:
            made = scheduled[0] if isinstance(scheduled, list) else scheduled
            return made.mod["main"], Kernel(name, rule, "")
    raise BuildError(
        f"kernel {name} has no code for a GPU", failure, "use a CPU profile for this model"
    )
