"""Lower an imported module to scheduled loop nests for one target.

The host check and the builds for boards share this part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.backend.loader import load as load_backend

from farm.compiler import load_time_transforms, relax_pipeline
from farm.compiler.cpu import predicted_peak_share
from farm.compiler.cpu import schedule as cpu_schedule
from farm.compiler.cpu.depth_first.schedule import DEPTH_FIRST
from farm.compiler.cpu.kernel_config import (
    NO_RECORDS,
    ConfigDecision,
    ConfigSelector,
    Records,
    weight_expansion_budget_bytes,
)
from farm.compiler.gpu import schedule as gpu_schedule
from farm.compiler.graph.concats.wide_splits import take_pieces_by_slices
from farm.compiler.graph.precision import fp16_weights
from farm.compiler.ir.blocks import is_loop_nest
from farm.compiler.ir.checked_kernels import mark_kernels_of_inputs
from farm.compiler.target.cpu_model import cpu_model_of
from farm.compiler.weight_transforms import WeightTransform
from farm.errors import BuildError
from farm.time_ledger import add_block_duration
from farm.types import Kernel, Profile

# In every library: TVM exports a module without kernels as C source, which needs a C compiler to
# link. TVM's code generator takes the `noalias` of all functions from the last function by name.
NOTHING = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attrs(
    {"global_symbol": "no_kernel", "tirx.is_scheduled": True, "tirx.noalias": True}
)
_ON_EVERY_DEVICE = "vm.builtin."


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """A module ready for code generation.

    Its `main` takes the inputs, then a tuple of parameters if there are any. `parameters` are these
    as they are stored; `transforms` are those that the library makes of them when it is loaded, by
    index. `decisions` are the configurations chosen, by workload key; `record_keys` are the keys of
    all workloads that a record can change.
    """

    module: tvm.IRModule
    parameters: list[np.ndarray[Any, Any]]
    transforms: Mapping[int, WeightTransform]
    kernels: tuple[Kernel, ...]
    decisions: Mapping[str, ConfigDecision]
    record_keys: Sequence[str]

    def parameters_as_called(self) -> list[np.ndarray[Any, Any]]:
        """Return the parameters in the form that `main` takes."""
        return load_time_transforms.transform_parameters(
            self.module, self.parameters, self.transforms
        )


def resolve_target(profile: Profile) -> tvm.target.Target:
    """Return the profile's target, with `native` replaced by the CPU of this machine."""
    content: dict[str, Any] = dict(profile.target)
    if content.get("kind") not in ("llvm", *gpu_schedule.KINDS):
        raise BuildError(
            f"{profile.name}: code for {content.get('kind')} cannot be built",
            f"farm builds for llvm, which is CPUs, and for {' and '.join(gpu_schedule.KINDS)}",
            "use the CPU of the same board, for example --profile rk3399 or --profile rasp4-64",
        )
    if content["kind"] in gpu_schedule.KINDS:
        load_backend(content["kind"])  # which farm's processes do not when they import TVM
    if content.get("mcpu") == "native":
        content["mcpu"] = tvm.get_global_func("target.llvm_get_system_cpu")()
        content["mattr"] = [
            *content.get("mattr", ()),
            *_hidden_features(tvm.target.Target(content)),
        ]
    return tvm.target.Target(content)


def _hidden_features(target: tvm.target.Target) -> list[str]:
    """Return the features, negated, that the CPU model implies and this machine lacks.

    Virtual machines may hide features; code that uses them would raise an illegal instruction.
    """
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    implied = tvm.target.codegen.llvm_get_cpu_features(target)
    return sorted(f"-{feature}" for feature in implied if feature in found and not found[feature])


