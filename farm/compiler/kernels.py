"""Which loops compute an operator on a CPU: farm's own for convolutions and products of float32, TVM's own definitions for the rest.

Constant weights are packed here, once. What does not fit (dynamic shapes, other types, groups that fill no vectors) is left to TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.compiler import functions, loops, rows
from farm.compiler.core import Core
from farm.compiler.folding import constant
from farm.compiler.tiles import Tile, divisor, grouped_tile, product_tile, up_to_multiple

_DEPTHWISE_PIXELS = 8

Array = np.ndarray[Any, Any]
Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Own = Callable[[relax.BlockBuilder, relax.Call, Core], relax.Expr | None]


def legalization(core: Core) -> dict[str, Legalizer]:
    """The map that `relax.transform.LegalizeOps` takes."""
    return {name: _legalizer(name, own, core) for name, own in _OWN.items()}


def _legalizer(name: str, own: Own, core: Core) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        ours = own(builder, call, core)
        return tvm.ir.Op.get(name).get_attr("FLegalize")(builder, call) if ours is None else ours

    return legalize


def static_shape(expression: relax.Expr) -> tuple[int, ...] | None:
    """The extents of a float32 tensor, None where they are open or the type is another."""
    shape = getattr(expression.ty, "shape", None)
    if shape is None or str(expression.ty.dtype) != "float32" or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _convolution(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    attributes, weight, data, shape = call.attrs, constant(call.args[1]), static_shape(call.args[0]), static_shape(call)
    if weight is None or data is None or shape is None or attributes.out_layout not in ("", "NHWC"):
        return None
    if (attributes.data_layout, attributes.kernel_layout, weight.dtype) != ("NHWC", "HWIO", np.float32):
        return None
    geometry, width = loops.Geometry(attributes), shape[2]
    kernel_h, kernel_w, depth, channels = weight.shape
    if geometry.groups == channels == data[3] > 1:
        tile, packed = _depthwise_weight(core, weight, width)
        body = partial(loops.depthwise, geometry, tile, channels)
        return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.DEPTHWISE)
    if geometry.groups > 1:
        found = grouped_tile(core, width, channels // geometry.groups)
    else:
        found = product_tile(core, width, channels, kernel_h * kernel_w * depth)
    if found is None:
        return None
    blocks = _blocks(weight, found.block)  # [KH, KW, CI, blocks, block]
    packed = np.ascontiguousarray(blocks.transpose(3, 0, 1, 2, 4))
    body = partial(loops.convolution, geometry, found, channels)
    return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.CONVOLUTION)


def _transposed(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    attributes, weight, data, shape = call.attrs, constant(call.args[1]), static_shape(call.args[0]), static_shape(call)
    if attributes.data_layout != "NHWC":
        return None
    geometry = loops.Geometry(attributes)
    plain = geometry.groups == 1 and geometry.dilation == [1, 1] and attributes.out_layout in ("", "NHWC")
    if not plain or weight is None or data is None or shape is None or weight.dtype != np.float32 or attributes.kernel_layout != "IOHW":
        return _transposed_by_tvm(builder, call)
    depth, channels, kernel_h, kernel_w = weight.shape
    stride_y, stride_x = geometry.strides
    tile = product_tile(core, -(-shape[2] // stride_x), channels, depth)
    height, width = up_to_multiple(kernel_h, stride_y), up_to_multiple(kernel_w, stride_x)
    filled = np.pad(weight, [(0, 0), (0, 0), (0, height - kernel_h), (0, width - kernel_w)])
    packed = np.ascontiguousarray(_blocks(filled.transpose(2, 3, 0, 1), tile.block).transpose(3, 0, 1, 2, 4))
    body = partial(loops.transposed, geometry, tile, shape)
    return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.TRANSPOSED)


def _transposed_by_tvm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM has loops for NCHW only."""
    given = call.attrs
    data = builder.emit(relax.op.permute_dims(call.args[0], [0, 3, 1, 2]))
    result = relax.op.nn.conv2d_transpose(
        data, call.args[1], given.strides, given.padding, given.output_padding, given.dilation, given.groups, "NCHW", given.kernel_layout
    )
    return relax.op.permute_dims(builder.emit(result), [0, 2, 3, 1])


