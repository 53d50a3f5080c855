"""Compute cumulative sums and products on CPUs by farm's kernel."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule
from farm.kernels import cumulative


@mutator
class CumulativeKernelRewriter(Rewriter):
    """Rewrites cumsum and cumprod before TVM's own pass does; that for GPUs is left to it."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        target = tvm.target.Target.current(allow_none=True)
        if target is None or target.kind.name != "llvm":
            return {}
        return dict.fromkeys(("relax.cumsum", "relax.cumprod"), self._scan)

    def _scan(self, call: Call) -> relax.Expr | None:
        return cumulative.emit_scan(self.builder_, call)
