"""Kernels for GPUs, each by the first rule that takes it.

Most are of dlight, TVM's set of schedules that need no search (tvm.s_tir.dlight); its matrix rule computes convolutions as products of
gathered rows. They were not measured on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import dlight

from farm.compiler import half_arithmetic, phases, short_sums, tensor_cores
from farm.errors import BuildError
from farm.types import Kernel

CUDA, OPENCL = "cuda", "opencl"
KINDS = (CUDA, OPENCL)
LANES = 16  # of a product's tile, to which channels are filled up
ScheduleRule = Callable[[tirx.PrimFunc, tvm.target.Target], Any]


def is_gpu(target: tvm.target.Target) -> bool:
    return target.kind.name in KINDS


def legalization() -> Mapping[str, Any]:
    """Loops of operators for which TVM has none in the layouts that farm chooses."""
    return {"relax.nn.conv2d_transpose": phases.channels_first, **half_arithmetic.legalization()}


def _of_dlight(*rules: type[dlight.base.ScheduleRule]) -> dict[str, ScheduleRule]:
    return {rule.__name__.lower(): partial(_by, rule()) for rule in rules}


def _by(rule: dlight.base.ScheduleRule, function: tirx.PrimFunc, target: tvm.target.Target) -> Any:
    return rule.apply(function, target, False)


_RULES: dict[str, ScheduleRule] = {
    tensor_cores.RULE: tensor_cores.apply,
    **_of_dlight(dlight.gpu.Matmul, dlight.gpu.GEMV),
    short_sums.RULE: short_sums.apply,
    **_of_dlight(dlight.gpu.Reduction, dlight.gpu.GeneralReduction, dlight.gpu.Transpose, dlight.gpu.Fallback),
}


def schedule_one(name: str, function: tirx.PrimFunc, target: tvm.target.Target) -> tuple[tirx.PrimFunc, Kernel]:
    """A kernel shared out among a GPU's threads. Raises BuildError: unscheduled, it would run on the host, on the device's memory."""
    failure = "it is no nest of loops"
    for rule, apply in _RULES.items():
        try:
            scheduled = apply(function, target)
        except Exception as exc:  # a rule that does not apply, in whatever words
            failure = f"{rule}: {str(exc).strip().splitlines()[-1][:200] if str(exc).strip() else type(exc).__name__}"
            continue
        if scheduled is not None:
            made = scheduled[0] if isinstance(scheduled, list) else scheduled
            return made.mod["main"], Kernel(name, rule, "")
    raise BuildError(f"kernel {name} has no code for a GPU", failure, "use a CPU profile for this model")
