"""How an importer tells the compiler which operator of the source gave a value: by the name of its variable."""

from __future__ import annotations

_SIGN, _END = "layer", ":"


def variable_name(number: int, layer: str) -> str:
    """The name of a variable for a layer's result; `number` tells one from another."""
    return f"{_SIGN}{number}{_END}{layer}"


def layer_of(variable: str) -> str:
    """The layer of a variable's name, empty where it has none."""
    head, _, layer = variable.partition(_END)
    return layer if head.startswith(_SIGN) and head[len(_SIGN) :].isdecimal() else ""
