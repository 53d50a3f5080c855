"""--shape, --value, --dtype, --module and --trust.

Properties of a model that its file does not state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from farm.commands.options import options_as_one_argument

if TYPE_CHECKING:
    from farm.types import Model, Value


@dataclass(frozen=True, slots=True)
class ModelProperties:
    """Properties of a model given on the command line.

    Shapes, element types and constant values of inputs by name, the function that makes the module,
    and whether the file is trusted. It is false if none is given.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    module: str | None = None
    trust: bool = False
    values: Mapping[str, Value] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.shapes or self.dtypes or self.module or self.trust or self.values)

    def of(self, model: Model) -> Model:
        """Return the model with these properties added."""
        shapes, dtypes = {**model.shapes, **self.shapes}, {**model.dtypes, **self.dtypes}
        module, trust, values = (
            self.module or model.module,
            self.trust or model.trust,
            {**model.values, **self.values},
        )
        return replace(
            model, shapes=shapes, dtypes=dtypes, module=module, trust=trust, values=values
        )


def _described(
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    dtypes: tuple[str, ...],
    module: str | None,
    trust: bool,
) -> ModelProperties:
    """Return the values of the options.

    Raises UsageError for a malformed shape or value, an unknown element type, or a malformed
    function name.
    """
    named = None if module is None else _module(module)
    return ModelProperties(
        dict(map(_shape, shapes)),
        dict(map(_dtype, dtypes)),
        named,
        trust,
        dict(map(_value, values)),
    )


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    from farm.errors import UsageError

    name, _, numbers = text.rpartition(":")
    try:
        extents = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        extents = (-1,)
    if not name or min(extents) < 0:
        raise UsageError(
            f"--shape {text}: no input's name and shape",
            "extents are whole numbers of at least 0",
            "--shape NAME:1,3,224,224",
        )
    return name, extents


def _value(text: str) -> tuple[str, Value]:
    """Return an input's name and value; a value is a number, true, false, or lists of these."""
    from farm.api.resolve import VALUES, is_input_value
    from farm.errors import UsageError

    name, _, written = text.partition("=") if "=" in text else text.rpartition(":")
    try:
        value = json.loads(written)
    except ValueError:
        value = None
    if not name or not is_input_value(value):
        fix = "--value NAME=16000, or of a vector --value NAME=[1,2]"
        raise UsageError(f"--value {text}: no input's name and value", VALUES, fix)
    return name, value


def _dtype(text: str) -> tuple[str, str]:
    """Return an input's name and element type; the name is empty for the type of all floats."""
    from farm.errors import UsageError
    from farm.types import DTYPES

    name, _, dtype = text.rpartition(":")
    if dtype not in DTYPES or not (name or "float" in dtype):
        fix = "--dtype float16, or of one input --dtype NAME:int64"
        raise UsageError(
            f"--dtype {text}: no such type",
            f"an input is one of {', '.join(DTYPES)}; all floats together a float",
            fix,
        )
    return name, dtype


def _module(text: str) -> str:
    from farm.errors import UsageError
    from farm.types.python_function_reference import normalize_python_function_reference

    try:
        return normalize_python_function_reference(text)
    except ValueError as exc:
        raise UsageError(
            "--module names no function", str(exc), "--module package.module:function"
        ) from exc


with_model_properties = options_as_one_argument(
    "described",
    _described,
    click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME:1,3,224,224",
        help="The shape of an input that the model does not fix; may be repeated.",
    ),
    click.option(
        "--value",
        "values",
        multiple=True,
        metavar="NAME=VALUE",
        help=(
            "An input of ONNX, or a number that TorchScript takes, that is a constant (sr=16000, "
            "flags=[1,0]); may be repeated."
        ),
    ),
    click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        metavar="[NAME:]TYPE",
        help=(
            "The element type of a TorchScript input (ids:int64), or of all floats of a module "
            "(float16); may be repeated."
        ),
    ),
    click.option(
        "--module",
        metavar="PKG.MOD:FUNCTION",
        help="The function that returns the module, and example inputs, for a .pth file of weights.",  # noqa: E501
    ),
    click.option(
        "--trust",
        is_flag=True,
        help="Import the model without a sandbox: it can do whatever you can.",
    ),
)