def lower_module(
    module: tvm.IRModule,
    weights: Sequence[np.ndarray[Any, Any]],
    target: tvm.target.Target,
    seconds: dict[str, float],
    records: Records = NO_RECORDS,
    memory_mb: int | None = None,
) -> LoweredModule:
    """Run the graph passes, schedule the kernels, and move parameters out of the code.

    Adds the seconds of each stage to `seconds`. `records` are those of the target's CPU model.
    `memory_mb` is the RAM of the board, if it is known.
    """
    with target:
        for_gpu = gpu_schedule.is_gpu(target)
        with add_block_duration(seconds, "graph"):
            bind = relax_pipeline.bind_weights if for_gpu else relax_pipeline.bind_weights_for_cpu
            module = bind(take_pieces_by_slices(module), weights)
            halves = fp16_weights.has_fp16_weights(module)
        selector = None
        if not for_gpu:
            room = weight_expansion_budget_bytes(memory_mb, weights)
            selector = ConfigSelector(
                cpu_model_of(target), records, halves, room, without_large_values=not halves
            )
        try:
            return _lower_bound_module(module, target, selector, seconds)
        except relax_pipeline.LargeWeightRead:
            assert selector is not None, "only kernels for CPUs have large weights"
            selector = ConfigSelector(selector.cpu, records, halves, room)
            return _lower_bound_module(module, target, selector, seconds)


def _lower_bound_module(
    module: tvm.IRModule,
    target: tvm.target.Target,
    selector: ConfigSelector | None,
    seconds: dict[str, float],
) -> LoweredModule:
    """Lower a module whose weights are constants, for the current target.

    Raises LargeWeightRead if the selector's large weights must have values.
    """
    large_weights = selector.large_weights if selector else relax_pipeline.NO_WEIGHTS
    with add_block_duration(seconds, "graph"):
        module = relax_pipeline.simplify_legalize_and_fuse(module, selector)
    schedule_one = (
        cpu_schedule.create_kernel_scheduler(selector)
        if selector
        else partial(gpu_schedule.schedule_gpu_kernel, target=target)
    )
    _check_functions(module)
    with add_block_duration(seconds, "schedule"):
        module, kernels = cpu_schedule.schedule_module(module, schedule_one)
    module, parameters = relax_pipeline.lift_constants_into_tuple(
        module,
        large_weights if selector and selector.without_large_values else relax_pipeline.NO_WEIGHTS,
    )
    stored = load_time_transforms.defer_transforms_to_load(
        module,
        parameters,
        large_weights,
        selector.weights_in_blocks if selector else relax_pipeline.NO_WEIGHTS,
        on_cpu=selector is not None,
    )
    module, parameters = mark_kernels_of_inputs(stored.module), stored.parameters
    module["no_kernel"] = NOTHING if selector else NOTHING.with_attr("target", target.host)
    decisions = selector.decisions if selector else {}
    widened = fp16_weights.fp16_widening_site_by_kernel(module, parameters)
    said = (
        replace(_with_choice(kernel, decisions, selector), halves=widened.get(kernel.name, ""))
        for kernel in kernels
    )
    return LoweredModule(
        module,
        parameters,
        stored.transforms,
        tuple(said),
        decisions,
        selector.record_keys if selector else [],
    )


def _with_choice(
    kernel: Kernel, decisions: Mapping[str, ConfigDecision], selector: ConfigSelector | None
) -> Kernel:
    """Return the report on a kernel with its configuration and its predicted speed."""
    made = decisions.get(kernel.workload)
    if made is None or selector is None or kernel.rule == DEPTH_FIRST:
        return kernel  # a pair has said its plan, and nothing is predicted for its loops
    share, slow = predicted_peak_share.predicted_peak_share(made, selector.cpu), kernel.slow
    if kernel.rule not in (cpu_schedule.GENERAL, "none") and share is not None:
        slow = (
            predicted_peak_share.slowness_reason(made, selector.cpu)
            if share < predicted_peak_share.SLOW
            else slow
        )
    else:  # the prediction is not for these loops
        share = None
    return replace(kernel, choice=str(made.config), recorded=made.recorded, share=share, slow=slow)


def _check_functions(module: tvm.IRModule) -> None:
    """Refuse a model that calls functions of TVM's Python or extra libraries."""
    called: set[str] = set()

    def collect(node: Any) -> None:
        if isinstance(node, relax.ExternFunc):
            called.add(str(node.global_symbol))

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, collect)
        elif not is_loop_nest(function):
            called.update(re.findall(r'call_packed\("([^"]+)"', function.script()))
    if missing := sorted(name for name in called if not name.startswith(_ON_EVERY_DEVICE)):
        raise BuildError(
            (
                "the model needs functions that the runtime on a board does not have: "
                f"{', '.join(missing)}"
            ),
            "they select by value, and are no compiled code",
            "export the model to ONNX, where farm builds NonZero and NonMaxSuppression; "
            "or end it before the step that selects by value",
        )
