"""Which loops compute an operator of 8-bit integers: convolutions, each channel by itself too, and products by a constant weight."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from farm.compiler import integer_loops, integer_tiles, windows
from farm.compiler.candidates import memory_cycles
from farm.compiler.choices import CHANNELS, PIXELS, Choice, Chooser, Workload
from farm.compiler.core import Core
from farm.compiler.dots import Dot, dot_of, long_product
from farm.compiler.loops import DEPTHWISE_INT8
from farm.compiler.requantize import BYTES
from farm.compiler.tiles import Tile, grouped_tile, up_to_multiple

Array = np.ndarray[Any, Any]


def convolution(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser, weight: Array, workload: Workload) -> relax.Expr | None:
    """Of NHWC by HWIO; None where the outputs of a group fill no vectors."""
    if workload.groups == workload.channels == workload.data[3] > 1:
        return _depthwise(builder, call, chooser, weight, replace(workload, operator=DEPTHWISE_INT8))
    return _product(builder, call, chooser, weight, replace(workload, operator=integer_loops.CONVOLUTION_INT8))


def dense(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser, weight: Array, workload: Workload) -> relax.Expr | None:
    return _product(builder, call, chooser, weight, replace(workload, operator=integer_loops.DENSE_INT8))


def _depthwise(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser, weight: Array, workload: Workload) -> relax.Expr | None:
    if not _is_integer(call, weight):
        return None
    choice = chooser.best(workload, windows.window_candidates(workload, chooser.core))
    *window, _, channels = weight.shape
    packed = weight.astype(np.int16).reshape(*window, channels)[:, :, windows.computed(channels, choice.tile.lanes)]
    body = partial(windows.depthwise_int8, workload, choice, long_product(chooser.core, choice.tile.lanes))
    return builder.call_te(body, call.args[0], relax.const(packed, "int16"), primfunc_name_hint=DEPTHWISE_INT8)


def _is_integer(call: relax.Call, weight: Array) -> bool:
    return weight.dtype == np.int8 and str(call.args[0].ty.dtype) in BYTES and str(call.ty.dtype) == "int32"


def _product(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser, weight: Array, workload: Workload) -> relax.Expr | None:
    if not _is_integer(call, weight):
        return None
    data, dot = call.args[0], dot_of(chooser.core, weight)
    candidates = _candidates(workload, chooser.core, dot)
    if not candidates:
        return None
    choice = chooser.best(workload, candidates)
    operands = [data, relax.const(integer_loops.packed(weight, choice.tile, dot))]
    offsets = integer_loops.offsets(weight, str(data.ty.dtype), dot)
    if offsets is not None:
        operands.append(relax.const(offsets))
    loops = integer_loops.dense if workload.operator == integer_loops.DENSE_INT8 else integer_loops.convolution
    body = partial(loops, workload, choice, dot)
    return builder.call_te(body, *operands, primfunc_name_hint=workload.operator)


def _candidates(workload: Workload, core: Core, dot: Dot) -> list[tuple[Choice, float]]:
    """Tiles and orders, by the account of products of float32, with an instruction in place of each multiply-add."""
    image = (workload.data[0], workload.output(0), workload.output(1)) if workload.operator == integer_loops.CONVOLUTION_INT8 else None
    *outer, pixels = image or workload.data[:-1]
    rows, (*window, depth, channels) = int(np.prod(outer)), workload.weight
    steps = int(np.prod(window)) * -(-depth // dot.depth)
    if workload.groups > 1:
        tile = grouped_tile(core, pixels, channels // workload.groups)
        tiles: list[tuple[Tile, float]] = []
        if tile is not None:
            most = max(1, integer_tiles.sums_at_most(core, tile.lanes) // tile.vectors)
            tiles = [(replace(tile, pixels=min(tile.pixels, most)), 1.0)]
    else:
        tiles = list(integer_tiles.tiles(core, dot, pixels, channels, steps))
    found = []
    for tile, cycles in tiles:
        weights, inputs = steps * dot.depth * up_to_multiple(channels, tile.block), int(np.prod(workload.data))
        blocks, tasks = -(-channels // tile.block), rows * -(-pixels // tile.pixels)
        memory = memory_cycles(core, weights, inputs, rows * pixels * channels, blocks, tasks)
        found += [(Choice(dot.name, tile, order), rows * cycles + extra) for order, extra in zip((PIXELS, CHANNELS), memory, strict=True)]
    return found
