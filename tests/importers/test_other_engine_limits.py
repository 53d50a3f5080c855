"""Engines that farm is compared with: why one cannot run a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farm.errors import ModelError
from farm.executor import other_engines
from farm.types import Model


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_an_engine_says_of_a_tflite_file_what_it_is(engine: str, tmp_path: Path) -> None:
    imported = cast(Any, SimpleNamespace(network=None))
    with pytest.raises(ModelError, match=r"cannot run net\.tflite") as caught:
        other_engines.load_model_in_engine(
            engine, Model("net", "/models/net.tflite"), imported, {}, 1, tmp_path
        )
    assert caught.value.why == "it is a TFLite file, which LiteRT runs: --against litert"


def test_litert_says_of_an_onnx_file_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"LiteRT cannot run net\.onnx") as caught:
        other_engines.load_model_in_engine(
            "litert", Model("net", "/models/net.onnx"), None, {}, 1, tmp_path
        )
    assert caught.value.why == "it is an ONNX file, not a TFLite file"