def _max_pool(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    attributes, data, shape = call.attrs, static_shape(call.args[0]), static_shape(call)
    if data is None or shape is None or attributes.layout != "NHWC" or attributes.out_layout not in ("", "NHWC"):
        return None
    geometry, window = loops.Geometry(attributes), [int(extent) for extent in attributes.pool_size]
    top, left, bottom, right = geometry.padding
    reach = [geometry.output(data[1] + top + bottom, window[0], 0), geometry.output(data[2] + left + right, window[1], 1)]
    lanes = divisor(data[3], core.lanes)
    if reach != list(shape[1:3]) or lanes == 1:  # rounded up, so that windows leave the padding
        return None
    body = partial(loops.max_pool, geometry, window, Tile(_even(shape[2], _DEPTHWISE_PIXELS), 1, lanes))
    return builder.call_te(body, call.args[0], primfunc_name_hint=loops.POOL)


def _depthwise_weight(core: Core, weight: Array, width: int) -> tuple[Tile, Array]:
    """Channels are filled up to whole vectors, unless narrower vectors do without."""
    kernel_h, kernel_w, _, channels = weight.shape
    lanes = divisor(channels, core.lanes)
    if lanes < core.widths[-1]:
        lanes = core.lanes if channels >= core.lanes else core.widths[-1]
    filled = _filled(weight.reshape(kernel_h, kernel_w, channels), up_to_multiple(channels, lanes))
    return Tile(_even(width, _DEPTHWISE_PIXELS), 1, lanes), filled


def _even(width: int, limit: int) -> int:
    """A height of tiles, at most `limit`, that covers the width with as little beyond as can be; the largest of such."""
    return max(range(1, min(width, limit) + 1), key=lambda pixels: (width / up_to_multiple(width, pixels) * min(1, pixels / 4), pixels))


def _product(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    left, right, shape = static_shape(call.args[0]), static_shape(call.args[1]), static_shape(call)
    if left is None or right is None or shape is None or min(len(left), len(right)) < 2 or 0 in (*left, *right):
        return None
    weight = constant(call.args[1])
    tile = product_tile(core, left[-2], right[-1], left[-1])
    if weight is not None and weight.ndim == 2:
        packed = np.ascontiguousarray(_blocks(weight, tile.block).transpose(1, 0, 2))
        body = partial(loops.dense, tile, right[-1])
        return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.DENSE)
    if len(left) != len(right):
        return None
    return builder.call_te(partial(loops.product, tile), call.args[0], call.args[1], primfunc_name_hint=loops.PRODUCT)


def _softmax(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    shape = static_shape(call)
    if shape is None or len(shape) < 2 or int(call.attrs.axis) not in (-1, len(shape) - 1) or 0 in shape:
        return None
    lanes = core.lanes if shape[-1] >= core.lanes else divisor(shape[-1], core.lanes)
    return builder.call_te(partial(rows.softmax, lanes), call.args[0], primfunc_name_hint=rows.SOFTMAX)


def _layer_norm(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    shape, attributes = static_shape(call), call.attrs
    if shape is None or len(shape) < 2 or 0 in shape or [int(axis) % len(shape) for axis in attributes.axes] != [len(shape) - 1]:
        return None
    if not (attributes.center and attributes.scale) or any(static_shape(argument) is None for argument in call.args):
        return None
    body = partial(rows.layer_norm, divisor(shape[-1], core.lanes), float(attributes.epsilon))
    return builder.call_te(body, *call.args, primfunc_name_hint=rows.LAYER_NORM)


def _elementwise(function: Callable[[Any], Any]) -> Own:
    def own(builder: relax.BlockBuilder, call: relax.Call, _: Core) -> relax.Expr | None:
        if str(call.ty.dtype) != "float32":
            return None
        return builder.call_te(functions.elementwise(function), call.args[0], primfunc_name_hint=f"farm_{function.__name__}")

    return own


def _blocks(weight: Array, block: int) -> Array:
    """The last axis as blocks, the last of them filled up with zeros."""
    filled = _filled(weight, up_to_multiple(weight.shape[-1], block))
    return filled.reshape(*weight.shape[:-1], -1, block)


def _filled(weight: Array, extent: int) -> Array:
    return np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, extent - weight.shape[-1])])


_OWN: dict[str, Own] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.conv2d_transpose": _transposed,
    "relax.nn.max_pool2d": _max_pool,
    "relax.matmul": _product,
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.exp": _elementwise(functions.exp),
    "relax.sigmoid": _elementwise(functions.sigmoid),
    "relax.tanh": _elementwise(functions.tanh),
    "relax.erf": _elementwise(functions.erf),
    "relax.nn.silu": _elementwise(functions.silu),
    "relax.nn.gelu": _elementwise(functions.gelu),
}
