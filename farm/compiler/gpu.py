"""Kernels for GPUs, each by the first of dlight's rules that takes it.

dlight is TVM's set of schedules that need no search (tvm.s_tir.dlight); its matrix rule computes convolutions as products of gathered
rows. They were not measured on a GPU yet.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir import dlight

from farm.errors import BuildError
from farm.types import Kernel

CUDA, OPENCL = "cuda", "opencl"
KINDS = (CUDA, OPENCL)


def is_gpu(target: tvm.target.Target) -> bool:
    return target.kind.name in KINDS


def schedule_one(name: str, function: tirx.PrimFunc, target: tvm.target.Target) -> tuple[tirx.PrimFunc, Kernel]:
    """A kernel shared out among a GPU's threads. Raises BuildError: unscheduled, it would run on the host, on the device's memory."""
    gpu = dlight.gpu
    failure = "it is no nest of loops"
    for rule in (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Transpose(), gpu.Fallback()):
        try:
            scheduled = rule.apply(function, target, False)
        except Exception as exc:  # a rule that does not apply, in whatever words
            failure = f"{type(rule).__name__}: {str(exc).strip().splitlines()[-1][:200] if str(exc).strip() else type(exc).__name__}"
            continue
        if scheduled is not None:
            made = scheduled[0] if isinstance(scheduled, list) else scheduled
            return made.mod["main"], Kernel(name, type(rule).__name__.lower(), "")
    raise BuildError(f"kernel {name} has no code for a GPU", failure, "use a CPU profile for this model")
