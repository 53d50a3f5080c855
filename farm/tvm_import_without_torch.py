"""Import TVM without torch.

This saves most of the run time of a short command. It is for farm's own processes. TVM's FFI
imports torch if it is installed, which takes longer than TVM itself. Of the remaining import time,
most is failed look-ups of types missing from the runtime-only library and repeated look-ups of
function names, which are shortened here, and TVM's parts for GPUs, which are left out:
`lower.resolve_target` loads them for a GPU.

Code that needs torch can still import it, before or after TVM. TVM then lacks only its fast path
for torch's tensors and streams, which farm does not use; the general path is `__dlpack__`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from farm.errors import UsageError

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # their module imports a dozen others, which each short command would wait for
    Loader = MetaPathFinder = object

_TVM, _TORCH = {"tvm", "tvm_ffi"}, "torch"
_VDSO = "linux-vdso.so.1"
_LOAD_BACKENDS = "TVM_DEVICE_BACKEND_AUTOLOAD"


def hide_torch_from_now_on() -> None:
    """Hide torch from the first import of TVM in this process from now on."""
    if not _left_out():
        sys.meta_path.insert(0, _Finder())


def _left_out() -> bool:
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(MetaPathFinder):
    """Finder of TVM's modules whose loaders hide torch, unless torch is imported already."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose loader hides torch for a module of TVM; None for other modules."""
        if fullname not in _TVM or _TORCH in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.loader:
            spec.loader = _WithoutTorch(spec.loader)
        return spec


class _WithoutTorch(Loader):
    """A module's own loader, with torch hidden while the module is loaded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    # other attributes of a loader, such as the module's files
    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the result of the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with torch hidden."""
        _check_folder()
        sys.modules[_TORCH] = None  # type: ignore[assignment]
        try:
            if module.__name__ != "tvm":
                self._loader.exec_module(module)
                return
            with _brief_answers(), _without_backends():
                self._loader.exec_module(module)
        finally:
            del sys.modules[_TORCH]


@contextlib.contextmanager
def _without_backends() -> Iterator[None]:
    """Keep TVM from loading its backends (CUDA, Vulkan, Hexagon and others) within the block."""
    before = os.environ.get(_LOAD_BACKENDS)
    os.environ[_LOAD_BACKENDS] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOAD_BACKENDS]
        else:
            os.environ[_LOAD_BACKENDS] = before


def _check_folder() -> None:
    """Raise UsageError if TVM would read a file of the working directory as the kernel's library.

    Its libbacktrace opens all loaded libraries by their names, and the kernel's has no folder.
    """
    if os.path.lexists(_VDSO):
        raise UsageError(
            f"there is a file {_VDSO} in the working directory",
            "TVM would read it as a part of the kernel, whoever wrote it",
            "remove it, or work in another folder",
        )


@contextlib.contextmanager
def _brief_answers() -> Iterator[None]:
    """Speed up two look-ups of TVM's FFI within the block.

    A look-up of a missing type returns without a call to C++, and function names are read again
    only if their number has changed. For a missing type, C++ fails with a stack trace, for which it
    first reads the symbols of all libraries: 0.4 s of processor time. The names, over 2,000, are
    otherwise read one by one for each of 52 modules.
    """
    import tvm_ffi

    core: Any = tvm_ffi.core
    registry: Any = tvm_ffi.registry
    before = core._object_type_key_to_index, registry.list_global_func_names
    core._object_type_key_to_index = _where_known(before[0], registry.get_registered_type_keys)
    registry.list_global_func_names = _where_new(
        before[1], lambda: registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()(-1)
    )
    try:
        yield
    finally:
        core._object_type_key_to_index, registry.list_global_func_names = before


def _where_known(
    find: Callable[[str], Any], names: Callable[[], Sequence[str]]
) -> Callable[[str], Any]:
    """Return `find` restricted to the known names; it returns None for others."""
    known = set[str]()

    def found(name: str) -> Any:
        if name not in known and len(now := names()) != len(known):
            known.update(map(str, now))
        return find(name) if name in known else None

    return found


def _where_new(names: Callable[[], list[str]], count: Callable[[], int]) -> Callable[[], list[str]]:
    """Return a cached `names` that reads the names again if their `count` has changed."""
    found = list[str]()

    def as_of_now() -> list[str]:
        if len(found) != count():
            found[:] = names()
        return found

    return as_of_now
