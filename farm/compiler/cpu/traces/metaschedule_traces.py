"""Identify kernels that MetaSchedule can search, and apply the trace that was best for one.

A trace holds only steps of which TVM checks that they do not change what a kernel computes (see
`trace_grammar`). One that does not apply raises, as when another version of TVM has other
primitives.
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

from farm.compiler.cpu.kernel_config import ScheduleTrace
from farm.compiler.ir.blocks import block_name, has_reduction
from farm.store import digest_of_parts

RULE = "metaschedule"
_DIGITS = 12  # of a digest that distinguishes kernels of one operator and shape
_ROOT = "root"  # the name of the block around all others
_OF_INPUT = re.compile(
    r"^.*_(?=red(_temp)?$)"
)  # TVM gives the sum over axes of lv5 the name lv5_red


def workload_key(function: tirx.PrimFunc) -> str:
    """Return the key of a loop nest.

    For example "group_conv3d_ncdhw 1x32x8x28x28 float32 #8d1b35a0c1f2".

    The key is empty if MetaSchedule has nothing to search: in a kernel without a reduction, one
    with open extents, and one that indexes by values. The digest is of the kernel's structure,
    independent of the names of variables, and the same on every machine with this version of TVM.
    """
    sch = Schedule(tvm.IRModule({"main": function}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    summing = [block for block in blocks if has_reduction(sch, block)]
    if not summing or not _is_static(function) or _looks_up(function):
        return ""
    main = max(summing, key=lambda block: _iterations(sch, block))
    written = sch.get(main).writes[0].source
    digest = digest_of_parts(f"{tvm_ffi.structural_hash(name_blocks_by_number(function)):x}")[
        :_DIGITS
    ]
    return (
        f"{_OF_INPUT.sub('', block_name(sch, main))} "
        f"{'x'.join(str(int(extent)) for extent in written.shape)} {written.dtype} #{digest}"
    )


def apply_trace(function: tirx.PrimFunc, steps: ScheduleTrace) -> tirx.PrimFunc:
    """Return a kernel scheduled by a trace. Raises TVM's error if the trace does not apply."""
    sch = Schedule(tvm.IRModule({"main": name_blocks_by_number(function)}))
    Trace.apply_json_to_schedule(json.loads(steps.trace), sch)
    return sch.mod["main"]


def name_blocks_by_number(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the kernel with its blocks named by number.

    Traces find blocks by name, and some names contain the name of a variable of the model.
    """
    numbers = itertools.count()

    def named(block: SBlock) -> SBlock:
        if block.name_hint == _ROOT:
            return block
        parts = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
        return SBlock(
            block.iter_vars, block.reads, block.writes, f"block_{next(numbers)}", block.body, *parts
        )

    return function.with_body(
        tvm_ffi.structural_map(function.body, [(SBlock, named)], order="post")
    )


def _is_static(function: tirx.PrimFunc) -> bool:
    return all(isinstance(loop.extent, tirx.IntImm) for loop in _found(function.body, tirx.For))


def _looks_up(function: tirx.PrimFunc) -> bool:
    """Return whether an index into a tensor depends on values.

    A search does not know such values: it measures with random ones.
    """
    places = [
        index
        for node in _found(function.body, tvm.ir.TensorLoad, tirx.BufferStore)
        for index in node.indices
    ]
    return any(_found(place, tvm.ir.TensorLoad) for place in places)


def _found(root: object, *types: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(root, [(types, found.append)])
    return found


def _iterations(sch: Schedule, block: SBlockRV) -> int:
    total = 1
    for loop in sch.get_loops(block):
        total *= int(sch.get(loop).extent)
    return total
