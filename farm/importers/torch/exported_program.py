"""Import `.pt2` files, which `torch.export.save` writes. The reference is torch itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from farm.errors import ModelError
from farm.importers.imported_model import ImportedModel, example_inputs
from farm.importers.model_file_check import refuse_constant_input_overrides, refuse_dtype_overrides
from farm.importers.relax_postprocessing import one_line_error, suppress_output_warnings_and_logs
from farm.importers.torch.checks.expressions import is_quotable_key
from farm.importers.torch.checks.pickle_callables import SAVE
from farm.importers.torch.convert import (
    Arguments,
    arguments_with_shapes,
    export_module,
    import_program,
    input_names,
)
from farm.importers.torch.converters import experts, pt2e
from farm.importers.torch.dtypes import tensor_spec
from farm.importers.torch.pytree_stand_ins import register_stand_ins
from farm.types import Model


def load(source: Model) -> ImportedModel:
    """Import a program; `source.shapes` sets the open axes (those exported as dynamic).

    A batch that is open may stay open. Raises ModelError for a file that is missing, damaged or of
    another format, for operators that TVM lacks, and for open shapes.
    """
    path = Path(source.source)
    what = path.name
    refuse_dtype_overrides(source)
    refuse_constant_input_overrides(source)
    program = _read(path)
    _check_keys(program, what)
    placeholders = _placeholders(program, what)
    batched = _batched(placeholders, source.shapes)
    ones = {name: (1, *placeholders[name].shape[1:]) for name in batched}
    arguments: Arguments = program.example_inputs or _made_up(
        program, placeholders, {**source.shapes, **ones}, what
    )
    fixed = {
        name: [axis if isinstance(axis, int) else None for axis in fake.shape]
        for name, fake in placeholders.items()
    }
    arguments = arguments_with_shapes(arguments, fixed, source.shapes, what)
    run, why = program.module(), ""
    if batched:
        try:
            return import_program(
                program,
                run,
                arguments_with_shapes(arguments, fixed, ones, what),
                what,
                batched=batched,
            )
        except ModelError as error:
            why = f"{error.what}: {error.why}"
    if any(None in axes for axes in fixed.values()):
        program = export_module(run, arguments, what)
    return replace(import_program(program, run, arguments, what), fixed=why)


def _batched(placeholders: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the inputs with an open batch.

    Returns an empty list if any other axis is open, or if a shape of such an input is given.
    """
    symbols = {
        name: [str(axis) for axis in fake.shape if not isinstance(axis, int)]
        for name, fake in placeholders.items()
    }
    batched = [name for name, found in symbols.items() if found]
    first = [
        len(symbols[name]) == 1 and not isinstance(placeholders[name].shape[0], int)
        for name in batched
    ]
    fits = (
        all(first)
        and len({symbols[name][0] for name in batched}) == 1
        and not any(name in shapes for name in batched)
    )
    return batched if fits else []


def _read(path: Path) -> torch.export.ExportedProgram:
    """Return the program of a file; raise ModelError if torch cannot load it."""
    try:
        with suppress_output_warnings_and_logs(), _no_unpickling():
            pt2e.register_operators()
            experts.register_operators()
            try:
                return torch.export.load(path)
            except Exception:
                if not register_stand_ins(path):
                    raise
                return torch.export.load(path)
    except Exception as exc:
        why = (
            f"{one_line_error(exc)}; it may be damaged, or saved by another version of torch "
            f"(this is {torch.__version__})"
        )
        raise ModelError(f"{path} cannot be loaded", why, SAVE) from exc


def _check_keys(program: torch.export.ExportedProgram, what: str) -> None:
    """Raise ModelError for keys of the example inputs that could be code.

    torch writes these keys into the source of a function.
    """
    for path, _ in tree_flatten_with_path(program.example_inputs)[0]:
        for key in path:
            name = getattr(key, "key", getattr(key, "name", 0))
            if isinstance(name, str) and not is_quotable_key(name):
                fix = "export the module with keys of letters, digits, and the signs _ . : / -"
                raise ModelError(
                    f"{what} could run code when it is read, so it is not read",
                    f"an input has the key {name!r}",
                    fix,
                )


@contextmanager
def _no_unpickling() -> Iterator[None]:
    """Prevent torch.export.load from unpickling arbitrary objects.

    It falls back to unpickling; this environment variable of torch's forbids that.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _placeholders(program: torch.export.ExportedProgram, what: str) -> dict[str, Any]:
    """Return the fake tensors that stand for the inputs, by name."""
    found = {
        node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"
    }
    return {name: found[name] for name in input_names(program, what)}


def _made_up(
    program: torch.export.ExportedProgram,
    placeholders: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    what: str,
) -> Arguments:
    """Return example inputs for a file that was saved without them."""
    specs = []
    for name, fake in placeholders.items():
        shape = shapes.get(name) or tuple(fake.shape)
        if not all(isinstance(axis, int) for axis in shape):
            said = ",".join(str(axis) if isinstance(axis, int) else "1" for axis in shape)
            fix = f"say it with --shape {name}:{said} (with your own numbers)"
            raise ModelError(
                f"{what} leaves the shape of {name} open and holds no example",
                f"its shape is {list(map(str, shape))}",
                fix,
            )
        specs.append(tensor_spec(name, shape, fake.dtype, what))
    tensors = [torch.from_numpy(array) for array in example_inputs(specs).values()]
    arguments: Arguments = tree_unflatten(tensors, program.call_spec.in_spec)
    return arguments
