"""Build a model's kernels as plain loops for this machine, as a reference for a build's kernels.

They compute what each kernel of a build must compute, without its schedule, machine code and board.
The graph passes and kernel configurations are those of the build, so that each of its kernels has a
counterpart here with the same inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from farm.compiler import pipeline
from farm.compiler.artifact import GRAPH
from farm.compiler.build import RawChoices, read_weights
from farm.compiler.cpu.kernel_config import ConfigSelector, parsed
from farm.compiler.diagnostics.reference_steps import Step
from farm.compiler.execution_graph import graph_of
from farm.compiler.gpu.schedule import is_gpu
from farm.compiler.graph import fp16_weights
from farm.compiler.ir.blocks import is_loop_nest
from farm.compiler.ir.constants import view
from farm.compiler.ir.dynamic_extents import value_at_batch_one
from farm.compiler.ir.relax_rewriter import main_inputs, main_parameters, op_name
from farm.compiler.lower import resolve_target
from farm.compiler.target.cpu_model import cpu_model_of, target_key
from farm.errors import BuildError
from farm.types import Artifact, Prepared, Profile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Plain:
    """A model as steps over numbered tensors, with its kernels as plain loops.

    `steps` are in execution order. `inputs` and `outputs` are tensor numbers. `parameters` maps the
    numbers of parameters to their values, `places` to their index in the bundle of parameters.
    `kernels` is the compiled module.
    """

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: Mapping[int, Array]
    places: Mapping[int, int]
    kernels: Any

    def compute(self, step: Step, values: Mapping[int, Array]) -> list[Array]:
        """Return the outputs of a step, computed from the tensors `values`."""
        arguments = [
            tvm.runtime.tensor(values[one] if isinstance(one, int) else one)
            for one in step.arguments
        ]
        results = [tvm.runtime.empty(shape, dtype) for _, shape, dtype in step.outputs]
        self.kernels.get_function(step.kernel, True)(*arguments, *results)
        return [result.numpy() for result in results]


def plain(
    prepared: Prepared, artifact: Artifact, profile: Profile, records: Mapping[str, RawChoices]
) -> Plain:
    """Return the reference kernels of an artifact; `records` are the recorded choices by CPU model.

    Raises BuildError if the artifact was built from another model, and if it has steps that are not
    kernels.
    """
    target = resolve_target(profile)
    module = tvm.ir.load_json((prepared.directory / "module.json").read_text())
    module = pipeline.bind(module, read_weights(prepared.directory))
    selector = None
    if not is_gpu(target):
        core = replace(
            cpu_model_of(target), has_widening_multiply=False
        )  # the loops run on this machine
        selector = ConfigSelector(
            core, parsed(records.get(target_key(target), {})), fp16_weights.has_fp16_weights(module)
        )
    with target:
        module = pipeline.optimize(module, selector)
        module, parameters = pipeline.lift_parameters(module)
    if graph_of(module) != json.loads((artifact.library.parent / GRAPH).read_text()):
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
    steps = _Steps(prepared.model, module["main"], parameters)
    host = tvm.target.Target("llvm")
    kernels = tvm.compile(module, target=host).mod
    outputs = tuple(steps.of(module["main"].body.body))
    return Plain(
        tuple(steps.steps), tuple(steps.inputs), outputs, steps.parameters, steps.places, kernels
    )


def _made_for_gpu(module: tvm.IRModule) -> list[str]:
    """Return the names of kernels that TVM writes for a GPU from the start: sort and scan."""
    return [
        str(variable.name_hint)
        for variable, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and not is_loop_nest(function)
    ]


class _Steps:
    """Reader of the steps of `main`. It numbers every tensor."""

    def __init__(self, model: str, main: relax.Function, parameters: Sequence[Array]) -> None:
        self.steps: list[Step] = []
        self.parameters: dict[int, Array] = {}
        self.places: dict[int, int] = {}
        self._model, self._given = model, list(parameters)
        self._count = 0
        self._numbers: dict[relax.Var, list[int]] = {}
        self._bundle = main_parameters(main)
        self.inputs = [self._new(parameter) for parameter in main_inputs(main)]
        for block in main.body.blocks:
            for binding in block.bindings:
                self._take(binding.var, binding.value)

    def _new(self, variable: relax.Var) -> int:
        self._numbers[variable] = [self._next()]
        return self._numbers[variable][0]

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _take(self, variable: relax.Var, value: Any) -> None:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._bundle:
            number = self._new(variable)
            self.places[number] = int(value.index)
            self.parameters[number] = self._given[int(value.index)]
        elif isinstance(value, relax.TupleGetItem):
            self._numbers[variable] = [self.of(value.tuple_value)[int(value.index)]]
        elif isinstance(value, (relax.Var, relax.Tuple)):
            self._numbers[variable] = self.of(value)
        elif isinstance(value, Call) and op_name(value) == "relax.call_tir":
            types = (
                list(variable.ty.fields)
                if isinstance(variable.ty, relax.TupleType)
                else [variable.ty]
            )
            outputs = tuple(
                (self._next(), tuple(map(value_at_batch_one, type_.shape)), str(type_.dtype))
                for type_ in types
            )
            self._numbers[variable] = [number for number, _, _ in outputs]
            self.steps.append(
                Step(
                    str(value.args[0].name_hint),
                    tuple(map(self._argument, value.args[1].fields)),
                    outputs,
                )
            )
        else:
            why = f"it has a step that is no kernel: {str(value)[:200]}"
            raise BuildError(
                f"{self._model} cannot be taken apart", why, "compare its outputs only: farm deploy"
            )

    def _argument(self, value: Any) -> int | Array:
        if isinstance(value, GenericConst):
            return view(value.value)
        (number,) = self.of(value)
        return number

    def of(self, value: Any) -> list[int]:
        """Return the numbers of the tensors that a value consists of."""
        if isinstance(value, relax.Tuple):
            return [number for field in value.fields for number in self.of(field)]
        return self._numbers[value]
