"""A session for code that waits: each request blocks its thread until the answer is there.

The calls are those of `Session`, over a connection that blocks. Objects that the server keeps are
values here (`Function`, `Module`, `Tensor`); the server's handle is freed after the last reference
is gone, before the next request.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from farm.errors import DeviceError
from farm.processes.deadline import Deadline
from farm.rpc.answer_filter import FfiTypeIndex
from farm.rpc.blocking_connection import run_nonsuspending_coroutine
from farm.rpc.errors import ProtocolError, RemoteError
from farm.rpc.session import Session
from farm.rpc.value_types import (
    CPU,
    Argument,
    DataType,
    RemoteDevice,
    RemoteObject,
    RemoteTensor,
    Result,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Answer = TypeVar("Answer")

_SECONDS_BYTES = 8


class BlockingSession:
    """A session whose methods block. It belongs to one thread.

    Every request must be answered before `deadline`. The methods raise what those of
    `farm.rpc.session.Session` raise, which has a `BlockingConnection`. A server without a function
    that is called by name is a RemoteError.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        deadline: Deadline,
    ) -> None:
        self.name = name
        self._session, self._deadline = session, deadline
        self._functions: dict[str, Function | None] = {}
        self._forgotten: list[RemoteObject | RemoteTensor] = []

    def has_function(self, name: str) -> bool:
        """Return whether the server has a global function of this name."""
        return self._global(name) is not None

    def function(self, name: str) -> Function:
        """Return a global function of the server. It is looked up once."""
        if not (found := self._global(name)):
            raise RemoteError(self.name, f"there is no function {name}")
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a global function of the server and return its result."""
        return self.function(name)(*arguments)

    def upload(self, path: Path, name: str) -> None:
        """Write a file of this machine into the session's folder, under a name."""
        self.call("tvm.rpc.server.upload", name, path.read_bytes())

    def load_module(self, name: str) -> Module:
        """Return the library that the server loads from a file in the session's folder."""
        found = self.call("tvm.rpc.server.load_module", name)
        if not isinstance(found, Module):
            raise self.violation("load_module gives no module")
        return found

    def empty(
        self,
        shape: Sequence[int],
        dtype: str,
        device: RemoteDevice = CPU,
    ) -> Tensor:
        """Return a new tensor in the memory of a device of the server, with any content."""
        form = self._wait(
            self._session.allocate(tuple(shape), DataType.of(dtype), self._deadline, device),
        )
        return Tensor(self, form)

    def tensor(self, array: Array, device: RemoteDevice = CPU) -> Tensor:
        """Return a copy of an array in the memory of a device of the server."""
        made = self.empty(array.shape, str(array.dtype), device)
        made.fill(array)
        return made

    def synchronize(self, device: RemoteDevice) -> None:
        """Wait until a device of the server has done all that it was given."""
        self._wait(self._session.synchronize(device, self._deadline))

    def invoke(self, function: RemoteObject, arguments: Sequence[Any]) -> Any:
        """Call a function of the server by its handle."""
        passed = [_passed(one) for one in arguments]
        return self.owned(
            self._wait(self._session.call(function, *passed, deadline=self._deadline))
        )

    def copied(self, tensor: RemoteTensor) -> bytearray:
        """Return the elements of a tensor of the server."""
        return self._wait(self._session.copy_from(tensor, self._deadline))

    def fill(self, tensor: RemoteTensor, content: memoryview) -> None:
        """Write the elements of a tensor of the server."""
        self._wait(self._session.copy_to(content, tensor, self._deadline))

    def owned(self, result: Result) -> Any:
        """Return a result of a function; its handle, if it has one, is freed when it is dropped."""
        match result:
            case RemoteTensor():
                return Tensor(self, result)
            case RemoteObject(FfiTypeIndex.FUNCTION):
                return Function(self, result)
            case RemoteObject(FfiTypeIndex.MODULE):
                return Module(self, result)
            case RemoteObject():
                return Object(self, result)
            case _:
                return result

    def forget(self, handle: RemoteObject | RemoteTensor) -> None:
        """Free a handle before the next request. The garbage collector may call this any time."""
        self._forgotten.append(handle)

    def violation(self, reason: str) -> ProtocolError:
        """Return the error for an answer that no server gives; the session is over."""
        self._session.cut(reason)
        return ProtocolError(self.name, reason)

    def close(self) -> None:
        """End the session: the server frees what it keeps."""
        self._functions.clear()
        self._forgotten.clear()
        with contextlib.suppress(DeviceError, OSError):
            run_nonsuspending_coroutine(self._session.close())

    def _global(self, name: str) -> Function | None:
        if name not in self._functions:
            found = self._wait(self._session.function(name, self._deadline))
            self._functions[name] = Function(self, found) if found else None
        return self._functions[name]

    def _wait(self, request: Coroutine[Any, Any, Answer]) -> Answer:
        """Free what is forgotten, then carry out a request."""
        try:
            while self._forgotten:
                run_nonsuspending_coroutine(
                    self._session.free(self._forgotten.pop(), self._deadline)
                )
        except BaseException:
            request.close()  # it never began
            raise
        return run_nonsuspending_coroutine(request)


