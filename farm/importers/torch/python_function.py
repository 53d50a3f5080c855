"""Import `python:package.module:function`: a function that returns a module and example inputs.

The reference is the module itself. The working directory is importable while the function runs,
unless another user could put modules there. The files that the function depends on are recorded
meanwhile (farm.importers.torch.python_source_dependencies).
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from farm import ownership
from farm.errors import ModelError, did_you_mean
from farm.importers.imported_model import ImportedModel
from farm.importers.relax_postprocessing import one_line_error
from farm.importers.torch.convert import (
    Arguments,
    arguments_with_shapes,
    cast_module_and_arguments,
    export_module,
    import_program,
    input_names,
)
from farm.importers.torch.python_source_dependencies import (
    FileRecorder,
    is_model_dependency,
    unload_changed_modules,
)
from farm.types import Model
from farm.types.python_function_reference import FORM, module_and_function

_FORM = f"write it as {FORM}"
_RETURN = (
    "let it return (module, (tensor, ...)) or (module, {'name': tensor, ...}): a torch.nn.Module "
    "and example inputs"
)


def load(source: Model) -> ImportedModel:
    """Call the function that `source.source` names, and import the module it returns.

    `source.shapes` replaces shapes of its example inputs. Raises ModelError for a name that does
    not lead to a function, a function that fails or returns something else, and a module that torch
    cannot export or TVM cannot import.
    """
    return import_module_from_function(source.source, source, lambda module: module)


def import_module_from_function(
    what: str, source: Model, changed: Callable[[torch.nn.Module], torch.nn.Module]
) -> ImportedModel:
    """Call the function that `what` names; import the module it returns, changed by `changed`."""
    try:
        module_name, function_name = module_and_function(what)
    except ValueError as exc:
        raise ModelError(
            f"{what!r} does not name a function",
            "a python: source is a module, a colon and a function",
            _FORM,
        ) from exc
    unload_changed_modules()
    with _importable(Path.cwd()), FileRecorder() as recorder:
        module, arguments = _unpack(_call(_function(module_name, function_name, what), what), what)
        module, arguments = cast_module_and_arguments(
            changed(module), arguments, source.dtypes, what
        )
        program = export_module(module, arguments, what)
        if source.shapes:
            arguments = arguments_with_shapes(
                arguments, _open_axes(program, arguments, what), source.shapes, what
            )
            program = export_module(module, arguments, what)
    return replace(import_program(program, module, arguments, what), files=recorder.files)


def _open_axes(
    program: torch.export.ExportedProgram, arguments: Arguments, what: str
) -> dict[str, list[None]]:
    """Return None for every axis of every input.

    All axes are open, because the module is exported again for other shapes.
    """
    values = tree_flatten(arguments)[0]
    return {
        name: [None] * value.ndim
        for name, value in zip(input_names(program, what), values, strict=True)
    }


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Make modules of the folder importable, without writing __pycache__ to it.

    If another user can write to the folder, as in /tmp, nothing is made importable.
    """
    if ownership.foreign_writer(folder):
        yield
        return
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = bytecode


def _function(module_name: str, function_name: str, what: str) -> Callable[[], Any]:
    """Return the function of an imported module; raise ModelError if either is missing or fails."""
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name and (module_name == exc.name or module_name.startswith(f"{exc.name}.")):
            fix = "run the command in the folder that holds it, or install the package"
            foreign = ownership.foreign_writer(Path.cwd())
            why = f"looked in {Path.cwd()} and the installed packages"
            if foreign:
                why, fix = (
                    f"looked in the installed packages, and not in {Path.cwd()}: {foreign}",
                    "move it into a folder of your own",
                )
            raise ModelError(f"{what}: no module named {exc.name!r}", why, fix) from exc
        raise ModelError(
            f"{what}: {module_name} needs a module that is missing: {exc.name}",
            _place(exc),
            f"pip install {exc.name}",
        ) from exc
    except (Exception, SystemExit) as exc:
        raise _failed(f"{what}: the module fails while it is imported", exc) from exc
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module_name and callable(value)
        ]
        raise ModelError(
            f"{what}: {module_name} has no function {function_name!r}",
            did_you_mean(function_name, known),
            _FORM,
        )
    return function  # type: ignore[no-any-return]


def _call(function: Callable[[], Any], what: str) -> Any:
    """Return the function's result; raise ModelError if it fails."""
    try:
        return function()
    except (Exception, SystemExit) as exc:
        raise _failed(f"{what}: the function fails", exc) from exc


def _failed(what: str, error: BaseException) -> ModelError:
    """Return the ModelError for an error in the user's code."""
    return ModelError(
        what,
        f"{one_line_error(error)}{_place(error)}",
        "mend it; python -c 'from MODULE import FUNCTION; FUNCTION()' shows it in full",
    )


def _place(error: BaseException) -> str:
    """Return where in the user's code an error was raised."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if is_model_dependency(Path(frame.filename))
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _unpack(returned: Any, what: str) -> tuple[torch.nn.Module, Arguments]:
    """Return the module in evaluation mode on the CPU, and its example arguments.

    Raises ModelError if the function returned something else.
    """
    if not (
        isinstance(returned, tuple)
        and len(returned) == 2
        and isinstance(returned[0], torch.nn.Module)
    ):
        raise ModelError(
            f"{what}: the function returned {_described(returned)}",
            "a module and its example inputs are needed",
            _RETURN,
        )
    module, example = returned
    if isinstance(example, dict):
        arguments: Arguments = ((), example)
    elif isinstance(example, (tuple, list)):
        arguments = (tuple(example), {})
    else:
        raise ModelError(
            f"{what}: the example inputs are {_described(example)}",
            "they must be a tuple or a dict of tensors",
            _RETURN,
        )
    return module.cpu().eval(), arguments


def _described(value: Any) -> str:
    """Return the type of a value as text."""
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return "nothing" if value is None else f"a {type(value).__name__}"
