"""Shorten the import of TVM as farm's processes do, which takes half of its time.

TVM's parts for GPUs are left out; unlike farm's processes, TVM's programs have its other functions.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Shortened:
    """Finds TVM as farm's finder does, which is imported only where TVM is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in ("tvm", "tvm_ffi"):
            return None
        sys.meta_path.remove(self)
        from farm import tvm_import_without_torch as shortened

        without_backends = shortened._without_backends

        @contextlib.contextmanager
        def without_gpus() -> Iterator[None]:
            with without_backends():
                yield
            from tvm.backend import _autoload_backends as backends

            backends._BUILTIN_BACKENDS = ()
            backends._load_builtin_backends()

        shortened._without_backends = without_gpus
        shortened.hide_torch_from_now_on()
        return sys.meta_path[0].find_spec(fullname, path, target)


sys.meta_path.insert(0, _Shortened())
