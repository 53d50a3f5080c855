"""Create ONNX Runtime sessions on this machine's CPU.

They are used as the reference, as an engine to compare with, and for intermediate outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

_ERRORS_ONLY = 3
# The key and value that make ONNX Runtime multiply unsigned by unsigned bytes on x86-64 without
# VNNI. By default it uses an instruction there that saturates sums of two products at 16 bits
# (onnxruntime_session_options_config_keys.h).
_EXACT_INT8 = ("session.x64quantprecision", "1")
# Products with dequantized weights of 4 bits keep their inputs in float32; the default is 8 bits.
_EXACT_INT4 = ("session.qdq_matmulnbits_accuracy_level", "1")
# Moves a padding with zeros into the pool after it, where a maximum ignores what is padded.
_WRONG_OPTIMIZERS = ["Pad_Fusion"]


def create_session(model: Path | bytes, threads: int = 1, *, exact: bool = True) -> Any:
    """Return a session of a model, given as a file or its content, with `threads` threads.

    If `exact`, integers are multiplied without saturation, and optimizers that change results are
    off, as the reference requires; otherwise the session is as fast as ONNX Runtime is by default.
    Raises any exception that ONNX Runtime raises.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    if exact:
        for entry in (_EXACT_INT8, _EXACT_INT4):
            options.add_session_config_entry(*entry)
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=_WRONG_OPTIMIZERS if exact else None,
    )
