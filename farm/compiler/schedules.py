"""CPU schedules: one rule for each main block of a fused kernel, and a general rule for the rest.

TVM 0.27 has no CPU schedules of its own: an unscheduled convolution is ten to thirty times slower. Where a rule fails, the kernel stays as
it is, correct and slow, and the report names it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.core import Core
from farm.compiler.kernels import CONVOLUTION, DENSE, DEPTHWISE, Tile, convolution_tile, dense_tile, divisor
from farm.types import Kernel

_WEIGHTS_IN_CACHE = 512 * 1024  # bytes: a larger weight is walked block by block, so that a block stays in the L2 cache
_WORTH_A_THREAD = 16 * 1024  # loop iterations: handing less to other threads costs more than it gains
_DEPTHWISE_PIXELS = 8
_UNROLLED_TAPS = 49  # of a depthwise kernel, 7 x 7: more make the code grow without bounds
GENERAL = "general"
_SPATIAL, _REDUCTION = 0, 2  # tirx.IterVar.DataPar, CommReduce


def schedule(module: tvm.IRModule, core: Core) -> tuple[tvm.IRModule, list[Kernel]]:
    """Schedule every kernel of a module for a core."""
    kernels: list[Kernel] = []
    calls = _calls(module)
    scheduled: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            scheduled[variable], kernel = _schedule_one(variable.name_hint, function, core)
            kernels.append(replace(kernel, operations=calls[variable] * _operations(function)))
    for variable, function in scheduled.items():
        module.update_func(variable, function.with_attr("tirx.is_scheduled", True))
    return module, kernels


def _schedule_one(name: str, function: tirx.PrimFunc, core: Core) -> tuple[tirx.PrimFunc, Kernel]:
    blocks = _block_names(function)
    failure = "" if blocks else "it has no blocks to schedule"
    for rule in (rule for rule in _RULES if rule in blocks or (blocks and rule == GENERAL)):
        work = Schedule(tvm.IRModule({"main": function}))
        try:
            _RULES[rule](work, core)
        except Exception as exc:  # a step of the schedule that does not apply, in whatever words
            failure = f"{rule}: {_reason(exc)}"
            continue
        return work.mod["main"], Kernel(name, rule, failure)
    return function, Kernel(name, "none", failure)


def _calls(module: tvm.IRModule) -> Counter[tvm.ir.GlobalVar]:
    """How often the module's Relax functions call each kernel."""
    calls: Counter[tvm.ir.GlobalVar] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, relax.Call):
            calls.update(argument for argument in node.args if isinstance(argument, tvm.ir.GlobalVar))

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, count)
    return calls


def _operations(function: tirx.PrimFunc) -> int:
    """Arithmetic of one call; 0 where TVM cannot tell."""
    try:
        return int(estimate_tir_flops(tvm.IRModule({"main": function})))
    except Exception:  # loops of open extent, whiles, and what else it does not know
        return 0


