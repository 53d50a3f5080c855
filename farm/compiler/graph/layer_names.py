"""Map each step of a built model to the operators of the source model that it computes.

An importer names variables after operators (farm.types.layer_variable_names), and passes keep the
variable of a value that they rewrite. Fusion does not: the calls inside a fused function are
matched with those before fusion by their callees and operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from farm.compiler.ir.relax_rewriter import callee_name
from farm.types.layer_variable_names import layer_name_of_variable

# Of `main`: by kernel, the layers of each of its calls in order; an inference may call it often.
_ATTRIBUTE = "layers"


class LayersInCallOrder:
    """The layers of a module's steps, asked for in the order in which `main` calls kernels."""

    def __init__(self, main: relax.Function) -> None:
        self._left = {
            str(kernel): iter(layers)
            for kernel, layers in (main.attrs or {}).get(_ATTRIBUTE, {}).items()
        }

    def next(self, kernel: str) -> str:
        """Return the layers of the kernel's next call; an empty string if none are known."""
        return str(next(self._left.get(kernel, iter(())), ""))


class LayersByVariable:
    """The layers of the steps of `main`, by the variables that the steps are bound to."""

    def __init__(self, main: relax.Function) -> None:
        left = LayersInCallOrder(main)
        self._layers = {
            binding.var: left.next(callee_name(binding.value))
            for binding in _bindings(main)
            if isinstance(binding.value, Call)
        }

    def join(self, first: relax.Var, second: relax.Var) -> None:
        """Give the step of the second variable the layers of the first one, too."""
        layers = [self._layers.get(variable, "") for variable in (first, second)]
        self._layers[second] = ", ".join(filter(None, dict.fromkeys(layers)))

    def attach(self, main: relax.Function) -> relax.Function:
        """Return `main`, whose steps may call other kernels now, with these layers."""
        layers_of: dict[str, list[str]] = {}
        for binding in _bindings(main):
            if isinstance(binding.value, Call):
                layers = self._layers.get(binding.var, "")
                layers_of.setdefault(callee_name(binding.value), []).append(layers)
        return main.with_attr(_ATTRIBUTE, layers_of) if _ATTRIBUTE in main.attrs else main


def update_kernel_names_in_layer_map(
    main: relax.Function, names: Mapping[str, str]
) -> relax.Function:
    """Return `main` with its layers under the new names of kernels that were renamed."""
    layers = main.attrs.get(_ATTRIBUTE, {})
    return main.with_attr(
        _ATTRIBUTE, {names.get(str(kernel), str(kernel)): each for kernel, each in layers.items()}
    )


def attach_layer_names(before: tvm.IRModule, fused: tvm.IRModule) -> tvm.IRModule:
    """Return the fused module with the layers of its steps as an attribute of `main`.

    The layers are taken from the module before fusion.
    """
    table = _Values(before)
    main = fused["main"]
    for binding in _bindings(before["main"]):
        if layer := layer_name_of_variable(binding.var.name):
            table.layers[table.add(binding)] = layer
        else:
            table.add(binding)
    if not table.layers:
        return fused
    layers_of: dict[str, list[str]] = {}
    table = table.of(fused)
    for binding in _bindings(main):
        kernel = callee_name(binding.value) if isinstance(binding.value, Call) else None
        table.met = []
        table.add(binding)
        if kernel is not None:
            layers = dict.fromkeys(
                table.layers[value] for value in table.met if value in table.layers
            )
            layers_of.setdefault(kernel, []).append(", ".join(layers))
    fused["main"] = main.with_attr(_ATTRIBUTE, layers_of)
    return fused


class _Values:
    """Numbers the values of a module; equal calls on equal values share a number.

    This holds inside of called functions too.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        self.layers: dict[int, str] = {}
        self.met: list[int] = []
        self._module = module
        self._numbers: dict[Any, int] = {}
        self._variables: dict[Any, int] = {}
        self._inputs(module)

    def of(self, module: tvm.IRModule) -> _Values:
        """Return a table with the same numbers for another form of the module."""
        other = _Values(module)
        other._numbers, other.layers = self._numbers, self.layers
        other._inputs(module)
        return other

    def _inputs(self, module: tvm.IRModule) -> None:
        for index, parameter in enumerate(module["main"].params):
            self._variables[parameter] = self._number(("parameter", index))

    def add(self, binding: Any) -> int:
        number = self._variables[binding.var] = self._value(binding.value)
        return number

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _value(self, value: Any) -> int:
        if isinstance(value, relax.Var):
            if value not in self._variables:
                self._variables[value] = self._number(("variable", value.name))
            return self._variables[value]
        if isinstance(value, relax.Tuple):
            return self._number(("tuple", *map(self._value, value.fields)))
        if isinstance(value, relax.TupleGetItem):
            return self._number(("item", self._value(value.tuple_value), int(value.index)))
        if isinstance(value, Call):
            function = self._module[value.op] if isinstance(value.op, tvm.ir.GlobalVar) else None
            if isinstance(function, relax.Function):
                return self._within(function, [self._value(argument) for argument in value.args])
            number = self._number(("call", callee_name(value), *map(self._value, value.args)))
            self.met.append(number)
            return number
        if isinstance(value, GenericConst):
            return self._number(
                ("constant", value)
            )  # the same object: to compare weights takes time
        return self._number(("other", str(value)))

    def _within(self, function: relax.Function, arguments: list[int]) -> int:
        self._variables.update(zip(function.params, arguments, strict=True))
        for binding in _bindings(function):
            self.add(binding)
        return self._value(function.body.body)


def _bindings(function: relax.Function) -> list[Any]:
    return [
        binding
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    ]
