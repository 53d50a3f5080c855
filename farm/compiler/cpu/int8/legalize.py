"""Choose the loops of an operator of 8-bit integers.

These are convolutions, also depthwise, and products with a constant weight.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from farm.compiler.cpu.conv_dense_compute import DEPTHWISE_INT8
from farm.compiler.cpu.cost_model import memory_stall_cycles
from farm.compiler.cpu.int8 import compute
from farm.compiler.cpu.int8 import int8_register_tiles as int8_tiles
from farm.compiler.cpu.int8.dot_instructions import (
    DotProductInstruction,
    int16_widening_multiply_function,
    select_dot_instruction,
)
from farm.compiler.cpu.kernel_config import CHANNELS, PIXELS, ConfigSelector, KernelConfig, Workload
from farm.compiler.cpu.register_tiles import Tile, largest_grouped_conv_tile, round_up_to_multiple
from farm.compiler.cpu.windows import depthwise_pool
from farm.compiler.graph.quantization.quantized_arithmetic import BYTES
from farm.compiler.target.cpu_model import CpuModel

Array = np.ndarray[Any, Any]


def legalize_convolution(
    builder: relax.BlockBuilder,
    call: relax.Call,
    selector: ConfigSelector,
    weight: Array,
    workload: Workload,
) -> relax.Expr | None:
    """Legalize a convolution of NHWC by HWIO; None if the outputs of a group fill no vectors."""
    if workload.groups == workload.channels == workload.data[3] > 1:
        return _depthwise(
            builder, call, selector, weight, replace(workload, operator=DEPTHWISE_INT8)
        )
    return _product(
        builder, call, selector, weight, replace(workload, operator=compute.CONVOLUTION_INT8)
    )


def legalize_dense(
    builder: relax.BlockBuilder,
    call: relax.Call,
    selector: ConfigSelector,
    weight: Array,
    workload: Workload,
) -> relax.Expr | None:
    """Legalize a product with a constant weight; None if the types do not fit."""
    return _product(builder, call, selector, weight, replace(workload, operator=compute.DENSE_INT8))


def _depthwise(
    builder: relax.BlockBuilder,
    call: relax.Call,
    selector: ConfigSelector,
    weight: Array,
    workload: Workload,
) -> relax.Expr | None:
    if not _is_integer(call, weight):
        return None
    config = selector.best(
        workload, depthwise_pool.sliding_window_candidates(workload, selector.cpu)
    )
    *window, _, channels = weight.shape
    packed = weight.astype(np.int16).reshape(*window, channels)[
        :, :, depthwise_pool.vector_channel_order(channels, config.tile.lanes)
    ]
    body = partial(
        depthwise_pool.depthwise_conv2d_int8_compute,
        workload,
        config,
        int16_widening_multiply_function(selector.cpu, config.tile.lanes),
    )
    return builder.call_te(
        body, call.args[0], relax.const(packed, "int16"), primfunc_name_hint=DEPTHWISE_INT8
    )


def _is_integer(call: relax.Call, weight: Array) -> bool:
    return (
        weight.dtype == np.int8
        and str(call.args[0].ty.dtype) in BYTES
        and str(call.ty.dtype) == "int32"
    )


def _product(
    builder: relax.BlockBuilder,
    call: relax.Call,
    selector: ConfigSelector,
    weight: Array,
    workload: Workload,
) -> relax.Expr | None:
    if not _is_integer(call, weight):
        return None
    data, dot = call.args[0], select_dot_instruction(selector.cpu, weight)
    candidates = _candidates(workload, selector.cpu, dot)
    if not candidates:
        return None
    config = selector.best(workload, candidates)
    operands = [data, relax.const(compute.pack_weight(weight, config.tile, dot))]
    offsets = compute.channel_sum_corrections(weight, str(data.ty.dtype), dot)
    if offsets is not None:
        operands.append(relax.const(offsets))
    loops = (
        compute.dense_int8_compute
        if workload.operator == compute.DENSE_INT8
        else compute.conv2d_int8_compute
    )
    body = partial(loops, workload, config, dot)
    return builder.call_te(body, *operands, primfunc_name_hint=workload.operator)


def _candidates(
    workload: Workload, cpu: CpuModel, dot: DotProductInstruction
) -> list[tuple[KernelConfig, float]]:
    """Return tiles and orders with predicted cycles.

    The cost model is that of float32 products, with an instruction in place of each multiply-add.
    """
    image = (
        (workload.data[0], workload.output(0), workload.output(1))
        if workload.operator == compute.CONVOLUTION_INT8
        else None
    )
    *outer, pixels = image or workload.data[:-1]
    rows, (*window, depth, channels) = int(np.prod(outer)), workload.weight
    steps = int(np.prod(window)) * -(-depth // dot.depth)
    if workload.groups > 1:
        tile = largest_grouped_conv_tile(cpu, pixels, channels // workload.groups)
        tiles: list[tuple[Tile, float]] = []
        if tile is not None:
            most = max(1, int8_tiles.max_accumulators(cpu, tile.lanes) // tile.vectors)
            tiles = [(replace(tile, pixels=min(tile.pixels, most)), 1.0)]
    else:
        tiles = list(int8_tiles.int8_gemm_tiles_with_cycles(cpu, dot, pixels, channels, steps))
    found = []
    for tile, cycles in tiles:
        weights, inputs = (
            steps * dot.depth * round_up_to_multiple(channels, tile.block),
            int(np.prod(workload.data)),
        )
        blocks, tasks = -(-channels // tile.block), rows * -(-pixels // tile.pixels)
        memory = memory_stall_cycles(cpu, weights, inputs, rows * pixels * channels, blocks, tasks)
        found += [
            (KernelConfig(dot.name, tile, order), rows * cycles + extra)
            for order, extra in zip((PIXELS, CHANNELS), memory, strict=True)
        ]
    return found
