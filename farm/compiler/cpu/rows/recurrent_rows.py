"""Compute several sequences of a recurrent layer together, as many as the CPU has registers for.

The importers write the kernel of a layer, and know no CPU: each sequence reads all weights by
itself. Together, sequences read a weight once, and more sums are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.recurrent import RecurrentLayer, emit_recurrent_layer, layer_of_kernel

_MOST_ROWS = 6  # more were not faster on Zen 5


def rows_together(layer: RecurrentLayer, cpu: CpuModel) -> int:
    """Return how many sequences share a weight; their tiles are of nearly the same size."""
    if layer.masked:
        return 1
    registers = layer.gates * -(-layer.lanes // cpu.lanes)
    most = max(1, min(_MOST_ROWS, cpu.accumulators // registers))
    return math.ceil(layer.batch / math.ceil(layer.batch / most))


@mutator
class RecurrentRowsRewriter(Rewriter):
    """Writes the kernels of recurrent layers again, for a CPU."""

    def __init__(self, module: tvm.IRModule, cpu: CpuModel) -> None:
        super().__init__(module)
        self._module, self._cpu = module, cpu

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.call_tir": self._together}

    def _together(self, call: Call) -> relax.Expr | None:
        kernel = self._module[call.args[0]]
        layer = layer_of_kernel(kernel) if isinstance(kernel, tvm.tirx.PrimFunc) else None
        if layer is None:
            return None
        rows = rows_together(layer, self._cpu)
        if rows == layer.rows_together:
            return None
        together = replace(layer, rows_together=rows)
        return emit_recurrent_layer(self.builder_, together, list(call.args[1].fields))
