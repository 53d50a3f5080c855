"""Start the worker processes of forked commands as forks of a process that has imported TVM.

Most of the time of a worker that computes little goes into importing TVM. A fork has its own
session, folder, environment, import path and files, and runs the text that `python -c` would run.
As in a worker that has just started, TVM and what needs it are not in `sys.modules`: farm forks its
sandboxes from workers that have not imported TVM. The first import of any of these modules finds
them all.

A worker that has imported TVM before its first sandbox starts the fork server of its sandboxes as a
program, which imports TVM again. A forked worker keeps a fork of itself from before its first task,
which becomes that server.

Workers of commands that are started as programs are programs, too.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# Variables that libraries read as they are loaded.
_READ_AT_IMPORT = ("DMLC_", "GOMP_", "KMP_", "MKL_", "NPY_", "OMP_", "OPENBLAS_", "ORT_", "TVM")
_environment = dict(os.environ)  # with which the libraries are loaded
_REFUSED = "linux-vdso.so.1"  # farm does not import TVM in a folder that has it
_MAIN, _MAIN_OF_FORK_SERVER = "worker_main.main()", "fork_server.main()"
_FIRST = ("farm.processes.worker_main", "farm.checked_model_import", "farm.pipeline.worker_tasks")
_WITHOUT_TVM = ("onnx", "onnxruntime")
_WITH_TVM = (
    "tvm",
    "farm.compiler.lower",
    "farm.compiler.codegen.executable",
    "farm.executor",
    "farm.importers.onnx.load",
)


def is_start_of_worker(command: Sequence[str | Path]) -> bool:
    """Whether farm starts a worker by this command."""
    return _is_python(command, _MAIN)


def is_start_of_fork_server(command: Sequence[str | Path]) -> bool:
    """Whether a worker starts the fork server of its sandboxes by this command."""
    return _is_python(command, _MAIN_OF_FORK_SERVER)


def _is_python(command: Sequence[str | Path], end: str) -> bool:
    return [*command[:2]] == [sys.executable, "-c"] and str(command[2]).endswith(end)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a fork runs as a worker would that the caller starts with these variables."""
    ours, theirs = (
        {key: value for key, value in variables.items() if key.startswith(_READ_AT_IMPORT)}
        for variables in (_environment, environment)
    )
    return ours == theirs and not os.path.lexists(_REFUSED)


class _Hidden(MetaPathFinder, Loader):
    """Finds modules that are loaded but hidden. The first that is asked for shows all of them."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules = modules
        self._specs = {name: module.__spec__ for name, module in modules.items()}
        for name in modules:
            del sys.modules[name]

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        sys.meta_path.remove(self)
        # Python runs a module again, by its own loader, that a search has put there
        others = {name: module for name, module in self._modules.items() if name != fullname}
        sys.modules.update(others)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]


def import_for_workers() -> None:
    """Import what workers import, and hide TVM and what needs it."""
    from farm.tvm_import_without_torch import hide_torch_from_now_on

    hide_torch_from_now_on()
    for name in (*_FIRST, *_WITHOUT_TVM):
        importlib.import_module(name)
    assert "tvm" not in sys.modules, "a worker would import TVM before its task"
    before = set(sys.modules)
    for name in _WITH_TVM:
        importlib.import_module(name)
    assert "torch" not in sys.modules, "a worker would import torch with TVM"
    new = {name: module for name, module in sys.modules.items() if name not in before}
    sys.meta_path.insert(0, _Hidden(new))
    gc.freeze()  # a fork copies the pages that a collection writes to
