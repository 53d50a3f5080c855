"""`.pt2` files: programs that `torch.export.save` wrote. The reference is torch itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from farm.errors import ModelError
from farm.importers.files import refuse_dtypes
from farm.importers.imported import Imported, example_inputs
from farm.importers.relax_module import hushed, one_line
from farm.importers.torch_file import SAVE
from farm.importers.torch_module import Arguments, convert, dtype_name, export, input_names, with_shapes
from farm.types import Model, TensorSpec


def load(source: Model) -> Imported:
    """Import a program; `source.shapes` sets the open axes (those that were exported as dynamic).

    Raises ModelError for a file that is missing, damaged or something else, for operators that TVM lacks, and for open shapes.
    """
    path = Path(source.source)
    what = path.name
    refuse_dtypes(source)
    program = _read(path)
    placeholders = _placeholders(program, what)
    arguments: Arguments = program.example_inputs or _made_up(program, placeholders, source.shapes, what)
    fixed = {name: [axis if isinstance(axis, int) else None for axis in fake.shape] for name, fake in placeholders.items()}
    arguments = with_shapes(arguments, fixed, source.shapes, what)
    run = program.module()
    if any(None in axes for axes in fixed.values()):
        program = export(run, arguments, what)
    return convert(program, run, arguments, what)


def _read(path: Path) -> torch.export.ExportedProgram:
    try:
        with hushed(), _no_unpickling():
            return torch.export.load(path)
    except Exception as exc:
        why = f"{one_line(exc)}; it may be damaged, or saved by another version of torch (this is {torch.__version__})"
        raise ModelError(f"{path} cannot be loaded", why, SAVE) from exc


@contextmanager
def _no_unpickling() -> Iterator[None]:
    """torch.export.load falls back to unpickling anything; this environment variable of torch's forbids it."""
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
    """The fake tensors that stand for the inputs, by name."""
    found = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return {name: found[name] for name in input_names(program, what)}


def _made_up(
    program: torch.export.ExportedProgram, placeholders: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], what: str
) -> Arguments:
    """Example inputs for a file that was saved without."""
    specs = []
    for name, fake in placeholders.items():
        shape = shapes.get(name) or tuple(fake.shape)
        if not all(isinstance(axis, int) for axis in shape):
            said = ",".join(str(axis) if isinstance(axis, int) else "1" for axis in shape)
            fix = f"say it with --shape {name}:{said} (with your own numbers)"
            raise ModelError(f"{what} leaves the shape of {name} open and holds no example", f"its shape is {list(map(str, shape))}", fix)
        specs.append(TensorSpec(name, shape, dtype_name(fake.dtype)))
    tensors = [torch.from_numpy(array) for array in example_inputs(specs).values()]
    arguments: Arguments = tree_unflatten(tensors, program.call_spec.in_spec)
    return arguments
