"""The converters of ONNX operators: TVM's, and ours in the place of those that it lacks or has wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from farm.importers import onnx_lacking, onnx_own, onnx_sampling, recurrent

_OURS: dict[str, Any] = {**recurrent.CONVERTERS, **onnx_own.CONVERTERS, **onnx_lacking.CONVERTERS, **onnx_sampling.CONVERTERS}


def converters() -> dict[str, Any]:
    """By operator name, as TVM's importer looks them up."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return {**onnx_frontend._get_convert_map(), **_OURS}


@contextmanager
def installed() -> Iterator[None]:
    """Inside, TVM's importer uses them. It has no parameter for it, only a function that returns its table."""
    from tvm.relax.frontend.onnx import onnx_frontend

    original, table = onnx_frontend._get_convert_map, converters()
    onnx_frontend._get_convert_map = lambda: table
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original
