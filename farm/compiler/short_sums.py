"""Short sums on GPUs, those of windows: a thread for each result, which it keeps in a register until what follows is computed too.

Of a depthwise convolution of 3 x 3, dlight would have a block of threads add up nine products. Threads that lie side by side compute
results that do, so that they read and write memory together. Not measured on a GPU yet.
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
_LONGEST = 64  # products, or what else is summed up: a window of 7 x 7, and some more
_THREADS = 256  # of a block


def apply(function: tirx.PrimFunc, target: tvm.target.Target) -> Any | None:
    """The schedule of a kernel of one short sum, and of what is computed of each of its results; None where it is of another kind."""
    work = Schedule(function)
    blocks = normalize_prim_func(work)
    if blocks is None:
        return None
    summing, *after = try_inline(work, blocks)
    steps = _extents(summing, "R")
    if not re.fullmatch("S*R+", summing.dom_kind()) or not all(isinstance(step, int) for step in steps) or prod(steps) > _LONGEST:
        return None
    if not after:
        last = work.cache_write(summing.block_rv, 0, "local")
    elif len(after) == 1 and not _extents(after[0], "R") and _results(after[0]) == _results(summing):
        last = after[0].block_rv
        work.set_scope(summing.block_rv, 0, "local")
    else:
        return None
    loops = work.get_loops(summing.block_rv)
    results, window = loops[: -len(steps)], loops[-len(steps) :]
    block, thread = work.split(work.fuse(*results), [None, min(_THREADS, max_threads_per_block(target))])
    work.bind(block, "blockIdx.x")
    work.bind(thread, "threadIdx.x")
    work.reverse_compute_at(last, thread, preserve_unit_loops=True)
    work.decompose_reduction(summing.block_rv, window[0])
    for loop in window:
        work.unroll(loop)
    return work


def _extents(block: SBlockInfo, kind: str) -> list[Any]:
    """Of its iterations that are spatial ("S") or summed up ("R"): numbers where they are known."""
    return [int(one.dom) if isinstance(one.dom, int | tirx.IntImm) else one.dom for one in block.iters if one.kind == kind]


def _results(block: SBlockInfo) -> list[str]:
    """The extents of what it computes, but those of one, which are written or not."""
    return [str(extent) for extent in _extents(block, "S") if extent != 1]
