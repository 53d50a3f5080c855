"""Define convolutions and products of 8-bit integers with sums of 32 bits.

The rules of conv_dense_schedule tile them as they tile those of float32. The innermost loops are
one instruction (see dot_instructions): a packed weight is
[CO / block, KH, KW, CI / depth, vectors, packs, lanes, pack_size] for a convolution, the same
without KH and KW for a product. Its channels are padded with zeros. If the instruction takes inputs
of another type, or more of them than there are, they are copied, together with the padding: an XOR
with 0x80 turns unsigned numbers into signed ones less 128, and back, and a constant for each output
channel compensates for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from farm.compiler.cpu.conv_dense_compute import (
    PADDING,
    clamp_index,
    crop,
    kernel_annotations,
    static_shape,
)
from farm.compiler.cpu.int8.dot_instructions import DotProductInstruction, tensor_intrin_name
from farm.compiler.cpu.kernel_config import KernelConfig, Workload
from farm.compiler.cpu.register_tiles import Tile, round_up_to_multiple
from farm.compiler.ir.annotations import INSTRUCTION
from farm.compiler.ir.dynamic_extents import round_up_extent, static_extents_as_ints

# Main blocks, with the names of kernels and rules.
CONVOLUTION_INT8, DENSE_INT8 = "convolution_int8", "dense_int8"
OFFSET = 128

Array = np.ndarray[Any, Any]
Expr = Any


def conv2d_int8_compute(
    workload: Workload,
    config: KernelConfig,
    dot: DotProductInstruction,
    data: te.Tensor,
    weight: te.Tensor,
    *offset: te.Tensor,
) -> te.Tensor:
    """Define a convolution; of several groups only if the outputs of a group fill whole vectors."""
    (stride_y, stride_x), (dilation_y, dilation_x) = workload.strides, workload.dilation
    out_h, out_w, group = (
        workload.output(0),
        workload.output(1),
        workload.channels // workload.groups,
    )
    source = pad_and_cast_input(workload, dot, data)
    _, kernel_h, kernel_w, steps, *_ = static_shape(weight)
    columns = round_up_to_multiple(out_w, config.tile.pixels)
    window = [
        te.reduce_axis((0, extent), name=name)
        for extent, name in ((kernel_h, "ry"), (kernel_w, "rx"))
    ]

    def inputs(n: te.Var, y: te.Var, x: te.Var, c: te.Var) -> list[Expr]:
        row, column = (
            axis * dilation for axis, dilation in zip(window, (dilation_y, dilation_x), strict=True)
        )
        first = c // group * steps * dot.depth if workload.groups > 1 else 0
        return [n, y * stride_y + row, clamp_index(x, out_w, columns) * stride_x + column, first]

    notes = {
        **kernel_annotations(workload, config),
        INSTRUCTION: tensor_intrin_name(dot, config.tile.lanes),
    }
    main = _sums(
        CONVOLUTION_INT8,
        notes,
        dot,
        (data.shape[0], out_h, columns),
        source,
        weight,
        window,
        inputs,
    )
    return _less_offset(crop(main, (data.shape[0], out_h, out_w, workload.channels)), *offset)


def dense_int8_compute(
    workload: Workload,
    config: KernelConfig,
    dot: DotProductInstruction,
    data: te.Tensor,
    weight: te.Tensor,
    *offset: te.Tensor,
) -> te.Tensor:
    """Define [..., M, K] by a packed weight: [..., M, N]."""
    *outer, rows, _ = static_extents_as_ints(data.shape)
    covered = round_up_extent(rows, config.tile.pixels)

    def inputs(*at: te.Var) -> list[Expr]:
        *batch, row, _ = at
        return [*batch, clamp_index(row, rows, covered), 0]

    notes = {
        **kernel_annotations(workload, config),
        INSTRUCTION: tensor_intrin_name(dot, config.tile.lanes),
    }
    main = _sums(
        DENSE_INT8,
        notes,
        dot,
        (*outer, covered),
        pad_and_cast_input(workload, dot, data),
        weight,
        [],
        inputs,
    )
    return _less_offset(crop(main, (*outer, rows, workload.channels)), *offset)


def _sums(
    name: str,
    notes: dict[str, Any],
    dot: DotProductInstruction,
    pixels: Sequence[int],
    source: te.Tensor,
    weight: te.Tensor,
    window: Sequence[te.Var],
    inputs: Callable[..., list[Expr]],
) -> te.Tensor:
    """Define the main block: [*pixels, channels of all blocks].

    `inputs` returns the indices in the source of an output's first input.
    """
    blocks, *_, steps, vectors, _, lanes, per = static_shape(weight)
    step, one = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, dot.depth), name="one")
    block = vectors * lanes

    def value(*at: te.Var) -> Expr:
        *place, first = inputs(*at)
        c = at[-1]
        left = source(*place, first + step * dot.depth + one)
        right = weight(
            c // block, *window, step, c % block // lanes, one // per, c % lanes, one % per
        )
        return te.sum(left.astype("int32") * right.astype("int32"), axis=[*window, step, one])

    return te.compute((*pixels, blocks * block), value, name=name, attrs=notes)


def pack_weight(weight: Array, tile: Tile, dot: DotProductInstruction) -> Array:
    """Pack [..., CI, CO] as [CO / block, ..., CI / depth, vectors, packs, lanes, pack_size]."""
    *window, depth, channels = weight.shape
    filled = [(0, 0)] * len(window) + [(0, -depth % dot.depth), (0, -channels % tile.block)]
    apart = np.pad(weight, filled).reshape(
        *window, -1, dot.packs, dot.pack_size, -(-channels // tile.block), tile.vectors, tile.lanes
    )
    axes = len(window)
    steps, parts, per, blocks, vectors, lanes = range(axes, axes + 6)
    return np.ascontiguousarray(
        apart.transpose(blocks, *range(axes), steps, vectors, parts, lanes, per)
    )


def pad_and_cast_input(
    workload: Workload, dot: DotProductInstruction, data: te.Tensor
) -> te.Tensor:
    """Return the input with its padding, in the type that the instruction takes.

    The channels of each group are padded to the depth of the instruction.
    """
    *outer, channels = static_extents_as_ints(data.shape)
    each = channels // workload.groups
    filled = round_up_to_multiple(each, dot.depth)
    padding = workload.padding if len(outer) == 3 else ()
    if filled == each and not any(padding) and dot.data in ("", str(data.dtype)):
        return data
    top, left, bottom, right = padding or (0, 0, 0, 0)
    height, width = outer[-2:] if padding else (0, 0)

    def value(*at: te.Var) -> Expr:
        *place, c = at
        asked = [c % filled < each] if filled > each else []
        if any(padding):
            n, y, x = place
            asked += [y >= top, y < height + top, x >= left, x < width + left]
            place = [n, y - top, x - left]
        taken = cast_with_offset(
            data(*place, c // filled * each + c % filled if filled > each else c), dot.data
        )
        return (
            tirx.if_then_else(
                tirx.all(*asked), taken, cast_with_offset(tirx.const(0, data.dtype), dot.data)
            )
            if asked
            else taken
        )

    if padding:
        outer = [outer[0], height + top + bottom, width + left + right]
    return te.compute((*outer, workload.groups * filled), value, name=PADDING)


def cast_with_offset(value: Expr, dtype: str) -> Expr:
    """Convert a number to another type; between int8 and uint8 with an offset of 128."""
    given = str(value.ty.dtype) if hasattr(value, "ty") else str(value.dtype)
    if dtype in ("", given):
        return value
    if {given, dtype} == {"int8", "uint8"}:
        return tirx.Cast(dtype, value) ^ tirx.const(OFFSET if dtype == "uint8" else -OFFSET, dtype)
    return tirx.Cast(dtype, value)


def channel_sum_corrections(weight: Array, given: str, dot: DotProductInstruction) -> Array | None:
    """Return the constant to add to each channel's sum, [CO] of int32; None if it is not needed.

    `given` is the type of the input.
    """
    if {given, dot.data} != {"int8", "uint8"}:
        return None
    sums = weight.astype(np.int64).sum(axis=tuple(range(weight.ndim - 1)))
    return np.asarray(sums * (OFFSET if given == "uint8" else -OFFSET), np.int32)


def _less_offset(sums: te.Tensor, *offset: te.Tensor) -> te.Tensor:
    if not offset:
        return sums
    return te.compute(sums.shape, lambda *at: sums[at] + offset[0][at[-1]], name="offset")
