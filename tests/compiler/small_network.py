"""A small network of a convolution, a dense layer and what is between them, with weights."""

from __future__ import annotations

import numpy as np
from tvm import relax

OP = relax.op


def network(emit, x, w, v):
    """Convolution, pooling, tangent, dense layer and softmax."""
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1, 1, 1)))))
    y = emit(OP.tan(emit(OP.reshape(emit(OP.mean(y, [2, 3])), (1, 16)))))
    return emit(OP.nn.softmax(emit(OP.matmul(y, v))))


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    return {
        "w": numbers.standard_normal((16, 3, 3, 3)).astype("float32"),
        "v": numbers.standard_normal((16, 8)).astype("float32"),
    }
