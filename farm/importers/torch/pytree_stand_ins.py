"""Register dicts as stand-ins for container classes of packages that are not imported.

torch cannot read a program with container types ("pytrees") that are not registered, such as the
outputs of Hugging Face's transformers: `modeling_outputs.BaseModelOutput` and others. That package
registers them, by their keys, when it is imported.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils import _pytree

_GRAPH = "models/model.json"  # in the archive, below a folder


def register_stand_ins(path: Path) -> bool:
    """Register the containers with keys that a file has and torch does not know.

    Returns whether there were any; False for a file that is not torch's.
    """
    try:
        found = {node["type"] for node in _nodes(path) if _has_keys(node)} - set(
            _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
        )
    except (OSError, zipfile.BadZipFile, LookupError, TypeError, ValueError):
        return False
    for name in found:
        _register(name)
    return bool(found)


def _register(name: str) -> None:
    """Register a dict as the stand-in for the class of this name."""
    kind = type(name.rpartition(".")[2], (dict,), {})
    _pytree.register_pytree_node(
        kind,
        lambda one: (list(one.values()), list(one)),
        lambda values, keys: kind(zip(keys, values, strict=True)),
        serialized_type_name=name,
        flatten_with_keys_fn=lambda one: (
            [(_pytree.MappingKey(key), value) for key, value in one.items()],
            list(one),
        ),
    )


def _nodes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all containers of the file's inputs and outputs."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(_GRAPH)]
        graphs = [json.loads(archive.read(name)) for name in names]
    signatures = [
        entry["signature"]
        for graph in graphs
        for entry in graph["graph_module"]["module_call_graph"]
        if entry["signature"]
    ]
    nodes = [
        json.loads(signature[side])[1]
        for signature in signatures
        for side in ("in_spec", "out_spec")
        if signature[side]
    ]
    while nodes:
        node = nodes.pop()
        nodes += node["children_spec"]
        if node["type"] is not None:
            yield node


def _has_keys(node: dict[str, Any]) -> bool:
    """Return whether a container's context is a list with one key per child."""
    try:
        keys = json.loads(node["context"])
    except (TypeError, ValueError):
        return False
    return (
        isinstance(keys, list)
        and len(keys) == len(node["children_spec"])
        and all(isinstance(key, str) for key in keys)
    )