class Object:
    """An object that the server keeps. It can be an argument of the server's functions."""

    def __init__(self, session: BlockingSession, handle: RemoteObject) -> None:
        self.session, self.handle = session, handle

    def __del__(self) -> None:
        self.session.forget(self.handle)


class Function(Object):
    """A function of the server."""

    def __call__(self, *arguments: Any) -> Any:
        """Call the function: with numbers, texts, bytes, devices, and objects of the server."""
        return self.session.invoke(self.handle, arguments)


class Module(Object):
    """A module of the server: a loaded library, or what its functions return."""

    def find(self, name: str) -> Function | None:
        """Return a function of the module, or of the modules it imports; None if it has none."""
        found = self.session.call("tvm.rpc.server.ModuleGetFunction", self, name, True)
        if found is not None and not isinstance(found, Function):
            raise self.session.violation("ModuleGetFunction gives no function")
        return found

    def function(self, name: str) -> Function:
        """Return a function of the module. Raises RemoteError if it has none of this name."""
        if not (found := self.find(name)):
            raise RemoteError(self.session.name, f"the module has no function {name}")
        return found

    def timer(self, name: str, device: RemoteDevice, number: int, repeat: int) -> Timer:
        """Return a timer of a function: `repeat` samples, each the mean of `number` calls.

        The device calls the function once more before, untimed: see `WrapTimeEvaluator` of TVM's
        rpc_module.cc.
        """
        least_ms, zeros, cooldown_ms, repeats_to_cooldown, flushed = 0, 100, 0, 1, 0
        made = self.session.call(
            "runtime.RPCTimeEvaluator",
            *(self, name, device.type, device.number, number, repeat),
            *(least_ms, zeros, cooldown_ms, repeats_to_cooldown, flushed, ""),
        )
        if not isinstance(made, Function):
            raise self.session.violation("RPCTimeEvaluator gives no function")
        return Timer(made, repeat)


class Timer:
    """A timer of a function of the server."""

    def __init__(self, function: Function, repeat: int) -> None:
        self._function, self._repeat = function, repeat

    def __call__(self, *arguments: Any) -> list[float]:
        """Time calls with these arguments; return the seconds of a call, one for each sample."""
        answer = self._function(*arguments)
        if not isinstance(answer, bytes) or len(answer) != _SECONDS_BYTES * self._repeat:
            raise self._function.session.violation("a timer gives no times")
        return list(struct.unpack(f"<{self._repeat}d", answer))


class Tensor:
    """A tensor in the memory of a device of the server."""

    def __init__(self, session: BlockingSession, form: RemoteTensor) -> None:
        self.session, self.form = session, form

    def __del__(self) -> None:
        self.session.forget(self.form)

    def takes(self, array: Array) -> bool:
        """Return whether the tensor has the type and shape of an array."""
        return str(self.form.data_type) == str(array.dtype) and self.form.shape == array.shape

    def fill(self, array: Array) -> None:
        """Copy an array to the tensor.

        Raises ValueError if the tensor has another type or shape.
        """
        import numpy as np

        if not self.takes(array):
            form = f"{self.form.data_type} {self.form.shape}"
            raise ValueError(f"an array of {array.dtype} {array.shape} for a tensor of {form}")
        content = np.ascontiguousarray(array).reshape(-1)
        self.session.fill(self.form, content.view(np.uint8).data)

    def numpy(self) -> Array:
        """Return a copy of the tensor as an array."""
        import numpy as np

        content = self.session.copied(self.form)
        dtype = _numpy_type(self.form.data_type)
        return np.frombuffer(content, dtype).reshape(self.form.shape)


def _passed(value: Any) -> Argument:
    """Return what is sent for an argument."""
    if isinstance(value, Object):
        return value.handle
    if isinstance(value, Tensor):
        return value.form
    argument: Argument = value
    return argument


def _numpy_type(data_type: DataType) -> np.dtype[Any]:
    import numpy as np

    name = str(data_type)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
