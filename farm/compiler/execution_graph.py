"""Describe a built model as data: its steps in execution order and the tensors between them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from farm.compiler.graph.layer_names import LayersInCallOrder
from farm.compiler.ir.relax_rewriter import callee_name, main_inputs, main_weight_parameters
from farm.types.layer_variable_names import layer_name_of_variable


def describe_execution_graph(module: tvm.IRModule) -> dict[str, Any]:
    """Return the inputs, parameters, steps and outputs of `main`.

    The form is {"tensors": {name: {"shape", "dtype"}}, "inputs": [...], "parameters": [...],
    "steps": [{"kernel", "inputs", "output", "layer"}], "outputs": [...]}. An open extent is written
    as an expression. A name stands for one tensor; TVM's own names may stand for several. `layer`
    names the operators of the source that a step computes, "" if they are unknown.

    A step is a call of a kernel, or of a function of the runtime such as a reshape; to read a count
    is none. Constants, such
    as a number that a step adds, belong to the kernel and are no inputs.
    """
    main = module["main"]
    names = _Names()
    inputs = [names.noted(parameter) for parameter in main_inputs(main)]
    bundle = main_weight_parameters(main)
    parameters: list[str] = []
    steps: list[dict[str, Any]] = []
    layers = LayersInCallOrder(main)
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(binding.var.ty, relax.ShapeType):  # a count is read
                continue
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in bundle:
                parameters.append(names.noted(binding.var))
            elif isinstance(value, Call):
                kernel = callee_name(value)
                layer = layers.next(kernel) or layer_name_of_variable(binding.var.name)
                arguments = [name for argument in value.args for name in names.of(argument)]
                steps.append(
                    {
                        "kernel": kernel,
                        "inputs": arguments,
                        "output": names.noted(binding.var),
                        "layer": layer,
                    }
                )
            else:  # another name, a tuple, or a part of one
                steps.append(
                    {
                        "kernel": type(value).__name__.lower(),
                        "inputs": names.of(value),
                        "output": names.noted(binding.var),
                    }
                )
    return {
        "tensors": names.tensors,
        "inputs": inputs,
        "parameters": parameters,
        "steps": steps,
        "outputs": names.of(main.body.body),
    }


class _Names:
    """A unique name for each variable, and the shapes and dtypes of the tensors among them."""

    def __init__(self) -> None:
        self.tensors: dict[str, dict[str, Any]] = {}
        self._names: dict[relax.Var, str] = {}
        self._taken: set[str] = set()

    def noted(self, variable: relax.Var) -> str:
        name, number = str(variable.name), 1
        while name in self._taken:
            name, number = f"{variable.name}_{number}", number + 1
        self._taken.add(name)
        self._names[variable] = name
        shape = getattr(variable.ty, "shape", None)
        if shape is not None:
            extents = [
                int(extent) if isinstance(extent, tvm.tirx.IntImm) else str(extent)
                for extent in shape
            ]
            self.tensors[name] = {"shape": extents, "dtype": str(variable.ty.dtype)}
        return name

    def of(self, value: Any) -> list[str]:
        """Return the names of the tensors that a value consists of."""
        if isinstance(value, relax.Tuple):
            return [name for field in value.fields for name in self.of(field)]
        if isinstance(value, relax.TupleGetItem):
            return self.of(value.tuple_value)
        if isinstance(value, relax.Var):
            return [self._names.get(value, str(value.name))]
        return []
