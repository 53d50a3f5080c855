"""Schedule short reductions on GPUs, such as windows of pools and depthwise convolutions.

One thread computes each result and keeps it in a register until the epilogue is computed, too. For
a 3 x 3 depthwise convolution, dlight would use a block of threads to add nine products.
Neighbouring threads compute neighbouring results, so that their memory accesses coalesce. The
schedules have not been measured on a GPU yet.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight import normalize_prim_func, try_inline
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.base.utils import max_threads_per_block

RULE = "short sums"
_LONGEST = 64  # longest reduction, in summands: a 7 x 7 window and some more
_THREADS = 256  # threads of a block


def schedule_short_reduction(function: tirx.PrimFunc, target: tvm.target.Target) -> Any | None:
    """Return the schedule of a kernel with one short reduction and an optional epilogue.

    Returns None if the kernel is of another kind. The epilogue is element-wise on the results.
    """
    sch = Schedule(function)
    blocks = normalize_prim_func(sch)
    if blocks is None:
        return None
    summing, *after = try_inline(sch, blocks)
    steps = _extents(summing, "R")
    if (
        not re.fullmatch("S*R+", summing.dom_kind())
        or not all(isinstance(step, int) for step in steps)
        or prod(steps) > _LONGEST
    ):
        return None
    if not after:
        last = sch.cache_write(summing.block_rv, 0, "local")
    elif (
        len(after) == 1 and not _extents(after[0], "R") and _results(after[0]) == _results(summing)
    ):
        last = after[0].block_rv
        sch.set_scope(summing.block_rv, 0, "local")
    else:
        return None
    loops = sch.get_loops(summing.block_rv)
    results, window = loops[: -len(steps)], loops[-len(steps) :]
    block, thread = sch.split(
        sch.fuse(*results), [None, min(_THREADS, max_threads_per_block(target))]
    )
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.reverse_compute_at(last, thread, preserve_unit_loops=True)
    sch.decompose_reduction(summing.block_rv, window[0])
    for loop in window:
        sch.unroll(loop)
    return sch


def _extents(block: SBlockInfo, kind: str) -> list[Any]:
    """Return the extents of a block's spatial ("S") or reduction ("R") iterators.

    They are integers if known, else expressions.
    """
    return [
        int(one.dom) if isinstance(one.dom, int | tirx.IntImm) else one.dom
        for one in block.iters
        if one.kind == kind
    ]


def _results(block: SBlockInfo) -> list[str]:
    """Return the extents of a block's results without those of one, which may be left out."""
    return [str(extent) for extent in _extents(block, "S") if extent != 1]
