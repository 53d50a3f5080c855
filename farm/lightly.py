"""TVM imported without torch, and without its compiler where devices are driven: most of what a short command would take otherwise.

For our own processes. TVM's FFI loads torch wherever it is installed, which takes longer than TVM itself.

Torch is imported all the same by what needs it, before TVM or after it. What is missing then is what TVM would do more quickly with torch's
tensors and streams than through `__dlpack__`, which nothing of ours uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_TVM, _TORCH = {"tvm", "tvm_ffi"}, "torch"
_RUNTIME_ALONE = "TVM_USE_RUNTIME_LIB"  # read by tvm/base.py as it loads


def leave_torch_out() -> None:
    """From now on the first import of TVM in this process finds no torch."""
    if not _left_out():
        sys.meta_path.insert(0, _Finder())


def tvm_rpc() -> Any:
    """The module `tvm.rpc`. Where that is the first of TVM, its runtime comes alone: such a lane drives a device and compiles nothing."""
    alone = _left_out() and "tvm" not in sys.modules and _RUNTIME_ALONE not in os.environ
    if alone:
        os.environ[_RUNTIME_ALONE] = "1"
    try:
        from tvm import rpc
    finally:
        if alone:
            del os.environ[_RUNTIME_ALONE]
    return rpc


def _left_out() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _TVM or _TORCH in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.loader:
            spec.loader = _WithoutTorch(spec.loader)
        return spec


class _WithoutTorch(Loader):
    """A module's own loader, for which there is no torch while the module is loaded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # what others ask a loader for, such as the module's files
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[_TORCH] = None  # type: ignore[assignment]
        try:
            self._loader.exec_module(module)
        finally:
            del sys.modules[_TORCH]
