"""Build a model for this machine and run it in this process, before any board has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from farm.compiler.parameter_files import ON_LOAD, PREFIX
from farm.types import Profile

if TYPE_CHECKING:
    import numpy as np

    from farm.compiler.lower import LoweredModule

    Array = np.ndarray[Any, Any]


def compile_host_runner(
    module: Any, weights: Sequence[Array], host: Profile
) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a function that runs a module's `main` on inputs, in order, and returns flat outputs.

    Raises whatever TVM's passes raise.
    """
    from farm.compiler.codegen.executable import compile_executable
    from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
    from farm.compiler.lower import lower_module, resolve_target

    target = resolve_target(host)
    lowered = lower_module(module, weights, target, {})
    executable = compile_executable(lowered.module, target, checks=ArgumentChecks.NONE, load=True)
    return make_runner(lowered, executable)


def make_runner(
    lowered: LoweredModule, executable: Any
) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a function that runs `main` of a lowered module, like `compile_host_runner`.

    `executable` is TVM's, or its library loaded.
    """
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    parameters = _loaded_parameters(machine, lowered)

    def run(inputs: Sequence[Array]) -> list[Array]:
        tensors: list[Any] = [tvm.runtime.tensor(value) for value in inputs]
        return flatten_outputs(machine["main"](*tensors, *([parameters] if parameters else [])))

    return run


def _loaded_parameters(machine: Any, lowered: LoweredModule) -> list[Any]:
    """Return the parameters as `main` takes them, which ON_LOAD makes as on a device."""
    import tvm

    names = [f"{PREFIX}_{index}" for index in range(len(lowered.parameters))]
    tensors = [tvm.runtime.tensor(parameter) for parameter in lowered.parameters]
    if ON_LOAD not in {variable.name_hint for variable in lowered.module.get_global_vars()}:
        return tensors
    clear, update, get = (
        tvm.get_global_func(f"vm.builtin.tensor_cache.{name}")
        for name in ("clear", "update", "get")
    )
    clear()
    for name, tensor in zip(names, tensors, strict=True):
        update(name, tensor, True)
    machine[ON_LOAD]()
    parameters = [get(name) for name in names]
    clear()
    return parameters


def flatten_outputs(result: Any) -> list[Array]:
    """Return the arrays of a tensor or of nested tuples of tensors, in order."""
    if isinstance(result, Sequence) or type(result).__name__ in ("Array", "ShapeTuple"):
        return [array for part in result for array in flatten_outputs(part)]
    return [result.numpy()]
