"""The shapes and element types that a TorchScript file was traced with, from the pickle that torch puts into its archive.

The values are not kept in it. The pickle is read by a reader that knows five names and makes nothing but these shapes and types.
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


def traced_inputs(path: Path) -> list[Spec | None]:
    """Shape and element type of each input, in order, None for one that is no tensor; empty for a script that was not traced."""
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.partition("/")[2] == _PICKLED), None)
        content = archive.read(name) if name else b""
    try:
        inputs = _Reader(io.BytesIO(content)).load()["forward"] if content else []
    except Exception:  # as an old or a later torch wrote it; the user can say the shapes
        return []
    return [value if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype) else None for value in inputs]


def _tensor(storage: torch.dtype, _offset: int, size: tuple[int, ...], *_: Any) -> Spec:
    return tuple(size), storage


def _untagged(value: Any, _tag: str) -> Any:
    return value


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch.jit._pickle", "restore_type_tag"):
            return _untagged
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and isinstance(getattr(torch, name, None), _LegacyStorageMeta):
            return getattr(torch, name).dtype  # torch.FloatStorage and its like stand for element types
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, reference: Any) -> Any:
        """Of a storage, ("storage", type, key, place, length), its element type."""
        return reference[1]
