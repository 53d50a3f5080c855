"""Write scatters whose index is the same for a whole row as scatters of rows.

ScatteredRowRewriter does so for all targets. ScatterKernelRewriter computes scatters of rows by
farm's own kernel on CPUs.

`x.scatter_add(0, index[:, None].expand(-1, columns), messages)` is how graph networks add up the
messages of edges. Element by element, each has an index of its own that is read and checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.clamp_indices import count_from_start
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name, shape_of
from farm.kernels import scatter

_FULL = {"relax.zeros": 0, "relax.zeros_like": 0, "relax.ones": 1, "relax.ones_like": 1}


@mutator
class ScatteredRowRewriter(Rewriter):
    """Rewrites scatter_elements along the first axis, whose rows have one index each."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.scatter_elements": self._scatter}

    def _scatter(self, call: Call) -> relax.Expr | None:
        data, indices, updates = call.args
        shapes = [shape_of(argument) for argument in call.args]
        reduction = str(call.attrs.reduction)
        if reduction not in scatter.REDUCTIONS or any(
            shape is None or any(map(is_dynamic, shape)) for shape in shapes
        ):
            return None
        (height, *columns), of_indices, of_updates = (
            [int(extent) for extent in shape] for shape in shapes if shape is not None
        )
        count = of_indices[0]
        if (
            count == 0
            or int(call.attrs.axis) % len(shapes[0] or ()) != 0
            or math.prod(columns) <= 1
            or not of_indices == of_updates == [count, *columns]
        ):
            return None
        rows = self._row_indices(indices, count)
        if rows is None:
            return None
        rows = self._emit(relax.op.reshape(rows, [count, 1]))
        rows = count_from_start(self.builder_, rows, height)
        return relax.op.scatter_nd(data, rows, updates, reduction)

    def _row_indices(self, indices: relax.Expr, count: int) -> relax.Expr | None:
        """Return the indices [count, 1, ...] of rows; None if elements have their own."""
        value = constant_value(indices)
        if value is not None:
            rows = value.reshape(count, -1)
            if (rows != rows[:, :1]).any():
                return None
            return relax.const(np.ascontiguousarray(rows[:, :1]), str(value.dtype))
        spread = self.bound(indices)
        if not isinstance(spread, Call) or op_name(spread) != "relax.broadcast_to":
            return None
        rows = spread.args[0]
        shape = shape_of(rows)
        if shape is None or [int(extent) for extent in shape] != [
            count,
            *[1] * (len(indices.ty.shape) - 1),
        ]:
            return None
        return rows

    def _emit(self, value: relax.Expr) -> relax.Expr:
        return self.builder_.emit(value)


@mutator
class ScatterKernelRewriter(Rewriter):
    """Computes scatters of rows by farm's kernel for CPUs."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.scatter_nd": self._scatter}

    def _scatter(self, call: Call) -> relax.Expr | None:
        return scatter.emit_scatter_nd(
            self.builder_, call, number_of_full(self.bound(call.args[0]))
        )


def number_of_full(full: relax.Expr) -> int | float | None:
    """Return the number that a tensor is full of, by what makes it; None if that is not known."""
    if op_name(full) in _FULL:
        return _FULL[op_name(full)]
    value = constant_value(full.args[1] if op_name(full) == "relax.full" else full)
    if value is None or not value.size or not (value == value.flat[0]).all():
        return None
    if value.dtype.kind == "f" and (np.signbit(value) != np.signbit(value.flat[0])).any():
        return None  # zeros of both signs
    number: int | float = value.flat[0].item()
    return number
