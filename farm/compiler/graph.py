"""What a built model does, as data: its steps in the order in which they run, and the tensors between them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from farm.compiler.layers import ATTRIBUTE, StepKeys
from farm.types.layers import layer_of

_INPUTS = "num_input"


def graph_of(module: tvm.IRModule) -> dict[str, Any]:
    """The inputs, parameters, steps and outputs of `main`, with names of one kind: {"tensors": {name: {"shape", "dtype"}}, "inputs": [...],
    "parameters": [...], "steps": [{"kernel", "inputs", "output", "layer"}], "outputs": [...]}. An open extent is written as an expression.
    A name stands for one tensor, where TVM's own may stand for several. `layer` names the operators of the source that a step was made of,
    empty where that is not known.

    A step is a call of a kernel, or of a function of the runtime such as a reshape. What is known when it is built, such as a number that a
    step adds, belongs to its kernel and is no input.
    """
    main = module["main"]
    names = _Names()
    count = int(main.attrs[_INPUTS])
    inputs = [names.noted(parameter) for parameter in main.params[:count]]
    parameters: list[str] = []
    steps: list[dict[str, Any]] = []
    layers, keys = main.attrs.get(ATTRIBUTE, {}), StepKeys()
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in list(main.params[count:]):
                parameters.append(names.noted(binding.var))
            elif isinstance(value, Call):
                kernel = _callee(value)
                layer = str(layers.get(keys.next(kernel), "")) or layer_of(binding.var.name)
                arguments = [name for argument in value.args for name in names.of(argument)]
                steps.append({"kernel": kernel, "inputs": arguments, "output": names.noted(binding.var), "layer": layer})
            else:  # another name, a tuple, or a part of one
                steps.append({"kernel": type(value).__name__.lower(), "inputs": names.of(value), "output": names.noted(binding.var)})
    return {"tensors": names.tensors, "inputs": inputs, "parameters": parameters, "steps": steps, "outputs": names.of(main.body.body)}


class _Names:
    """A name for each variable, its own where no other has it, and the shapes and dtypes of those that are tensors."""

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
            extents = [int(extent) if isinstance(extent, tvm.tirx.IntImm) else str(extent) for extent in shape]
            self.tensors[name] = {"shape": extents, "dtype": str(variable.ty.dtype)}
        return name

    def of(self, value: Any) -> list[str]:
        """The tensors that a value is made of."""
        if isinstance(value, relax.Tuple):
            return [name for field in value.fields for name in self.of(field)]
        if isinstance(value, relax.TupleGetItem):
            return self.of(value.tuple_value)
        if isinstance(value, relax.Var):
            return [self._names.get(value, str(value.name))]
        return []


def _callee(call: Call) -> str:
    target = call.args[0] if getattr(call.op, "name", "") in ("relax.call_tir", "relax.call_dps_packed") else call.op
    return str(next(filter(None, (getattr(target, name, None) for name in ("name_hint", "global_symbol", "name"))), target))
