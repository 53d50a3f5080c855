"""Convert normalizations of layers by ONNX Runtime's contributed operators.

The definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs


class SkipLayerNormalization(OnnxOpConverter):  # type: ignore[misc]
    """SkipLayerNormalization of ONNX Runtime, also without beta and bias.

    The outputs are the normalized sum, two that ONNX Runtime does not compute, and the sum.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, skip, gamma, beta, bias = [*inputs, None, None][:5]
        total = builder.emit(relax.op.add(data, skip))
        if bias is not None:
            total = builder.emit(relax.op.add(total, bias))
        if beta is None:
            beta = relax.const(np.zeros([int(gamma.ty.shape[0])]), str(gamma.ty.dtype))
        epsilon = attributes.get("epsilon", 1e-12)
        made = builder.emit(relax.op.nn.layer_norm(total, gamma, beta, axes=-1, epsilon=epsilon))
        absent = relax.const(0, "float32")
        return relax.Tuple([made, absent, absent, total])


class EmbedLayerNormalization(OnnxOpConverter):  # type: ignore[misc]
    """EmbedLayerNormalization of ONNX Runtime: the normalized sum of the embeddings of tokens.

    The outputs are the normalized sum [batch, tokens, channels], the number of tokens of each row
    by its mask, and the sum. TVM's converter lacks the last.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        given = [*inputs, *[None] * 9][:9]
        tokens, segments, token_table, position_table, segment_table = given[:5]
        gamma, beta, mask, positions = given[5:]
        batch, length = tokens.ty.shape
        op = relax.op
        if positions is None:
            positions = relax.const(np.arange(int(length)))
        total = builder.emit(op.take(token_table, tokens, axis=0))
        for table, rows in ((position_table, positions), (segment_table, segments)):
            if rows is not None:
                part = builder.emit(op.take(table, rows, axis=0))
                total = builder.emit(op.add(total, part))
        epsilon = attributes.get("epsilon", 1e-12)
        made = builder.emit(op.nn.layer_norm(total, gamma, beta, axes=-1, epsilon=epsilon))
        counts = (
            builder.emit(op.zeros([batch], "int32"))
            if mask is None
            else builder.emit(op.sum(mask, axis=1))
        )
        return relax.Tuple([made, counts, total])


class SimplifiedLayerNormalization(OnnxOpConverter):  # type: ignore[misc]
    """SimplifiedLayerNormalization of ONNX Runtime: division by the root of the mean square."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, gamma = [*inputs][:2]
        axis, epsilon = int(attributes.get("axis", -1)), attributes.get("epsilon", 1e-5)
        return _by_root_mean_square(builder, data, gamma, axis, epsilon)


class SkipSimplifiedLayerNormalization(OnnxOpConverter):  # type: ignore[misc]
    """SkipSimplifiedLayerNormalization of ONNX Runtime; outputs as of SkipLayerNormalization."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, skip, gamma, bias = [*inputs, None][:4]
        total = builder.emit(relax.op.add(data, skip))
        if bias is not None:
            total = builder.emit(relax.op.add(total, bias))
        epsilon = attributes.get("epsilon", 1e-12)
        made = _by_root_mean_square(builder, total, gamma, -1, epsilon)
        absent = relax.const(0, "float32")
        return relax.Tuple([made, absent, absent, total])


def _by_root_mean_square(
    builder: relax.BlockBuilder, data: relax.Expr, gamma: relax.Expr, axis: int, epsilon: float
) -> relax.Expr:
    """Return data / sqrt(mean(data ** 2) + epsilon) * gamma over the axes from `axis` on.

    It is computed in float32 at least, as ONNX Runtime does.
    """
    emit, dtype, rank = builder.emit, str(data.ty.dtype), int(data.ty.ndim)
    computed = "float64" if dtype == "float64" else "float32"

    def cast(value: relax.Expr, wanted: str) -> relax.Expr:
        return value if str(value.ty.dtype) == wanted else emit(relax.op.astype(value, wanted))

    data = cast(data, computed)
    axes = list(range(axis % rank, rank))
    square = emit(relax.op.multiply(data, data))
    mean = emit(
        relax.op.add(emit(relax.op.mean(square, axes, True)), relax.const(epsilon, computed))
    )
    normal = emit(relax.op.multiply(data, emit(relax.op.rsqrt(mean))))
    return cast(emit(relax.op.multiply(normal, cast(gamma, computed))), dtype)


CONVERTERS = {
    "EmbedLayerNormalization": EmbedLayerNormalization,
    "SkipLayerNormalization": SkipLayerNormalization,
    "SimplifiedLayerNormalization": SimplifiedLayerNormalization,
    "SkipSimplifiedLayerNormalization": SkipSimplifiedLayerNormalization,
}
