"""A kernel gets the name of the layer of the source model whose output has its values."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm import checked_model_import, stats
from farm.pipeline import layer_bisect
from farm.pipeline.layer_bisect import name_layers_by_source
from farm.processes.worker_main import TaskContext
from farm.types import BisectedLayer, TensorFingerprint


def layer(likeness: TensorFingerprint | None) -> BisectedLayer:
    return BisectedLayer("kernel", (2, 3, 4), "float32", 120.0, 0.0, False, likeness=likeness)


def test_each_layer_has_the_nearest_name_that_none_before_it_has() -> None:
    values = np.random.default_rng(1).standard_normal((3, 2, 3, 4))
    one, other, third = map(stats.fingerprint, values)
    near = stats.fingerprint(values[0] * (1 + 3e-4))
    nearer = stats.fingerprint(values[0] * (1 + 1e-4))
    names = [("far", "Relu", near), ("first", "Conv", nearer), ("other", "Add", other)]
    layers = [layer(one), layer(other), layer(one), layer(third), layer(None), layer(one)]
    assert [(found.name, found.operator) for found in name_layers_by_source(layers, names)] == [
        ("first", "Conv"),
        ("other", "Add"),
        ("far", "Relu"),
        ("", ""),
        ("", ""),
        ("", ""),
    ]


def test_tensors_are_alike_in_any_order_of_their_axes_and_not_with_other_values() -> None:
    values = np.random.default_rng(1).standard_normal((2, 3, 4))
    own = stats.fingerprint(values)
    assert stats.relative_distance(own, stats.fingerprint(values.transpose(2, 0, 1))) < 1e-12
    changed = [values.copy() for _ in range(3)]
    changed[0].reshape(-1)[values.argmax()] *= 1.01
    changed[1].reshape(-1)[values.argmin()] *= 1.01
    changed[2] *= -1
    for one in (*changed, values[:, :, :3], np.full_like(values, np.nan)):
        assert stats.relative_distance(own, stats.fingerprint(one)) == np.inf
    for sign in (1.0, -1.0):  # of one norm and one sum
        one, other = sign * np.array([5.0, -3.0, 0.0, 0.0]), sign * np.array([5.0, -2.0, -2.0, 1.0])
        assert stats.relative_distance(*map(stats.fingerprint, (one, other))) == np.inf


def test_layers_of_an_engine_that_failed_on_the_way_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        ("x", "input", stats.fingerprint(np.ones(3))),
        ("y", "Relu", stats.fingerprint(np.ones(2))),
    ]
    answers = [
        layer_bisect._Layers(names[:1], False, None),
        layer_bisect._Layers(names, True, None),
    ]
    monkeypatch.setattr(layer_bisect, "run_sandboxed_if_untrusted", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(
        checked_model_import, "read_reference_inputs_and_outputs", lambda _: ({}, [])
    )
    model: Any = SimpleNamespace(source="x.onnx")
    prepared: Any = SimpleNamespace(digest="0" * 64)

    def asked() -> object:
        return layer_bisect.source_layers_and_reference_outputs_task(
            TaskContext(tmp_path), model, prepared, None, tmp_path / "cache"
        )[0]

    assert [asked(), asked(), asked()] == [names[:1], names, names]
