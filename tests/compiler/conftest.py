"""Prepared models without an importer, and a place to build them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.processes.workers import TaskContext
from farm.types import Agreement, PreparedModel, TensorSpec

Array = np.ndarray[Any, Any]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "two_cpus_each: each case on two of three CPUs, in turn")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out one of three CPUs for each case of a test that is marked so, each CPU in turn."""
    marked = [item for item in items if item.get_closest_marker("two_cpus_each")]
    if not marked:  # also without TVM
        return
    from relax_models import CPUS

    left_out = {
        item
        for item in marked
        if len(CPUS) == 3 and sum(item.callspec.indices.values()) % len(CPUS) == 0  # type: ignore[attr-defined]
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def context(tmp_path: Path) -> TaskContext:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return TaskContext(scratch)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., PreparedModel]:
    """Keeps a Relax module as `prepare` does: kept({"x": array}, body, {"w": array},
    name="model").
    """
    import tvm
    from relax_models import module
    from tvm import relax

    def keep(
        inputs: Mapping[str, Array],
        body: Callable[..., Any],
        weights: Mapping[str, Array] | None = None,
        name: str = "model",
    ) -> PreparedModel:
        folder = tmp_path / f"prepared-{len(list(tmp_path.glob('prepared-*')))}"
        folder.mkdir()
        given = module(inputs, body, weights)
        (folder / "module.json").write_text(tvm.ir.save_json(given))
        np.savez(folder / "weights.npz", *(weights or {}).values())
        returned = given["main"].ret_ty
        fields = list(returned.fields) if isinstance(returned, relax.TupleType) else [returned]
        outputs = tuple(
            TensorSpec(f"y{index}", tuple(map(int, one.shape)), str(one.dtype))
            for index, one in enumerate(fields)
        )
        specs = tuple(
            TensorSpec(key, value.shape, value.dtype.name) for key, value in inputs.items()
        )
        return PreparedModel(
            name,
            folder.name,
            folder,
            specs,
            outputs,
            "by hand",
            Agreement(0, 0, None, True),
            "float32",
            None,
            None,
            {},
        )

    return keep
