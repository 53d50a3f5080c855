"""TVM imported without torch, and without its compiler where devices are driven: most of what a short command would take otherwise.

For our own processes. TVM's FFI loads torch wherever it is installed, which takes longer than TVM itself. Most of what it takes without
goes into asking for types that its runtime has not, and for the names of functions again and again, from which it is kept.

Torch is imported all the same by what needs it, before TVM or after it. What is missing then is what TVM would do more quickly with torch's
tensors and streams than through `__dlpack__`, which nothing of ours uses.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
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
            with _brief_answers() if module.__name__ == "tvm" else contextlib.nullcontext():
                self._loader.exec_module(module)
        finally:
            del sys.modules[_TORCH]


@contextlib.contextmanager
def _brief_answers() -> Iterator[None]:
    """In the block, TVM's FFI says without C++ that it has not a type, and reads the names of its functions where there are new ones.

    For a type that is not there, C++ fails with a trace of the stack, for which it first reads the symbols of all libraries: 0.4 s of
    processor time. The names, over 2,000, are read one by one, for each of 52 modules.
    """
    import tvm_ffi

    core: Any = tvm_ffi.core
    registry: Any = tvm_ffi.registry
    before = core._object_type_key_to_index, registry.list_global_func_names
    core._object_type_key_to_index = _where_known(before[0], registry.get_registered_type_keys)
    registry.list_global_func_names = _where_new(before[1], lambda: registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()(-1))
    try:
        yield
    finally:
        core._object_type_key_to_index, registry.list_global_func_names = before


def _where_known(find: Callable[[str], Any], names: Callable[[], Sequence[str]]) -> Callable[[str], Any]:
    """`find` for one of the names, None for another."""
    known = set[str]()

    def found(name: str) -> Any:
        if name not in known and len(now := names()) != len(known):
            known.update(map(str, now))
        return find(name) if name in known else None

    return found


def _where_new(names: Callable[[], list[str]], count: Callable[[], int]) -> Callable[[], list[str]]:
    """`names`, which are asked for again when there are more or fewer of them."""
    found = list[str]()

    def as_of_now() -> list[str]:
        if len(found) != count():
            found[:] = names()
        return found

    return as_of_now
