"""Small Relax modules, compiled as the farm compiles them and run in this process, and the host's
kinds of vectors to try them on.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
from farm.compiler.host_run import flatten_outputs
from farm.compiler.lower import LoweredModule, lower_module, resolve_target
from farm.types import Kernel, Profile

Array = np.ndarray[Any, Any]
HOST = Profile("host", {"kind": "llvm", "mcpu": "native"}, "")


def _supported(cpus: Sequence[str]) -> list[str]:
    """Those of the x86 levels that this machine is at, so that tests see vectors of 16, 32 and 64
    bytes.
    """
    if platform.machine() != "x86_64":
        return ["native"]
    here = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    needed = {
        "x86-64": (),
        "x86-64-v3": ("avx2", "fma"),
        "x86-64-v4": ("avx512f", "avx512vl", "avx512bw", "avx512dq"),
    }
    return [cpu for cpu in cpus if all(here.get(feature) for feature in needed[cpu])]


CPUS = _supported(["x86-64", "x86-64-v3", "x86-64-v4"])


@dataclass(frozen=True)
class Answer:
    outputs: list[Array]
    kernels: tuple[Kernel, ...]
    lowered: LoweredModule

    @property
    def rules(self) -> list[str]:
        """The rules other than the general one, in alphabetical order."""
        return sorted(
            kernel.rule for kernel in self.kernels if kernel.rule not in ("general", "transpose")
        )

    @property
    def notes(self) -> list[str]:
        return [kernel.note for kernel in self.kernels if kernel.note]


def module(
    inputs: Mapping[str, Array | tvm.ir.Type],
    body: Callable[..., Any],
    weights: Mapping[str, Array] | None = None,
) -> tvm.IRModule:
    """A module whose "main" takes the inputs, then the weights; `body(emit, *variables)` returns a
    result or a list of them.
    """
    builder = relax.BlockBuilder()
    described = {**inputs, **(weights or {})}
    variables = [relax.Var(name, _type(value)) for name, value in described.items()]

    def emit(
        expression: relax.Expr,
    ) -> relax.Var:  # pytest shows it when a test fails; a method's repr would crash TVM
        return builder.emit(expression)

    with builder.function("main", variables, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            result = body(emit, *variables)
            output = builder.emit_output(
                relax.Tuple(result) if isinstance(result, list) else result
            )
        builder.emit_func_output(output)
    return builder.get()


def _type(value: Array | tvm.ir.Type) -> tvm.ir.Type:
    return (
        value if isinstance(value, tvm.ir.Type) else relax.TensorType(value.shape, value.dtype.name)
    )


def target(cpu: str = "native") -> tvm.target.Target:
    return resolve_target(Profile("host", {**HOST.target, "mcpu": cpu}, ""))


def lowered(
    inputs: Mapping[str, Any],
    body: Callable[..., Any],
    weights: Mapping[str, Array] | None = None,
    cpu: str = "native",
) -> LoweredModule:
    return lower_module(
        module(inputs, body, weights), list((weights or {}).values()), target(cpu), {}
    )


def compute(
    inputs: Mapping[str, Array],
    body: Callable[..., Any],
    weights: Mapping[str, Array] | None = None,
    cpu: str = "native",
) -> Answer:
    """What the farm's build of a module makes of the inputs, on this machine."""
    low = lowered(inputs, body, weights, cpu)
    return Answer(run(low, list(inputs.values()), cpu), low.kernels, low)


def run(low: LoweredModule, inputs: Sequence[Array], cpu: str = "native") -> list[Array]:
    return runner(low, cpu)(inputs)


def runner(low: LoweredModule, cpu: str = "native") -> Callable[[Sequence[Array]], list[Array]]:
    """What gives the outputs for inputs, compiled once."""
    executable = compile_executable(low.module, target(cpu), checks=ArgumentChecks.NONE)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    parameters: list[Any] = (
        [[tvm.runtime.tensor(value) for value in low.parameters_as_called()]]
        if low.parameters
        else []
    )
    return lambda inputs: flatten_outputs(
        machine["main"](*map(tvm.runtime.tensor, inputs), *parameters)
    )


def const(value: Any, dtype: str = "float32") -> relax.Expr:
    """Without its dtype, `relax.const` narrows 64 bits to 32."""
    return relax.const(np.asarray(value, dtype), dtype)
