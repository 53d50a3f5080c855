"""How the heavy operators are computed on a CPU: as loops over packed weights, which the schedules then tile.

A packed weight holds, for each block of `tile` output channels, all it needs in the order of use: [CO / tile, KH, KW, CI, tile] for a
convolution, [N / tile, K, tile] for a dense layer. The name of the main block (`CONVOLUTION`, ...) tells `schedules` its rule. Activations
are NHWC. What does not fit here (dynamic shapes, groups, odd channel counts) is left to TVM's own definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from farm.compiler.core import Core
from farm.compiler.folding import constant

CONVOLUTION, DEPTHWISE, DENSE, PADDING = "convolution", "depthwise", "dense", "padding"


def divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(candidate for candidate in range(min(number, limit), 0, -1) if number % candidate == 0)


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `pixels` x `vectors` accumulators of `lanes` values. `block` is its width in channels."""

    pixels: int
    vectors: int
    lanes: int

    @property
    def block(self) -> int:
        return self.vectors * self.lanes


def convolution_tile(core: Core, width: int, channels: int) -> Tile | None:
    """Of the tiles that divide the output and fit the registers, the one with the most multiply-adds per load; None where none divides."""
    for lanes in core.widths:
        if tiles := [
            Tile(divisor(width, max(1, core.tile_budget(lanes) // vectors)), vectors, lanes)
            for vectors in (4, 3, 2, 1)
            if channels % (vectors * lanes) == 0
        ]:
            return max(tiles, key=lambda tile: tile.pixels * tile.vectors / (tile.pixels + tile.vectors))
    return None


def dense_tile(core: Core, width: int) -> Tile | None:
    """One row by up to eight vectors."""
    return next((Tile(1, vectors, lanes) for lanes in core.widths for vectors in (8, 4, 2, 1) if width % (vectors * lanes) == 0), None)


Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def legalization(core: Core) -> dict[str, Legalizer]:
    """The map that `relax.transform.LegalizeOps` takes."""
    return {name: _legalizer(name, own, core) for name, own in (("relax.nn.conv2d", _convolution), ("relax.matmul", _dense))}


def _legalizer(name: str, own: Callable[[relax.BlockBuilder, relax.Call, Core], relax.Expr | None], core: Core) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        packed = own(builder, call, core)
        return tvm.ir.Op.get(name).get_attr("FLegalize")(builder, call) if packed is None else packed

    return legalize


def _static_shape(expression: relax.Expr) -> tuple[int, ...] | None:
    shape = getattr(expression.ty, "shape", None)
    if shape is None or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _convolution(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    attributes, weight, shape = call.attrs, constant(call.args[1]), _static_shape(call)
    if weight is None or shape is None or attributes.data_layout != "NHWC" or attributes.kernel_layout != "HWIO":
        return None
    if weight.dtype != np.float32 or str(call.ty.dtype) != "float32" or attributes.out_layout not in ("", "NHWC"):
        return None
    geometry = _Geometry(attributes)
    kernel_h, kernel_w, channels_in, channels_out = weight.shape
    if geometry.groups == channels_out and channels_in == 1 and _static_shape(call.args[0])[-1] == channels_out:  # type: ignore[index]
        packed = np.ascontiguousarray(weight.reshape(kernel_h, kernel_w, channels_out))
        return builder.call_te(partial(_depthwise_loops, geometry), call.args[0], relax.const(packed), primfunc_name_hint=DEPTHWISE)
    tile = convolution_tile(core, shape[2], channels_out)
    if geometry.groups != 1 or tile is None:
        return None
    block = tile.block
    blocked = weight.reshape(kernel_h, kernel_w, channels_in, channels_out // block, block)
    packed = np.ascontiguousarray(blocked.transpose(3, 0, 1, 2, 4))
    return builder.call_te(partial(_convolution_loops, geometry), call.args[0], relax.const(packed), primfunc_name_hint=CONVOLUTION)


def _dense(builder: relax.BlockBuilder, call: relax.Call, core: Core) -> relax.Expr | None:
    weight, shape = constant(call.args[1]), _static_shape(call.args[0])
    if weight is None or shape is None or len(shape) != 2 or weight.ndim != 2 or weight.dtype != np.float32:
        return None
    if str(call.ty.dtype) != "float32":
        return None
    depth, width = weight.shape
    tile = dense_tile(core, width)
    if tile is None:
        return None
    packed = np.ascontiguousarray(weight.reshape(depth, width // tile.block, tile.block).transpose(1, 0, 2))
    return builder.call_te(_dense_loops, call.args[0], relax.const(packed), primfunc_name_hint=DENSE)


class _Geometry:
    """Strides, padding (top, left, bottom, right), dilation and groups of a convolution, as plain numbers."""

    def __init__(self, attributes: Any) -> None:
        self.strides = [int(value) for value in attributes.strides]
        self.padding = [int(value) for value in attributes.padding]
        self.dilation = [int(value) for value in attributes.dilation]
        self.groups = int(attributes.groups)

    def output(self, extent: int, kernel: int, axis: int) -> int:
        return (extent - self.dilation[axis] * (kernel - 1) - 1) // self.strides[axis] + 1


def _padded(data: te.Tensor, padding: list[int]) -> te.Tensor:
    if not any(padding):
        return data
    count, height, width, channels = (int(extent) for extent in data.shape)
    top, left, bottom, right = padding

    def value(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> tvm.tirx.Expr:
        inside = tvm.tirx.all(y >= top, y < height + top, x >= left, x < width + left)
        return tvm.tirx.if_then_else(inside, data[n, y - top, x - left, c], tvm.tirx.const(0, data.dtype))

    return te.compute((count, height + top + bottom, width + left + right, channels), value, name=PADDING)


def _convolution_loops(geometry: _Geometry, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    padded = _padded(data, geometry.padding)
    count, height, width, channels_in = (int(extent) for extent in padded.shape)
    blocks, kernel_h, kernel_w, _, block = (int(extent) for extent in weight.shape)
    ry, rx, rc = (te.reduce_axis((0, extent), name=name) for extent, name in ((kernel_h, "ry"), (kernel_w, "rx"), (channels_in, "rc")))
    (stride_y, stride_x), (dilation_y, dilation_x) = geometry.strides, geometry.dilation
    shape = (count, geometry.output(height, kernel_h, 0), geometry.output(width, kernel_w, 1), blocks * block)
    return te.compute(
        shape,
        lambda n, y, x, c: te.sum(
            padded[n, y * stride_y + ry * dilation_y, x * stride_x + rx * dilation_x, rc] * weight[c // block, ry, rx, rc, c % block],
            axis=[ry, rx, rc],
        ),
        name=CONVOLUTION,
    )


def _depthwise_loops(geometry: _Geometry, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    padded = _padded(data, geometry.padding)
    count, height, width, channels = (int(extent) for extent in padded.shape)
    kernel_h, kernel_w, _ = (int(extent) for extent in weight.shape)
    ry, rx = te.reduce_axis((0, kernel_h), name="ry"), te.reduce_axis((0, kernel_w), name="rx")
    (stride_y, stride_x), (dilation_y, dilation_x) = geometry.strides, geometry.dilation
    return te.compute(
        (count, geometry.output(height, kernel_h, 0), geometry.output(width, kernel_w, 1), channels),
        lambda n, y, x, c: te.sum(
            padded[n, y * stride_y + ry * dilation_y, x * stride_x + rx * dilation_x, c] * weight[ry, rx, c], axis=[ry, rx]
        ),
        name=DEPTHWISE,
    )


def _dense_loops(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    rows, depth = (int(extent) for extent in data.shape)
    blocks, _, block = (int(extent) for extent in weight.shape)
    k = te.reduce_axis((0, depth), name="k")
    return te.compute((rows, blocks * block), lambda i, j: te.sum(data[i, k] * weight[j // block, k, j % block], axis=k), name=DENSE)
