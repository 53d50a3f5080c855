"""Read artifacts: the folders that builds leave in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from farm.types import Artifact, Kernel, TensorSpec

KIND = "artifacts"  # of what the store keeps
LIBRARY, PARAMETERS, METADATA, GRAPH = "library.so", "parameters", "metadata.json", "graph.json"


def load_artifact(folder: Path, *, cached: bool) -> Artifact:
    """Return the artifact in a folder."""
    content = json.loads((folder / METADATA).read_text())
    return Artifact(
        **{
            **content,
            "library": folder / LIBRARY,
            "parameters": folder / PARAMETERS,
            "inputs": specs_from_json(content["inputs"]),
            "outputs": specs_from_json(content["outputs"]),
            "kernels": tuple(Kernel(**kernel) for kernel in content["kernels"]),
            "cached": cached,
        }
    )


def specs_from_json(content: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    """Return tensor specifications that were read from JSON as dictionaries."""
    return tuple(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in content)
