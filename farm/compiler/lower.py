"""From an imported module to scheduled loop nests, for one target: the part of a build that host check and boards share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.clock import timed
from farm.compiler import gpu, halves, passes, schedules
from farm.compiler.choices import NO_RECORDS, Chooser, Decision, Records
from farm.compiler.core import core_of
from farm.errors import BuildError
from farm.types import Kernel, Profile

# In every library: a model that needs no kernels at all would be exported as C source, which takes a C compiler to link.
# TVM's code generator takes from the last function, by name, whether the tensors of any may overlap.
NOTHING = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attrs(
    {"global_symbol": "no_kernel", "tirx.is_scheduled": True, "tirx.noalias": True}
)
_ON_EVERY_DEVICE = "vm.builtin."


@dataclass(frozen=True, slots=True)
class Lowered:
    """A module ready for code generation. Its `main` takes the inputs, then a tuple of `parameters` where there are any.

    `decisions` are what was chosen, by workload key; `asked` are the keys of all workloads for which a record counts.
    """

    module: tvm.IRModule
    parameters: list[np.ndarray[Any, Any]]
    kernels: tuple[Kernel, ...]
    decisions: Mapping[str, Decision]
    asked: Sequence[str]


def resolve_target(profile: Profile) -> tvm.target.Target:
    """The profile's target, `native` replaced by the CPU of this machine."""
    content: dict[str, Any] = dict(profile.target)
    if content.get("kind") not in ("llvm", *gpu.KINDS):
        raise BuildError(
            f"{profile.name}: code for {content.get('kind')} cannot be built",
            f"farm builds for llvm, which is CPUs, and for {' and '.join(gpu.KINDS)}",
            "use the CPU of the same board, for example --profile rk3399 or --profile rasp4-64",
        )
    if content.get("mcpu") == "native":
        content["mcpu"] = tvm.get_global_func("target.llvm_get_system_cpu")()
        content["mattr"] = [*content.get("mattr", ()), *_hidden_features(tvm.target.Target(content))]
    return tvm.target.Target(content)


def _hidden_features(target: tvm.target.Target) -> list[str]:
    """What the CPU's model has and this machine does not, as virtual machines may hide it: code with it would be an illegal instruction."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    implied = tvm.target.codegen.llvm_get_cpu_features(target)
    return sorted(f"-{feature}" for feature in implied if feature in found and not found[feature])


def lower(
    module: tvm.IRModule,
    weights: Sequence[np.ndarray[Any, Any]],
    target: tvm.target.Target,
    seconds: dict[str, float],
    records: Records = NO_RECORDS,
) -> Lowered:
    """Graph passes, schedules, parameters out of the code. Adds what each took to `seconds`. `records` are those of the target's core."""
    chooser = None if gpu.is_gpu(target) else Chooser(core_of(target), records)
    schedule_one = schedules.by(chooser) if chooser else partial(gpu.schedule_one, target=target)
    with target:
        with timed(seconds, "graph"):
            module = passes.optimize(passes.bind(module, weights), chooser)
        _check_functions(module)
        with timed(seconds, "schedule"):
            module, kernels = schedules.schedule(module, schedule_one)
        module, parameters = passes.lift_parameters(module)
        module, parameters = halves.stored(module, parameters)
    module["no_kernel"] = NOTHING if chooser else NOTHING.with_attr("target", target.host)
    decisions = chooser.decisions if chooser else {}
    widened = halves.places(module, parameters)
    said = (replace(_with_choice(kernel, decisions), halves=widened.get(kernel.name, "")) for kernel in kernels)
    return Lowered(module, parameters, tuple(said), decisions, chooser.asked if chooser else [])


def _with_choice(kernel: Kernel, decisions: Mapping[str, Decision]) -> Kernel:
    made = decisions.get(kernel.workload)
    return kernel if made is None else replace(kernel, choice=str(made.choice), recorded=made.recorded)


def _check_functions(module: tvm.IRModule) -> None:
    """Refuse a model that calls functions of TVM's Python or extra libraries: they are here, and on no board."""
    called: set[str] = set()

    def collect(node: Any) -> None:
        if isinstance(node, relax.ExternFunc):
            called.add(str(node.global_symbol))

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, collect)
        elif not schedules.is_loop_nest(function):
            called.update(re.findall(r'call_packed\("([^"]+)"', function.script()))
    if missing := sorted(name for name in called if not name.startswith(_ON_EVERY_DEVICE)):
        raise BuildError(
            f"the model needs functions that the runtime on a board does not have: {', '.join(missing)}",
            "they select by value, and are no compiled code",
            "end the model before NonZero, Unique or NonMaxSuppression and do that step outside",
        )
