"""Define the kernel that transforms a weight of Winograd's convolution when a model is loaded.

It computes what `WinogradTransform.apply` computes, to the bit. One kernel serves all weights of a
model with as many taps and the same strides: the sides of tiles, the size of blocks, and the
numbers of channels are those of its arguments.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.compiler.winograd_weights import Phases

_LANES = 4  # every block is a multiple
_DOUBLE = "float64"


def weight_transform_kernel(phases: Phases) -> tirx.PrimFunc:
    """Return the kernel from [*taps, CI, CO] to [CO / block, *sides, depth, block].

    Its second argument are the coefficients, [*sides, taps of a phase] in double precision. Blocks
    and their input channels are divided among threads.
    """
    inputs, outputs, blocks, depth, block = (
        te.var(name, "int64") for name in ("inputs", "outputs", "blocks", "depth", "block")
    )
    side_h, side_w = (te.var(name, "int64") for name in ("side_h", "side_w"))
    weight = te.placeholder((*phases.taps, inputs, outputs), "float32", "weight")
    coefficients = te.placeholder(
        (side_h, side_w, math.prod(phases.taps_of_each)), _DOUBLE, "coefficients"
    )
    count = math.prod(phases.counts)

    def program(ins: Any, outs: Any) -> tirx.Stmt:
        with IRBuilder() as made, T.parallel(0, blocks * depth) as row:
            number, channel = row // depth, row % depth
            with T.serial(0, block // _LANES) as vector:
                place = vector * _LANES
                first = number * block + place
                with T.If(tirx.all(channel < inputs * count, first + _LANES <= outputs)):
                    with T.Then():
                        where, into = (
                            tirx.Ramp(start, tirx.const(1, "int64"), _LANES)
                            for start in (first, place)
                        )
                        _store(ins, outs[0], phases, channel, where, (number, into))
                    with T.Else(), T.serial(0, _LANES) as lane:
                        is_there = tirx.all(channel < inputs * count, first + lane < outputs)
                        with T.If(is_there):
                            with T.Then():
                                into = (number, place + lane)
                                _store(ins, outs[0], phases, channel, first + lane, into)
                            with T.Else():
                                _clear(outs[0], sides, channel, (number, place + lane))
        return made.get()

    sides, shape = (side_h, side_w), (blocks, side_h, side_w, depth, block)
    transformed = te.extern(
        [shape], [weight, coefficients], program, name="winograd_weight", dtype=["float32"]
    )
    return te.create_prim_func([weight, coefficients, transformed]).without_attr("global_symbol")


def _store(
    inputs: Any,
    result: tirx.Buffer,
    phases: Phases,
    channel: Any,
    read: Any,
    place: tuple[Any, Any],
) -> None:
    """Store the values at all points: sums of products in the order of the taps, from zero on."""
    weight, coefficients = inputs
    lanes = _LANES if isinstance(read, tirx.Ramp) else 1
    suffix = f"x{lanes}" if lanes > 1 else ""
    total = T.alloc_buffer((lanes,), _DOUBLE, scope="local")
    whole = [tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes) if suffix else 0]
    zero = tirx.const(0, _DOUBLE)
    if suffix:
        zero = tirx.Broadcast(zero, lanes)
    side_h, side_w = result.shape[1:3]
    kernel_h, kernel_w = phases.taps_of_each

    def tap(y: int, x: int) -> tirx.Expr:
        if phases.strides == (1, 1):
            value = tirx.BufferLoad(weight, [y, x, channel, read])
            return value.astype(f"{_DOUBLE}{suffix}")
        phase, own = channel // weight.shape[2], channel % weight.shape[2]
        row, column = (
            step * stride + first
            for step, stride, first in zip(
                (y, x),
                phases.strides,
                (phase // phases.counts[1], phase % phases.counts[1]),
                strict=True,
            )
        )
        value = tirx.BufferLoad(weight, [row, column, own, read]).astype(f"{_DOUBLE}{suffix}")
        is_there = tirx.all(row < phases.taps[0], column < phases.taps[1])
        return tirx.if_then_else(is_there, value, zero)

    with T.serial(0, side_h) as down, T.serial(0, side_w) as across:
        T.buffer_store(total, zero, whole)
        for y in range(kernel_h):
            for x in range(kernel_w):
                factor = tirx.BufferLoad(coefficients, [down, across, y * kernel_w + x])
                product = tap(y, x) * (tirx.Broadcast(factor, lanes) if suffix else factor)
                T.buffer_store(total, tirx.BufferLoad(total, whole) + product, whole)
        rounded = tirx.BufferLoad(total, whole).astype(f"float32{suffix}")
        T.buffer_store(result, rounded, [place[0], down, across, channel, place[1]])


def _clear(
    result: tirx.Buffer, sides: tuple[Any, Any], channel: Any, place: tuple[Any, Any]
) -> None:
    with T.serial(0, sides[0]) as down, T.serial(0, sides[1]) as across:
        zero = tirx.const(0, "float32")
        T.buffer_store(result, zero, [place[0], down, across, channel, place[1]])
