"""Run the code that reads a model file, or compiles it, in a sandbox if the model is not trusted.

| model                                   | with a sandbox | without one             | trusted    |
|-----------------------------------------|----------------|-------------------------|------------|
| data: ONNX, TFLite                      | in the sandbox | unconfined, with a note | unconfined |
| a program: .pt2, TorchScript            | in the sandbox | refused                 | unconfined |
| the user's own code: python:, `module`  | unconfined     | unconfined              | unconfined |

"Unconfined" means in the worker process, with all rights of the user. A recipe of `farm quantize`
is treated like its float model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from farm import importers, sandbox
from farm.errors import ModelError
from farm.processes.workers import TaskContext
from farm.types import Model, Progress, Stage

_BUILD_MODULES = ("farm.compiler.build", "farm.compiler.lower", "farm.compiler.codegen.executable")
# Imported ahead of a task, with the importer.
_MODULES = ("farm.checked_model_import", *_BUILD_MODULES)


def model_needs_no_sandbox(model: Model) -> bool:
    """Return True if a model may run with all rights of the user: trusted, or not a program."""
    from farm.quantize import float_model

    return model.trust or not importers.may_contain_code(float_model(model))


def run_sandboxed_if_untrusted(
    context: TaskContext,
    model: Model,
    task: Callable[..., Any],
    *arguments: Any,
    read: Sequence[Path] = (),
    write: Sequence[Path] = (),
    types: Sequence[type] = (),
) -> Any:
    """Return `task(context, *arguments)`, run in a sandbox unless the model may run unconfined.

    A trusted model and the user's own code run unconfined. In the sandbox the task may read the
    model's files and `read`, and write to the folders `write` and to its scratch folder. It may
    return builtin values, arrays, and values of farm.types and of `types`. The context's helper
    answers its requests, outside of the sandbox. Raises ModelError for a program if there is no
    sandbox.
    """
    from farm.quantize import float_model

    source = float_model(model)
    if not _is_sandboxed(context, model, Stage.IMPORTING):
        return task(context, *arguments)
    importers.check_source(source)
    allowed = ((*_files_of(model, source), *read), write)
    modules = (importers.importer_module_name(source), *_MODULES)
    return _in_sandbox(
        context, f"importing {model.name}", allowed, modules, types, task, *arguments
    )


def run_build_sandboxed_if_untrusted(
    context: TaskContext,
    model: Model,
    task: Callable[..., Any],
    *arguments: Any,
    read: Sequence[Path],
    write: Sequence[Path] = (),
    types: Sequence[type] = (),
    modules: Sequence[str] = (),
    what: str = "",
) -> Any:
    """Run a task that compiles what was imported, as `run_sandboxed_if_untrusted` does.

    It may read `read`, which are files of the import, and not the model's own files. `modules` are
    imported ahead of it, besides those of a build. `what` describes the task in errors.
    """
    if not _is_sandboxed(context, model, Stage.COMPILING):
        return task(context, *arguments)
    return _in_sandbox(
        context,
        what or f"compiling {model.name}",
        (read, write),
        (*_BUILD_MODULES, *modules),
        types,
        task,
        *arguments,
    )


def _is_sandboxed(context: TaskContext, model: Model, stage: Stage) -> bool:
    """Return whether the code that reads a model runs in a sandbox.

    Raises ModelError for a program if there is no sandbox.
    """
    from farm.quantize import float_model

    source = float_model(model)
    if model.trust or importers.python_function_reference_of_model(source) is not None:
        return False
    support = sandbox.sandbox_support()
    if support.complete:
        return True
    if importers.may_contain_code(source):
        raise ModelError(
            f"{model.name} is a program, and this machine cannot confine it",
            support.missing,
            "where you trust whoever made it as you trust a program: --trust, or `trust = true` "
            "in devices.toml; "
            "or export it to ONNX, which holds no code",
        )
    context.note(Progress(stage, f"without a sandbox: {support.missing}"))
    return False


def _in_sandbox(
    context: TaskContext,
    what: str,
    allowed: tuple[Sequence[Path], Sequence[Path]],
    modules: Sequence[str],
    types: Sequence[type],
    task: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Run a task in a sandbox that may use the `allowed` files and its scratch folder."""
    from farm.sandbox.policy import Policy

    read, write = allowed
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir=context.scratch) as folder:
        scratch = Path(folder)
        policy = Policy.of_this_machine(tuple(read), (scratch, *write))
        return sandbox.run_sandboxed(
            policy,
            scratch,
            task,
            *arguments,
            modules=modules,
            types=types,
            note=context.note,
            helper=context.helper,
            what=what,
        )


def _files_of(model: Model, source: Model) -> list[Path]:
    """Return the files that a model names: its own, its labels and its data sets."""
    named = (model.labels, model.dataset, model.calibration_data)
    own = [Path(model.source), *importers.model_files(source)]
    return [*dict.fromkeys(own), *(path for path in named if path is not None)]
