"""Define the kernel that divides a weight into blocks of columns when a model is loaded.

It computes what `BlockTransform.apply` computes. One kernel serves all weights of a model.
"""

from __future__ import annotations

import tvm
from tvm import te, tirx


def block_transform_kernel(*, transposed: bool, dtype: str = "float32") -> tirx.PrimFunc:
    """Return the kernel from [rows, groups, CO], or [groups, CO, rows], to blocks of columns.

    These are [groups, CO / block, rows, block]. Columns beyond CO are zero. Blocks and their rows
    are divided among threads.
    """
    rows, groups, columns, blocks, block = (
        te.var(name, "int64") for name in ("rows", "groups", "columns", "blocks", "block")
    )
    shape = (groups, columns, rows) if transposed else (rows, groups, columns)
    weight = te.placeholder(shape, dtype, "weight")

    def element(group: tirx.Var, number: tirx.Var, row: tirx.Var, place: tirx.Var) -> tirx.Expr:
        column = number * block + place
        value = weight[group, column, row] if transposed else weight[row, group, column]
        return tirx.if_then_else(column < columns, value, tirx.const(0, dtype))

    packed = te.compute((groups, blocks, rows, block), element, "weight_in_blocks")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([weight, packed]))
    group, number, row, _ = schedule.get_loops(schedule.get_sblock("weight_in_blocks"))
    schedule.parallel(schedule.fuse(group, number, row))
    return schedule.mod["main"].without_attr("global_symbol")
