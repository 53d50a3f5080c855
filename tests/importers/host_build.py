"""Our own build of an imported model, in this process, beside its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from host_profile import HOST

from farm import importers
from farm.compiler import host_run
from farm.importers.imported_model import ImportedModel
from farm.types import Model

Array = np.ndarray[Any, Any]


def built(imported: ImportedModel) -> Callable[[Sequence[Array]], list[Array]]:
    return host_run.compile_host_runner(imported.module, imported.weights, HOST)


def answers(imported: ImportedModel) -> list[Array]:
    """To its example."""
    return built(imported)([imported.example[spec.name] for spec in imported.inputs])


def assert_agrees(imported: ImportedModel, atol: float = 3e-6, rtol: float = 3e-6) -> None:
    """With its reference, in shape, dtype and values, on its example."""
    expected = imported.reference(imported.example)
    for spec, ours, theirs in zip(imported.outputs, answers(imported), expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), spec.name
        np.testing.assert_allclose(ours, theirs, atol=atol, rtol=rtol, err_msg=spec.name)


def assert_agrees_with_onnxruntime(
    path: Path, cache: Path, examples: Sequence[Mapping[str, Array]], rtol: float = 1e-5
) -> ImportedModel:
    """For each of several inputs, in shape, dtype and values. Returns what was imported."""
    imported = importers.import_model(Model("model", str(path)), cache)
    run, session = built(imported), onnxruntime.InferenceSession(str(path))
    for example in examples:
        given = {spec.name: example[spec.name] for spec in imported.inputs}
        expected = session.run(None, given)
        found = run(list(given.values()))
        for spec, ours, theirs in zip(imported.outputs, found, expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), spec.name
            assert all(have <= most for have, most in zip(ours.shape, spec.shape, strict=True))
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-5, err_msg=spec.name)
    return imported
