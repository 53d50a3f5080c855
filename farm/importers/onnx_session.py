"""ONNX Runtime on this machine's CPU, as the reference, as a rival, and to look between the layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

_ERRORS_ONLY = 3


def session(model: Path | bytes, threads: int = 1) -> Any:
    """What runs a model, from its file or from the content of one, with so many threads. Raises whatever ONNX Runtime raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"])
