"""Emit cumulative sums and products along an axis that is not the last.

TVM computes them one after the other for each place of the other axes, each of whose numbers is in
another line of the cache. Here all places behind the axis are computed side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.kernels.fixed_extents import fixed_extents

_LEAST_COLUMNS = 4  # behind the axis


@dataclass(frozen=True, slots=True)
class Scan:
    """Describe a scan: `rows` times, it computes `steps` results of `columns` numbers each.

    With `is_exclusive` a result leaves its own step out.
    """

    rows: int
    steps: int
    columns: int
    is_sum: bool
    is_exclusive: bool


def emit_scan(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit the kernel of a relax.cumsum or relax.cumprod; return None where TVM's is as good."""
    data, attributes = call.args[0], call.attrs
    shape = fixed_extents(data)
    if not shape or attributes.axis is None:
        return None
    axis = int(attributes.axis) % len(shape)
    scan = Scan(
        math.prod(shape[:axis]),
        shape[axis],
        math.prod(shape[axis + 1 :]),
        call.op.name == "relax.cumsum",
        bool(attributes.exclusive),
    )
    if scan.columns < _LEAST_COLUMNS or 0 in shape or call.ty.dtype != data.ty.dtype:
        return None
    body = partial(_scanned, scan=scan)
    return builder.call_te(body, data, primfunc_name_hint=call.op.name.removeprefix("relax."))


def _scanned(data: te.Tensor, *, scan: Scan) -> te.Tensor:
    dtype = str(data.dtype)
    start = tirx.const(0 if scan.is_sum else 1, dtype)

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        given, made = T.buffer_proxy(inputs[0]), T.buffer_proxy(outputs[0])

        def next_value(before: Any, at: Any) -> Any:
            return before + given[at] if scan.is_sum else before * given[at]

        size = scan.steps * scan.columns
        with IRBuilder() as program, T.parallel(0, scan.rows) as row:
            first = row * size
            with T.serial(0, scan.columns) as column:
                at = first + column
                made[at] = start if scan.is_exclusive else given[at]
            with T.serial(0, scan.steps - 1) as step, T.serial(0, scan.columns) as column:
                before = first + step * scan.columns + column
                at = before + scan.columns
                made[at] = next_value(made[before], before if scan.is_exclusive else at)
        return program.get()

    return te.extern([data.shape], [data], body, name="scan", dtype=[dtype])
