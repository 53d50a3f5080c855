"""TVM's own RPC server with functions that show what arrives; as a program it serves on a port,
which it prints.
"""

from __future__ import annotations

import time

import numpy as np
import tvm
import tvm_ffi
from tvm.rpc.server import PopenRPCServerState

KEY = "echo"


def told(value: object) -> str:
    """The type and the text of an argument as a function of the server receives it."""
    return f"{type(value).__name__} {value}"


def fail(text: str) -> None:
    raise ValueError(text)


FUNCTIONS = {
    "test.echo": lambda value: value,
    "test.told": told,
    "test.fail": fail,
    "test.sleep": time.sleep,
    "test.total": lambda tensor: float(tensor.numpy().astype("float64").sum()),
    "test.tensor": lambda: tvm.runtime.tensor(np.arange(6, dtype="int32").reshape(2, 3)),
    "test.adder": lambda: tvm_ffi.convert(lambda a, b: a + b),
    "test.list": lambda *values: tvm_ffi.convert(list(values)),
    "test.length": len,
    "test.text": lambda count: "x" * count,
}


def main() -> None:
    for name, function in FUNCTIONS.items():
        tvm_ffi.register_global_func(name, function)
    server = PopenRPCServerState("127.0.0.1", 19500, 19900, key=KEY, silent=True)
    print(f"port {server.port}", flush=True)
    server.thread.join()


if __name__ == "__main__":
    main()
