"""Read the shapes and element types that a TorchScript file was traced with.

They are in a pickle in the archive, without the values. The pickle is read by an unpickler that
knows five names and creates only these shapes and types.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch.storage import _LegacyStorageMeta

Spec = tuple[tuple[int, ...], torch.dtype]
_PICKLED = "traced_inputs.pkl"


def traced_input_specs(path: Path) -> list[Spec | None]:
    """Return shape and element type of each input, in order.

    None stands for an input that is not a tensor. Returns an empty list for a script that was not
    traced.
    """
    with zipfile.ZipFile(path) as archive:
        name = next(
            (name for name in archive.namelist() if name.partition("/")[2] == _PICKLED), None
        )
        content = archive.read(name) if name else b""
    try:
        inputs = _Reader(io.BytesIO(content)).load()["forward"] if content else []
    except Exception:  # written by an old or a later torch; the user can give the shapes
        return []
    return [
        value
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype)
        else None
        for value in inputs
    ]


def _tensor(storage: torch.dtype, _offset: int, size: tuple[int, ...], *_: Any) -> Spec:
    """Return the spec of a tensor, given the arguments of torch's _rebuild_tensor_v2."""
    return tuple(size), storage


def _untagged(value: Any, _tag: str) -> Any:
    """Return the value without its type tag."""
    return value


class _Reader(pickle.Unpickler):
    """Unpickler that accepts only the names of tensors and containers."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a known name; raise UnpicklingError for all others."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch.jit._pickle", "restore_type_tag"):
            return _untagged
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and isinstance(getattr(torch, name, None), _LegacyStorageMeta):
            # torch.FloatStorage and similar classes stand for element types.
            return getattr(torch, name).dtype
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, reference: Any) -> Any:
        """Return the element type of a storage, ("storage", type, key, place, length)."""
        return reference[1]
