"""Encoding of a source operator's name in the name of the variable that holds its result.

The importer writes the name, and the compiler reads it. Kernels name their parameters after the
variable, and GPU kernels are compiled from C: the operator's name is quoted with characters that C
allows in a name.
"""

from __future__ import annotations

import re

_SIGN, _END = "layer", ":"
_QUOTE, _FORBIDDEN, _QUOTED = "_x", re.compile(rb"[^A-Za-z0-9]"), re.compile(rb"_x([0-9a-f]{2})")


def layer_variable_name(number: int, layer: str) -> str:
    """Return the name of a variable for a layer's result; `number` makes it unique."""
    quoted = _FORBIDDEN.sub(lambda found: f"{_QUOTE}{found[0][0]:02x}".encode(), layer.encode())
    return f"{_SIGN}{number}{_END}{quoted.decode()}"


def layer_name_of_variable(variable: str) -> str:
    """Return the layer encoded in a variable's name; empty if there is none."""
    head, _, quoted = variable.partition(_END)
    if not (head.startswith(_SIGN) and head[len(_SIGN) :].isdecimal()):
        return ""
    return _QUOTED.sub(lambda found: bytes([int(found[1], 16)]), quoted.encode()).decode(
        errors="replace"
    )
