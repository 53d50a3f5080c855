"""Convert sums of products of other types than float32.

TVM's converters write float32 whatever their inputs' type is.
"""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from farm.importers.torch.converters.operators import Converter

_CONVOLUTIONS = {
    1: (relax.op.nn.conv1d, "NCW", "OIW"),
    2: (relax.op.nn.conv2d, "NCHW", "OIHW"),
    3: (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}
_TRANSPOSED = {
    1: (relax.op.nn.conv1d_transpose, "NCW", "IOW"),
    2: (relax.op.nn.conv2d_transpose, "NCHW", "IOHW"),
    3: (relax.op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}

_CONVOLUTION, _CONV3D_RANK = "convolution.default", 5


def converters() -> dict[str, Converter]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    own: dict[str, Converter] = {
        "mm.default": _matmul,
        "bmm.default": _matmul,
        "matmul.default": _matmul,
        "linear.default": _linear,
        "addmm.default": _sum_and_product,
        "baddbmm.default": _sum_and_product,
        _CONVOLUTION: _convolution,
    }
    return {name: _by_type(name, convert) for name, convert in own.items()}


def _by_type(name: str, own: Converter) -> Converter:
    """Return a converter that takes TVM's for float32, and for float16 in float32.

    torch computes products of float16 in float32 on a CPU, and rounds the result.
    """

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        dtype = node.meta["val"].dtype

        def convert_float32() -> relax.Expr:
            if name == _CONVOLUTION and _is_transposed_conv3d(node):
                return own(node, importer)
            return importer.create_convert_map()[name](node)

        if dtype == torch.float32:
            return convert_float32()
        if dtype != torch.float16:
            return own(node, importer)
        emit = importer.block_builder.emit
        kept = {
            one: importer.env[one]
            for one in node.all_input_nodes
            if one.meta["val"].dtype == torch.float16
        }
        importer.env.update(
            {one: emit(relax.op.astype(value, "float32")) for one, value in kept.items()}
        )
        try:
            made = convert_float32()
            return emit(relax.op.astype(made, "float16"))
        finally:
            importer.env.update(kept)

    return convert


def _is_transposed_conv3d(node: torch.fx.Node) -> bool:
    """Return whether a convolution is transposed and 3-D, which TVM's converter refuses."""
    data, *_, transposed, _, _ = node.args
    return bool(transposed) and data.meta["val"].ndim == _CONV3D_RANK


def _matmul(node: torch.fx.Node, importer: Any) -> relax.Expr:
    left, right = (importer.env[one] for one in node.args)
    return importer.block_builder.emit(relax.op.matmul(left, right))


def _linear(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a product with a transposed matrix, and a sum with a bias."""
    data, weight, *bias = (None if one is None else importer.env[one] for one in node.args)
    emit = importer.block_builder.emit
    made = emit(relax.op.matmul(data, emit(relax.op.permute_dims(weight))))
    return emit(relax.op.add(made, bias[0])) if bias and bias[0] is not None else made


def _sum_and_product(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert beta * input + alpha * (left @ right)."""
    data, left, right = (importer.env[one] for one in node.args)
    emit, dtype = importer.block_builder.emit, str(data.ty.dtype)
    alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))

    def scaled(value: relax.Expr, factor: float) -> relax.Expr:
        return value if factor == 1 else emit(relax.op.multiply(value, relax.const(factor, dtype)))

    made = scaled(emit(relax.op.matmul(left, right)), alpha)
    if beta == 0:  # whatever the input is, not a number included
        shape = [int(extent) for extent in node.meta["val"].shape]
        return emit(relax.op.broadcast_to(made, shape))
    return emit(relax.op.add(scaled(data, beta), made))


def _convolution(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a convolution, transposed or not."""
    data, weight, bias, stride, padding, dilation, transposed, more, groups = node.args
    emit, image = importer.block_builder.emit, importer.env[data]
    rank, dtype = len(image.ty.shape) - 2, str(image.ty.dtype)
    operator, layout, of_weight = (_TRANSPOSED if transposed else _CONVOLUTIONS)[rank]
    named: dict[str, Any] = {"output_padding": _each(more, rank)} if transposed else {}
    made = emit(
        operator(
            image,
            importer.env[weight],
            strides=_each(stride, rank),
            padding=_each(padding, rank),
            dilation=_each(dilation, rank),
            groups=groups,
            data_layout=layout,
            kernel_layout=of_weight,
            out_dtype=dtype,
            **named,
        )
    )
    if bias is None:
        return made
    shape = [1, -1, *([1] * rank)]
    return emit(relax.op.add(made, emit(relax.op.reshape(importer.env[bias], shape))))


def _each(values: list[int], rank: int) -> list[int]:
    """Return a value for each axis; torch may give one for all."""
    return list(values) * (rank if len(values) == 1 else 1)
