"""Look up properties of the blocks and loops of a TIR kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from farm.compiler.ir.dynamic_extents import is_dynamic, product_at_batch_one, value_at_batch_one
from farm.kernels import recurrent_layer_cost

SPATIAL, REDUCTION = 0, 2  # tirx.IterVar.DataPar, CommReduce
_MANY_STEPS = 8  # of a sum: below it a kernel has little arithmetic to lose


def loop_extent(sch: Schedule, loop: LoopRV) -> int:
    """Return the number of iterations of a loop, at a batch of one if it is open."""
    return value_at_batch_one(sch.get(loop).extent)


def block_name(sch: Schedule, block: SBlockRV) -> str:
    """Return the name of a block."""
    return str(sch.get(block).name_hint)


def is_dynamic_loop(sch: Schedule, loop: LoopRV) -> bool:
    """Return whether the number of iterations depends on the batch."""
    return is_dynamic(sch.get(loop).extent)


def block_iter_types(sch: Schedule, block: SBlockRV) -> list[int]:
    """Return the kind of each axis of a block: SPATIAL, REDUCTION or another of TVM's."""
    return [int(variable.iter_type) for variable in sch.get(block).iter_vars]


def has_reduction(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block has a reduction axis."""
    return REDUCTION in block_iter_types(sch, block)


def narrow_indices_to_int32(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with 32-bit indices, because TVM drops the hints of wider loops.

    The function is returned unchanged if a tensor has an open extent, is int64 or has 2^31 elements
    or more.
    """
    blocks = [nested.block for nested in blocks_in_loops(function)]
    buffers = [region.source for block in blocks for region in (*block.reads, *block.writes)]
    # The block of a scatter names none. A parameter that is no tensor has no shape.
    buffers += [one for one in function.params if getattr(one, "shape", None) is not None]
    static = all(isinstance(extent, tirx.IntImm) for buffer in buffers for extent in buffer.shape)
    if not static or any(
        str(buffer.dtype) == "int64" or math.prod(map(int, buffer.shape)) >= 2**31
        for buffer in buffers
    ):
        return function
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": function}))["main"]


def estimate_kernel_operations(function: tirx.PrimFunc) -> int:
    """Return the approximate number of arithmetic operations of one call, at a batch of one.

    A reduction step counts two operations, any other computed element one.
    """
    if recurrent_layer_cost.is_recurrent_layer(function):
        return recurrent_layer_cost.operation_count(function)
    if not is_loop_nest(function):
        return 0
    return sum(
        (2 if REDUCTION in nested.iter_types else 1)
        * product_at_batch_one([loop.extent for loop in nested.loops])
        for nested in blocks_in_loops(function)
    )


def is_tensor_contraction(function: tirx.PrimFunc) -> bool:
    """Return whether a kernel sums products of two tensors, many for each element."""
    if not is_loop_nest(function):
        return False
    for nested in blocks_in_loops(function):
        kinds = nested.iter_types
        if REDUCTION not in kinds:
            continue
        read = {region.source.name for region in nested.block.reads}
        steps = product_at_batch_one(
            [
                loop.extent
                for loop, kind in zip(nested.loops, kinds, strict=False)
                if kind == REDUCTION
            ]
        )
        if len(read) > 1 and steps >= _MANY_STEPS:
            return True
    return False


def is_loop_nest(function: tirx.PrimFunc) -> bool:
    """Return whether a kernel is loops over blocks, as all are except TVM's sort and scan."""
    body = getattr(function.body, "block", None)
    return body is not None and body.name_hint == "root"


def block_names(function: tirx.PrimFunc) -> list[str]:
    """Return the names of a kernel's blocks in order; none for a kernel that is no loop nest."""
    if not is_loop_nest(function):
        return []
    return [str(nested.block.name_hint) for nested in blocks_in_loops(function)]


@dataclass(frozen=True, slots=True)
class BlockInLoops:
    """A block of a kernel, and the loops around it from the outermost to the innermost."""

    block: SBlock
    loops: Sequence[tirx.For]

    @property
    def iter_types(self) -> list[int]:
        """The kind of each axis of the block: SPATIAL, REDUCTION or another of TVM's."""
        return [int(variable.iter_type) for variable in self.block.iter_vars]


def blocks_in_loops(function: tirx.PrimFunc) -> list[BlockInLoops]:
    """Return the blocks within the root block of a loop nest, in order.

    A Schedule would give the same; to make one takes longer than all of this.
    """
    return list(_find_blocks(function.body.block.body, ()))


def _find_blocks(statement: tirx.Stmt, loops: tuple[tirx.For, ...]) -> Iterator[BlockInLoops]:
    if isinstance(statement, SBlockRealize):
        yield BlockInLoops(statement.block, loops)
    elif isinstance(statement, tirx.For):
        yield from _find_blocks(statement.body, (*loops, statement))
    elif isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _find_blocks(part, loops)
    elif isinstance(statement, tirx.IfThenElse):
        yield from _find_blocks(statement.then_case, loops)
        if statement.else_case is not None:
            yield from _find_blocks(statement.else_case, loops)
    elif isinstance(body := getattr(statement, "body", None), tirx.Stmt):
        yield from _find_blocks(body, loops)