def is_loop_nest(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is made of loops over blocks, as all are but TVM's sort and scan."""
    body = getattr(function.body, "block", None)
    return body is not None and body.name_hint == "root"


def _block_names(function: tirx.PrimFunc) -> list[str]:
    if not is_loop_nest(function):
        return []
    work = Schedule(tvm.IRModule({"main": function}))
    return [_name(work, block) for block in work.get_child_blocks(work.get_sblock("root"))]


def _reason(error: Exception) -> str:
    """What TVM says in its last line of words; the rest is its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def _convolution(work: Schedule, core: Core) -> None:
    """A register tile of pixels x vectors, the reduction innermost around it, and the epilogue applied to the tile."""
    main = work.get_sblock(CONVOLUTION)
    weight = next(region.source for region in work.get(main).reads if len(region.source.shape) == 5)
    _, _, width, channels = (int(extent) for extent in work.get(main).writes[0].source.shape)
    tile = _required(convolution_tile(core, width, channels))
    padding = work.get_producers(main)
    last = _inline_epilogue(work, main)

    n, h, w, c = work.get_loops(last)
    w_outer, w_tile = work.split(w, [None, tile.pixels])
    c_outer, c_block = work.split(c, [None, tile.block])
    c_vectors, c_lanes = work.split(c_block, [None, tile.lanes])
    if math.prod(int(extent) for extent in weight.shape) * 4 > _WEIGHTS_IN_CACHE:
        work.reorder(c_outer, n, h, w_outer, w_tile, c_vectors, c_lanes)
        outer, place = work.fuse(c_outer, n, h), w_outer
    else:
        work.reorder(n, h, w_outer, c_outer, w_tile, c_vectors, c_lanes)
        outer, place = work.fuse(n, h, w_outer), c_outer
    work.compute_at(main, place, preserve_unit_loops=True)
    work.parallel(outer)
    _, _, tile_w, tile_c, ry, rx, rc = work.get_loops(main)[-7:]
    tile_vectors, tile_lanes = work.split(tile_c, [None, tile.lanes])
    work.reorder(ry, rx, rc, tile_w, tile_vectors, tile_lanes)
    _unroll_vectorize(work, [tile_w, tile_vectors], tile_lanes)
    _unroll_vectorize(work, [w_tile, c_vectors], c_lanes)
    initial = work.get_loops(work.decompose_reduction(main, ry))
    _unroll_vectorize(work, initial[-3:-1], initial[-1])
    for block_before in padding:
        _spread(work, block_before, core)


def _depthwise(work: Schedule, core: Core) -> None:
    """A row of pixels for one vector of channels, the kernel's taps unrolled; padding is computed a row at a time, where it is used."""
    main = work.get_sblock(DEPTHWISE)
    _, _, width, channels = (int(extent) for extent in work.get(main).writes[0].source.shape)
    lanes, pixels = divisor(channels, core.lanes), divisor(width, _DEPTHWISE_PIXELS)
    padding = work.get_producers(main)
    last = _inline_epilogue(work, main)

    n, h, w, c = work.get_loops(last)
    w_outer, w_tile = work.split(w, [None, pixels])
    c_outer, c_lanes = work.split(c, [None, lanes])
    work.reorder(n, h, w_outer, c_outer, w_tile, c_lanes)
    rows = work.fuse(n, h)
    work.compute_at(main, c_outer, preserve_unit_loops=True)
    for block_before in padding:
        work.compute_at(block_before, rows, preserve_unit_loops=True)
    work.parallel(rows)
    _, _, tile_w, tile_c, ry, rx = work.get_loops(main)[-6:]
    work.reorder(ry, rx, tile_w, tile_c)
    taps = [ry, rx] if math.prod(_extent(work, loop) or 1 for loop in (ry, rx)) <= _UNROLLED_TAPS else []
    _unroll_vectorize(work, [*taps, tile_w], tile_c)
    _unroll_vectorize(work, [w_tile], c_lanes)
    initial = work.get_loops(work.decompose_reduction(main, ry))
    _unroll_vectorize(work, [initial[-2]], initial[-1])
    for block_before in padding:
        channel = work.get_loops(block_before)[-1]
        work.vectorize(work.split(channel, [None, lanes])[1])


def _dense(work: Schedule, core: Core) -> None:
    """One block of outputs at a time, the reduction around a few vectors of accumulators."""
    main = work.get_sblock(DENSE)
    tile = _required(dense_tile(core, int(work.get(main).writes[0].source.shape[1])))
    last = _inline_epilogue(work, main)
    i, j = work.get_loops(last)
    j_outer, j_block = work.split(j, [None, tile.block])
    j_vectors, j_lanes = work.split(j_block, [None, tile.lanes])
    work.reorder(j_outer, i, j_vectors, j_lanes)
    outer = work.fuse(j_outer, i)
    work.compute_at(main, outer, preserve_unit_loops=True)
    work.parallel(outer)
    block, k = work.get_loops(main)[-2:]
    tile_vectors, tile_lanes = work.split(block, [None, tile.lanes])
    work.reorder(k, tile_vectors, tile_lanes)
    _unroll_vectorize(work, [tile_vectors], tile_lanes)
    _unroll_vectorize(work, [j_vectors], j_lanes)
    initial = work.get_loops(work.decompose_reduction(main, k))
    _unroll_vectorize(work, initial[-2:-1], initial[-1])


def _general(work: Schedule, core: Core) -> None:
    """Anything else: what is computed once and element by element is inlined, every remaining block is spread and vectorized."""
    blocks = work.get_child_blocks(work.get_sblock("root"))
    for block in blocks[:-1]:
        if not _has_reduction(work, block) and work.get_consumers(block) and not _feeds_reduction(work, block):
            work.compute_inline(block)
    for block in work.get_child_blocks(work.get_sblock("root")):
        _spread(work, block, core)


_RULES = {CONVOLUTION: _convolution, DEPTHWISE: _depthwise, DENSE: _dense, GENERAL: _general}


def _required(tile: Tile | None) -> Tile:
    if tile is None:
        raise ValueError("no register tile divides the output")
    return tile


def _inline_epilogue(work: Schedule, main: SBlockRV) -> SBlockRV:
    """Inline all that follows the main block into the last block, and return that; a main block that is the last gets a copy to follow it.

    Raises where that cannot be done, as when a kernel has several results.
    """
    if not work.get_consumers(main):
        work.cache_write(main, 0, "global")
    first = {_name(work, block) for block in (main, *work.get_producers(main))}
    *between, last = [block for block in work.get_child_blocks(work.get_sblock("root")) if _name(work, block) not in first]
    for block in between:
        work.compute_inline(block)
    return last


def _name(work: Schedule, block: SBlockRV) -> str:
    return str(work.get(block).name_hint)


def _unroll_vectorize(work: Schedule, loops: list[LoopRV], lanes: LoopRV) -> None:
    work.vectorize(lanes)
    for loop in loops:
        work.unroll(loop)


def _kinds(work: Schedule, block: SBlockRV) -> list[int]:
    return [int(variable.iter_type) for variable in work.get(block).iter_vars]


def _has_reduction(work: Schedule, block: SBlockRV) -> bool:
    return _REDUCTION in _kinds(work, block)


def _feeds_reduction(work: Schedule, block: SBlockRV) -> bool:
    return any(_has_reduction(work, consumer) for consumer in work.get_consumers(block))


def _spread(work: Schedule, block: SBlockRV, core: Core) -> None:
    """Spatial loops over the threads, the innermost one over the lanes; a reduction stays inside, around its lanes."""
    loops, kinds = work.get_loops(block), _kinds(work, block)
    if len(loops) != len(kinds):
        return  # not a plain loop nest: correct as it stands
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SPATIAL]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    extents = [_extent(work, loop) for loop in loops]
    if not spatial or None in extents:
        return
    iterations = math.prod(extent for extent in extents if extent is not None)
    lanes = divisor(_extent(work, spatial[-1]) or 1, core.lanes)
    inner = None
    if lanes > 1:
        last, inner = work.split(spatial[-1], [None, lanes])
        spatial[-1] = last
    work.reorder(*spatial, *reduced, *([inner] if inner is not None else []))
    outer = work.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    if iterations >= _WORTH_A_THREAD:
        work.parallel(outer)
    if inner is not None:
        work.vectorize(inner)
    if reduced:
        initial = work.get_loops(work.decompose_reduction(block, reduced[0]))
        if inner is not None:
            work.vectorize(initial[-1])


def _extent(work: Schedule, loop: LoopRV) -> int | None:
    extent = work.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None
