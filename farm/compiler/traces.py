"""Kernels that have been searched by MetaSchedule: what tells them from others, and the steps that were best for each.

A step is one that TVM checks when it is taken, so that whatever a trace makes of a kernel computes the same; one that does not apply, as
where another version of TVM has other steps, raises.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import SBlockRV, Trace

from farm.compiler.choices import Steps
from farm.compiler.spread import has_reduction, name_of
from farm.store import digest_of

RULE = "metaschedule"
_DIGITS = 12  # of a digest: to tell apart kernels of one operator and shape
_ROOT = "root"  # the block around all others
_OF_INPUT = re.compile(r"^.*_(?=red(_temp)?$)")  # TVM names the sum over axes of lv5 lv5_red


def workload_of(function: tirx.PrimFunc) -> str:
    """The key of a loop nest, for example "group_conv3d_ncdhw 1x32x8x28x28 float32 #8d1b35a0c1f2"; empty where MetaSchedule has nothing to
    search: in a kernel without a sum or the like, one with open extents, and one that looks up by values.

    The digest is of the kernel's structure, whatever its variables are called, and the same on every machine with this version of TVM.
    """
    work = Schedule(tvm.IRModule({"main": function}))
    blocks = work.get_child_blocks(work.get_sblock("root"))
    summing = [block for block in blocks if has_reduction(work, block)]
    if not summing or not _is_static(function) or _looks_up(function):
        return ""
    main = max(summing, key=lambda block: _iterations(work, block))
    written = work.get(main).writes[0].source
    digest = digest_of(f"{tvm_ffi.structural_hash(numbered(function)):x}")[:_DIGITS]
    return f"{_OF_INPUT.sub('', name_of(work, main))} {'x'.join(str(int(extent)) for extent in written.shape)} {written.dtype} #{digest}"


def applied(function: tirx.PrimFunc, steps: Steps) -> tirx.PrimFunc:
    """A kernel by its steps. Raises what TVM raises for steps that do not apply."""
    work = Schedule(tvm.IRModule({"main": numbered(function)}))
    Trace.apply_json_to_schedule(json.loads(steps.trace), work)
    return work.mod["main"]


def numbered(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with its blocks named by number: steps find them by name, and some have the name of a variable of the model in theirs."""
    numbers = itertools.count()

    def named(block: SBlock) -> SBlock:
        if block.name_hint == _ROOT:
            return block
        parts = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
        return SBlock(block.iter_vars, block.reads, block.writes, f"block_{next(numbers)}", block.body, *parts)

    return function.with_body(tvm_ffi.structural_map(function.body, [(SBlock, named)], order="post"))


def _is_static(function: tirx.PrimFunc) -> bool:
    return all(isinstance(loop.extent, tirx.IntImm) for loop in _found(function.body, tirx.For))


def _looks_up(function: tirx.PrimFunc) -> bool:
    """Whether a place in a tensor depends on values, which a search does not know: it measures with random ones."""
    places = [index for node in _found(function.body, tvm.ir.TensorLoad, tirx.BufferStore) for index in node.indices]
    return any(_found(place, tvm.ir.TensorLoad) for place in places)


def _found(root: object, *types: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(root, [(types, found.append)])
    return found


def _iterations(work: Schedule, block: SBlockRV) -> int:
    total = 1
    for loop in work.get_loops(block):
        total *= int(work.get(loop).extent)
    return total
