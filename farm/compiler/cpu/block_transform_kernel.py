"""Define the kernel that divides a weight into blocks of columns when a model is loaded.

It computes what `BlockTransform.apply` computes. One kernel serves all weights of a model.
"""

from __future__ import annotations

import tvm
from tvm import te, tirx


def block_transform_kernel(*, transposed: bool) -> tirx.PrimFunc:
    """Return the kernel from [rows, CO], or [CO, rows], to [CO / block, rows, block].

    Columns beyond CO are zero. Blocks and their rows are divided among threads.
    """
    rows, columns, blocks, block = (
        te.var(name, "int64") for name in ("rows", "columns", "blocks", "block")
    )
    shape = (columns, rows) if transposed else (rows, columns)
    weight = te.placeholder(shape, "float32", "weight")

    def element(number: tirx.Var, row: tirx.Var, place: tirx.Var) -> tirx.Expr:
        column = number * block + place
        value = weight[column, row] if transposed else weight[row, column]
        return tirx.if_then_else(column < columns, value, tirx.const(0, "float32"))

    packed = te.compute((blocks, rows, block), element, "weight_in_blocks")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([weight, packed]))
    number, row, _ = schedule.get_loops(schedule.get_sblock("weight_in_blocks"))
    schedule.parallel(schedule.fuse(number, row))
    return schedule.mod["main"].without_attr("global_symbol")
