"""Our own build of an imported model, in this process, beside its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from host_profile import HOST

from farm.compiler import host_run
from farm.importers.imported_model import ImportedModel

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
