"""Kernels for GPUs, each by the first rule that takes it.

Most are of dlight, TVM's set of schedules that need no search (tvm.s_tir.dlight); its matrix rule computes convolutions as products of
gathered rows. They were not measured on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.s_tir import dlight

from farm.compiler import half_arithmetic, short_sums, tensor_cores
from farm.errors import BuildError
from farm.types import Kernel

CUDA, OPENCL = "cuda", "opencl"
KINDS = (CUDA, OPENCL)
ScheduleRule = Callable[[tirx.PrimFunc, tvm.target.Target], Any]


def is_gpu(target: tvm.target.Target) -> bool:
    return target.kind.name in KINDS


def legalization() -> Mapping[str, Any]:
    """Loops of operators for which TVM has none in the layouts that farm chooses."""
    return {"relax.nn.conv2d_transpose": _transposed, **half_arithmetic.legalization()}


def _transposed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A transposed convolution over NHWC as an ordinary one of the input with zeros between its pixels. Raises ValueError."""
    attributes, (high, wide) = call.attrs, list(map(int, call.args[1].ty.shape))[2:]
    top, left, bottom, right = (int(amount) for amount in attributes.padding)
    before = (high - 1 - top, wide - 1 - left)
    after = (high - 1 - bottom + int(attributes.output_padding[0]), wide - 1 - right + int(attributes.output_padding[1]))
    plain = attributes.groups == 1 and all(int(step) == 1 for step in attributes.dilation) and attributes.data_layout == "NHWC"
    if not plain or min(*before, *after) < 0:
        what = f"groups {attributes.groups}, dilation {list(map(int, attributes.dilation))}, padding {[top, left, bottom, right]}"
        raise ValueError(f"a transposed convolution of {what} has no code for a GPU")

    def body(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        spread = topi.nn.dilate(data, (1, int(attributes.strides[0]), int(attributes.strides[1]), 1))
        return topi.nn.conv2d_nhwc(topi.nn.pad(spread, (0, *before, 0), (0, *after, 0)), weight, 1, 0, 1)

    turned = builder.emit(relax.op.flip(builder.emit(relax.op.flip(call.args[1], 2)), 3))
    return builder.call_te(
        body, call.args[0], builder.emit(relax.op.permute_dims(turned, [2, 3, 0, 1])), primfunc_name_hint="conv2d_transpose"
    )


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
