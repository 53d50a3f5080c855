"""How an importer tells the compiler which operator of the source gave a value: by the name of its variable.

Kernels name their parameters after it, and those of GPUs are compiled from C: the layer's name is quoted with what C allows in a name.
"""

from __future__ import annotations

import re

_SIGN, _END = "layer", ":"
_QUOTE, _FORBIDDEN, _QUOTED = "_x", re.compile(rb"[^A-Za-z0-9]"), re.compile(rb"_x([0-9a-f]{2})")


def variable_name(number: int, layer: str) -> str:
    """The name of a variable for a layer's result; `number` tells one from another."""
    quoted = _FORBIDDEN.sub(lambda found: f"{_QUOTE}{found[0][0]:02x}".encode(), layer.encode())
    return f"{_SIGN}{number}{_END}{quoted.decode()}"


def layer_of(variable: str) -> str:
    """The layer of a variable's name, empty where it has none."""
    head, _, quoted = variable.partition(_END)
    if not (head.startswith(_SIGN) and head[len(_SIGN) :].isdecimal()):
        return ""
    return _QUOTED.sub(lambda found: bytes([int(found[1], 16)]), quoted.encode()).decode(errors="replace")
