"""TVM's RPC client, imported without the second and a half that its look for torch takes."""

from __future__ import annotations

import sys
from typing import Any


def tvm_rpc() -> Any:
    """The module `tvm.rpc`. For processes that drive devices: torch, imported later, would not share tensors with TVM."""
    hide = "torch" not in sys.modules and "tvm_ffi" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tvm import rpc
    finally:
        if hide:
            del sys.modules["torch"]
    return rpc


def connect(host: str, port: int, key: str, timeout_s: float) -> Any:
    """A session with the server at an address; the server ends it after `timeout_s`."""
    return tvm_rpc().connect(host, port, key, session_timeout=timeout_s)
