"""--shape, --dtype and --module: what is said of a model that its file leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm.commands.options import gathered

if TYPE_CHECKING:
    from farm.types import Model


@dataclass(frozen=True, slots=True)
class Described:
    """Shapes and element types of inputs by name, and the function that makes the module; all of them empty, nothing."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    module: str | None = None

    def __bool__(self) -> bool:
        return bool(self.shapes or self.dtypes or self.module)

    def of(self, model: Model) -> Model:
        """The model, of which this is said too."""
        shapes, dtypes = {**model.shapes, **self.shapes}, {**model.dtypes, **self.dtypes}
        return replace(model, shapes=shapes, dtypes=dtypes, module=self.module or model.module)


def _described(shapes: tuple[str, ...], dtypes: tuple[str, ...], module: str | None) -> Described:
    """Raises UsageError for what is no name and shape, no type, or no function."""
    return Described(dict(map(_shape, shapes)), dict(map(_dtype, dtypes)), None if module is None else _module(module))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    from farm.errors import UsageError

    name, _, numbers = text.rpartition(":")
    try:
        extents = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        extents = (0,)
    if not name or min(extents) < 1:
        raise UsageError(f"--shape {text}: no input's name and shape", "extents are whole numbers above 0", "--shape NAME:1,3,224,224")
    return name, extents


def _dtype(text: str) -> tuple[str, str]:
    """The name is empty where it is the type of all floats."""
    from farm.errors import UsageError
    from farm.types import DTYPES

    name, _, dtype = text.rpartition(":")
    if dtype not in DTYPES or not (name or "float" in dtype):
        fix = "--dtype float16, or of one input --dtype NAME:int64"
        raise UsageError(f"--dtype {text}: no such type", f"an input is one of {', '.join(DTYPES)}; all floats together a float", fix)
    return name, dtype


def _module(text: str) -> str:
    from farm.config import sources
    from farm.errors import UsageError

    try:
        return sources.source_at(f"python:{text.removeprefix('python:')}", Path())
    except ValueError as exc:
        raise UsageError("--module names no function", str(exc), "--module package.module:function") from exc


with_description = gathered(
    "described",
    _described,
    click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME:1,3,224,224",
        help="The shape of an input that the model leaves open; may be repeated.",
    ),
    click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        metavar="[NAME:]TYPE",
        help="The element type of an input of TorchScript (ids:int64), or of all floats of a module (float16); may be repeated.",
    ),
    click.option(
        "--module",
        metavar="PKG.MOD:FUNCTION",
        help="The function that returns the module, and example inputs, for a .pth file of weights.",
    ),
)
