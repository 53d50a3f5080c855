"""Define the kernels that transform stored parameters when a model is loaded.

They compute what `BlockTransform.apply` and `GatherTransform.apply` compute. One kernel serves all
parameters of a model that have the same form.
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


def gather_transform_kernel() -> tirx.PrimFunc:
    """Return the kernel from [columns + rows * width], indices and a table, to [rows, columns].

    An index outside of the table is that of its last or first column: files may be damaged.
    """
    length, rows, columns = (te.var(name, "int64") for name in ("length", "rows", "columns"))
    stored = te.placeholder((length,), "float32", "stored")
    width = tirx.floordiv(length - columns, rows)

    def element(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        last = tirx.Cast("float32", width - 1)
        index = tirx.max(tirx.min(stored[column], last), tirx.const(0, "float32"))
        return stored[columns + row * width + tirx.Cast("int64", index)]

    gathered = te.compute((rows, columns), element, "gathered_columns")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([stored, gathered]))
    row, _ = schedule.get_loops(schedule.get_sblock("gathered_columns"))
    schedule.parallel(row)
    return schedule.mod["main"].without_attr("global_symbol")
