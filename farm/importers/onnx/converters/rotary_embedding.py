"""Convert RotaryEmbedding of ONNX Runtime, which rotates pairs of numbers by their position.

The definition: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
Source: Su et al., RoFormer, https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs


class RotaryEmbedding(OnnxOpConverter):  # type: ignore[misc]
    """RotaryEmbedding of ONNX Runtime, for [B, S, heads * D] or [B, heads, S, D]."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, positions, cosines, sines = [*inputs][:4]
        if attributes.get("is_packed_batching", 0):
            raise ValueError("RotaryEmbedding with is_packed_batching")
        if float(attributes.get("scale", 1.0)) != 1:
            raise ValueError("RotaryEmbedding with a scale")
        emit, shape = builder.emit, list(data.ty.shape)
        flat = len(shape) == 3
        steps = shape[1] if flat else shape[2]
        if flat:
            part, half = int(attributes.get("rotary_embedding_dim", 0)), int(cosines.ty.shape[1])
            heads = int(attributes.get("num_heads", 0)) if part else int(shape[2]) // (2 * half)
            split = emit(relax.op.reshape(data, [*shape[:2], heads, int(shape[2]) // heads]))
            data = emit(relax.op.permute_dims(split, [0, 2, 1, 3]))
        positions = emit(relax.op.astype(positions, "int64"))
        if int(positions.ty.ndim) == 1:  # of the first element; the others follow
            first = emit(relax.op.reshape(positions, [1, 1]))
            places = relax.const(np.arange(int(steps))[None], "int64")
            positions = emit(relax.op.add(first, places))
        interleaved = bool(attributes.get("interleaved", 0))
        made = rotate(builder, data, positions, cosines, sines, interleaved)
        if not flat:
            return made
        return emit(relax.op.reshape(emit(relax.op.permute_dims(made, [0, 2, 1, 3])), shape))


def rotate(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    positions: relax.Expr,
    cosines: relax.Expr,
    sines: relax.Expr,
    interleaved: bool,
) -> relax.Expr:
    """Return [B, heads, S, D] data whose first 2 * N numbers are rotated.

    Positions [B or 1, S] of int64 select rows of the [positions, N] cosines and sines; those out of
    range select the nearest. A pair is two neighbours if interleaved, else one number of each half.
    """
    emit, (batch, heads, steps, size) = builder.emit, data.ty.shape
    count = int(cosines.ty.shape[1])
    rows = positions.ty.shape[0]
    first = relax.const(0, "int64")
    limit = relax.const(int(cosines.ty.shape[0]) - 1, "int64")
    inside = emit(relax.op.minimum(emit(relax.op.maximum(positions, first)), limit))
    cosine, sine = (
        emit(relax.op.expand_dims(emit(relax.op.take(table, inside, axis=0)), 1))
        for table in (cosines, sines)
    )
    rest = None
    if 2 * count < int(size):
        parts = emit(relax.op.split(data, [2 * count], axis=3))
        data, rest = emit(parts[0]), emit(parts[1])
    if interleaved:
        paired = emit(relax.op.reshape(data, [batch, heads, steps, count, 2]))
        cosine, sine = (
            emit(relax.op.reshape(one, [rows, 1, steps, count, 1])) for one in (cosine, sine)
        )
        halves = emit(relax.op.split(paired, 2, axis=4))
    else:
        halves = emit(relax.op.split(data, 2, axis=3))
    real, imaginary = emit(halves[0]), emit(halves[1])

    def product(one: relax.Expr, other: relax.Expr) -> relax.Expr:
        return emit(relax.op.multiply(one, other))

    rotated = [
        emit(relax.op.subtract(product(real, cosine), product(imaginary, sine))),
        emit(relax.op.add(product(imaginary, cosine), product(real, sine))),
    ]
    made = emit(relax.op.concat(rotated, axis=4 if interleaved else 3))
    if interleaved:
        made = emit(relax.op.reshape(made, [batch, heads, steps, 2 * count]))
    return made if rest is None else emit(relax.op.concat([made, rest], axis=3))


CONVERTERS = {"RotaryEmbedding": RotaryEmbedding}
