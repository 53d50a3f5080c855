"""Build a model's kernels as plain loops for this machine, as a reference for a build's kernels.

They compute what each kernel of a build must compute, without its schedule, machine code and board.
The graph passes and kernel configurations are those of the build, so that each of its kernels has a
counterpart here with the same inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm

from farm.compiler import relax_pipeline
from farm.compiler.artifact import GRAPH
from farm.compiler.build import RawChoices, read_prepared_weights
from farm.compiler.cpu.kernel_config import (
    ConfigSelector,
    decode_recorded_configs,
    weight_expansion_budget_bytes,
)
from farm.compiler.diagnostics.reference_steps import ReferenceStep
from farm.compiler.diagnostics.steps_of_main import MainSteps
from farm.compiler.execution_graph import describe_execution_graph
from farm.compiler.gpu.schedule import is_gpu
from farm.compiler.graph.precision import fp16_weights
from farm.compiler.ir.blocks import is_loop_nest
from farm.compiler.lower import resolve_target
from farm.compiler.target.cpu_model import cpu_model_of, tuning_target_key
from farm.errors import BuildError
from farm.types import Artifact, PreparedModel, Profile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ModelWithReferenceKernels:
    """A model as steps over numbered tensors, with its kernels as plain loops.

    `steps` are in execution order. `inputs` and `outputs` are tensor numbers. `parameters` maps the
    numbers of parameters to their values, `places` to their index in the bundle of parameters.
    `kernels` is the compiled module.
    """

    steps: tuple[ReferenceStep, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: Mapping[int, Array]
    places: Mapping[int, int]
    kernels: Any

    def compute(self, step: ReferenceStep, values: Mapping[int, Array]) -> list[Array]:
        """Return the outputs of a step, computed from the tensors `values`."""
        arguments = [
            tvm.runtime.tensor(values[one] if isinstance(one, int) else one)
            for one in step.arguments
        ]
        results = [tvm.runtime.empty(shape, dtype) for _, shape, dtype in step.outputs]
        self.kernels.get_function(step.kernel, True)(*arguments, *results)
        return [result.numpy() for result in results]


def build_reference_kernels(
    prepared: PreparedModel, artifact: Artifact, profile: Profile, records: Mapping[str, RawChoices]
) -> ModelWithReferenceKernels:
    """Return the reference kernels of an artifact; `records` are the recorded choices by CPU model.

    Raises BuildError if the artifact was built from another model, and if it has steps that are not
    kernels.
    """
    target = resolve_target(profile)
    module = tvm.ir.load_json((prepared.directory / "module.json").read_text())
    weights = read_prepared_weights(prepared.directory)
    selector = None
    if is_gpu(target):
        module = relax_pipeline.bind_weights(module, weights)
    else:
        module = relax_pipeline.bind_weights_for_cpu(module, weights)
        core = replace(
            cpu_model_of(target), has_widening_multiply=False
        )  # the loops run on this machine
        selector = ConfigSelector(
            core,
            decode_recorded_configs(records.get(tuning_target_key(target), {})),
            fp16_weights.has_fp16_weights(module),
            weight_expansion_budget_bytes(profile.memory_mb, weights),
        )
    with target:
        module = relax_pipeline.simplify_legalize_and_fuse(module, selector)
        module, parameters = relax_pipeline.lift_constants_into_tuple(module)
    if describe_execution_graph(module) != json.loads(
        (artifact.library.parent / GRAPH).read_text()
    ):
        why = "its kernels are others than those that the model has now"
        raise BuildError(
            f"the build of {prepared.model} for {profile.name} is not of this model",
            why,
            "run the command again",
        )
    for name in _made_for_gpu(module) if selector is None else ():
        why = f"{name} is made for the GPU's threads, and has no plain loops"
        raise BuildError(
            f"{prepared.model} cannot be taken apart", why, "compare its outputs only: farm deploy"
        )
    steps = MainSteps(prepared.model, module["main"], parameters)
    host = tvm.target.Target("llvm")
    kernels = tvm.compile(module, target=host).mod
    outputs = tuple(steps.of(module["main"].body.body))
    return ModelWithReferenceKernels(
        tuple(steps.steps), tuple(steps.inputs), outputs, steps.parameters, steps.places, kernels
    )


def _made_for_gpu(module: tvm.IRModule) -> list[str]:
    """Return the names of kernels that TVM writes for a GPU from the start: sort and scan."""
    return [
        str(variable.name_hint)
        for variable, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and not is_loop_nest(function)
    ]
