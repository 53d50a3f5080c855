"""Read the values that a user states for arguments of a TorchScript file that are no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from farm.errors import ModelError, did_you_mean
from farm.types import Value

_FIX = "correct --value, or `values` in devices.toml"


def user_values_as_literals(script: Any, values: Mapping[str, Value], what: str) -> dict[str, str]:
    """Return the stated values by argument, as TorchScript's literals.

    Raises ModelError for unknown names, for arguments that are no plain numbers, and for values of
    another type.
    """
    _, *arguments = script.forward.schema.arguments
    types = {argument.name: str(argument.type) for argument in arguments}
    if unknown := sorted(set(values) - set(types)):
        listed = f"its inputs are {', '.join(types)}"
        raise ModelError(
            f"{what} has no input {unknown[0]!r}",
            listed,
            did_you_mean(unknown[0], list(types)) or _FIX,
        )
    made = {}
    for name, value in values.items():
        kind = (
            types[name].removeprefix("Optional[").removesuffix("]")
            if types[name].startswith("Optional[")
            else types[name]
        )
        if (literal := _literal(value, kind)) is None:
            why = (
                f"it is of type {types[name]}; --value states an int, a float, a bool, or a list "
                "of them"
            )
            raise ModelError(f"{what}: the value of input {name} does not fit", why, _FIX)
        made[name] = literal
    return made


def _literal(value: Value, kind: str) -> str | None:
    """Return a value as a literal of a TorchScript type; None if it does not fit."""
    if kind.startswith("List[") and isinstance(value, list | tuple) and value:
        parts = [_literal(one, kind.removeprefix("List[").removesuffix("]")) for one in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    if isinstance(value, bool):
        return str(value) if kind == "bool" else None
    if isinstance(value, int) and kind == "int":
        return str(value) if abs(value) < 2**63 else None
    if isinstance(value, int | float) and kind == "float" and math.isfinite(value):
        return repr(float(value))
    return None
