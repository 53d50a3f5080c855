"""Relax's virtual machine of a server, in the calls of `tvm.runtime.vm.VirtualMachine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farm.rpc.blocking_session import Module, Tensor, Timer
from farm.rpc.value_types import CPU, RemoteDevice

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_POOLED_ALLOCATOR = 2  # VirtualMachine.POOLED_ALLOCATOR
_A_TENSOR = -1  # the arity of an output that is no tuple
_MOST_OUTPUTS, _MOST_NESTED = 10_000, 8  # more is no model


class RemoteVirtualMachine:
    """A virtual machine on a device of the server, with a loaded executable.

    `set_input` and `invoke_stateful` keep inputs and outputs on the server; see `VMFunction` in
    TVM's src/runtime/vm/vm.cc.
    """

    def __init__(self, library: Module, device: RemoteDevice) -> None:
        self.module: Module = library.function("vm_load_executable")()
        devices = [device] if device == CPU else [device, CPU]  # functions of shapes run on the CPU
        allocators = [(one.type, one.number, _POOLED_ALLOCATOR) for one in devices]
        self.module.function("vm_initialization")(*(value for one in allocators for value in one))
        self._device = device
        self._functions = {
            name: self.module.function(name)
            for name in ("set_input", "invoke_stateful", "get_output", "get_output_arity")
        }

    def set_input(self, function: str, *arguments: Any) -> None:
        """Set the arguments of a function: tensors and objects of the server."""
        self._functions["set_input"](function, *arguments)

    def invoke_stateful(self, function: str) -> None:
        """Call a function with the arguments that were set, and wait for its end."""
        self._functions["invoke_stateful"](function)

    def outputs(self, function: str) -> list[Array]:
        """Return the outputs of the last call of a function; those of nested tuples in order."""
        return [output.numpy() for output in self._outputs(function)]

    def timer(self, number: int, repeat: int) -> Timer:
        """Return a timer that is called with the name of a function whose arguments are set."""
        return self.module.timer("invoke_stateful", self._device, number, repeat)

    def _outputs(self, function: str, *place: int) -> Sequence[Tensor]:
        arity = self._functions["get_output_arity"](function, *place)
        if arity == _A_TENSOR:
            output = self._functions["get_output"](function, *place)
            if isinstance(output, Tensor):
                return [output]
            raise self.module.session.violation("an output that is no tensor")
        if (
            not isinstance(arity, int)
            or not 0 <= arity <= _MOST_OUTPUTS
            or len(place) > _MOST_NESTED
        ):
            raise self.module.session.violation("outputs that are none")
        found: list[Tensor] = []
        for index in range(arity):
            found += self._outputs(function, *place, index)
        return found
